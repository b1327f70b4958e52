"""Python's gRPC as a client of a running job: every kind of call and every kind of refusal, over the unix socket and over TCP.

This file runs with Debian's grpcio; pypi_interop.py runs the same with PyPI's newest, and its libraries for health and reflection.
"""
import concurrent.futures
import json
import os
import time

import grpc

import control
import harness
from certificates import Authority
from stubs import control_pb2, control_pb2_grpc, workers_pb2, workers_pb2_grpc

MESSAGE_MAX = 4 << 20
CODE = grpc.StatusCode


class Interop(control.Steered):
    """One job each; its steps go on whatever is done to its port."""

    def start_tape(self, steps=10**9, output="run", **sections):
        job, text = harness.tape(steps=steps, **sections)
        self.write("tape.csv", text)
        return self.start(job, ranks=0, output=output)

    def begin_tape(self, **how):
        return self.start_tape(**how).until_step(3)

    def channel(self, running, options=()):
        channel = grpc.insecure_channel(running.connection()["endpoint"], options)
        self.addCleanup(channel.close)
        return channel

    def raw(self, running, method, options=()):
        """Bytes in, bytes out."""
        return self.channel(running, options).unary_unary(method, request_serializer=bytes, response_deserializer=bytes)

    def still_trains(self, running):
        running.until_step(running.log("step")[-1]["step"] + 3)

    def test_every_kind_of_call(self):
        running = self.begin_tape()
        for name in sorted(name for name in dir(self) if name.startswith("case_")):
            with self.subTest(name):
                getattr(self, name)(running)
        self.still_trains(running)

    # ---- calls that go well ----

    def case_unary_beside_one_another(self, running):
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            steps = list(pool.map(lambda _: stub.GetStatus(control_pb2.GetStatusRequest(), timeout=20).step, range(100)))
        self.assertGreaterEqual(min(steps), 3)

    def case_a_stream_has_every_line_in_order(self, running):
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        stream = stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1), timeout=60)
        records = [json.loads(next(stream).json) for _ in range(200)]
        self.assertEqual([record["step"] for record in records], list(range(1, 201)))
        stream.cancel()

    def case_metadata_of_all_kinds_are_taken(self, running):
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        metadata = [("x-plain", "value with spaces, and commas"), ("x-blob-bin", bytes(range(256))), ("x-twice", "1"), ("x-twice", "2")]
        _, call = stub.GetStatus.with_call(control_pb2.GetStatusRequest(), metadata=metadata, timeout=20)
        self.assertEqual(call.code(), CODE.OK)
        self.assertEqual(list(call.trailing_metadata()), [])

    def case_messages_up_to_the_limit(self, running):
        """An unknown field of 4 MiB in all is nothing to GetStatus; one byte more is too much."""
        def of(size):
            payload = size - 5  # tag and length of field 1000, 2 + 3 or 4 bytes
            for body in (payload, payload - 1):
                message = b"\xc2\x3e" + varint(body) + bytes(body)
                if len(message) == size:
                    return message
            raise AssertionError(size)

        call = self.raw(running, "/gacc.v1.Control/GetStatus", [("grpc.max_send_message_length", -1)])
        self.assertEqual(control_pb2.Status.FromString(call(of(MESSAGE_MAX), timeout=60)).job, "tape")
        self.refused(CODE.RESOURCE_EXHAUSTED, lambda: call(of(MESSAGE_MAX + 1), timeout=60))

    def case_a_client_may_take_no_more_than_it_wants(self, running):
        """Its own limit ends its own call; the next call is none the worse."""
        call = self.raw(running, "/gacc.v1.Control/GetStatus", [("grpc.max_receive_message_length", 64)])
        self.refused(CODE.RESOURCE_EXHAUSTED, lambda: call(b"", timeout=20))

    def case_health(self, running):
        """HealthCheckResponse: field 1 is 1, SERVING."""
        check = self.raw(running, "/grpc.health.v1.Health/Check")
        self.assertEqual(check(b"", timeout=20), b"\x08\x01")
        self.assertEqual(check(b"\x0a\x0fgacc.v1.Control", timeout=20), b"\x08\x01")
        self.refused(CODE.NOT_FOUND, lambda: check(b"\x0a\x04none", timeout=20))

    # ---- calls that end early ----

    def case_a_stream_that_is_cancelled(self, running):
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        streams = [stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1)) for _ in range(20)]
        for stream in streams:
            next(stream)
            stream.cancel()
        self.assertEqual({stream.code() for stream in streams}, {CODE.CANCELLED})
        self.assertEqual(stub.GetStatus(control_pb2.GetStatusRequest(), timeout=20).job, "tape")

    def case_a_deadline(self, running):
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        began = time.monotonic()
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in stub.WatchSteps(control_pb2.WatchStepsRequest(), timeout=0.3):
                pass
        self.assertEqual(caught.exception.code(), CODE.DEADLINE_EXCEEDED)
        self.assertLess(time.monotonic() - began, harness.PROMPT)

    # ---- calls that are refused ----

    def case_what_does_not_exist(self, running):
        for path, named in (("/gacc.v1.Control/Explode", "Explode"), ("/gacc.v2.Control/GetStatus", "gacc.v2.Control"), ("/nothing", "")):
            details = self.refused(CODE.UNIMPLEMENTED, lambda: self.raw(running, path)(b"", timeout=20))
            self.assertIn(named, details)

    def case_what_is_no_message(self, running):
        self.refused(CODE.INVALID_ARGUMENT, lambda: self.raw(running, "/gacc.v1.Control/GetStatus")(b"\xff\xff", timeout=20))

    def case_joining_with_a_wrong_secret(self, running):
        stub = workers_pb2_grpc.WorkersStub(self.channel(running))
        hello = workers_pb2.WorkerMessage(hello=workers_pb2.Hello(rank=0, ranks=1))
        for metadata in (None, [("gacc-secret-bin", bytes(32))], [("gacc-secret-bin", b"short")]):
            self.refused(CODE.UNAUTHENTICATED, lambda: list(stub.Join(iter([hello]), metadata=metadata, timeout=20)))

    # ---- jobs of their own ----

    def test_words_of_any_language_come_through(self):
        """The failure of a checkpoint names its path: Größe 100 % 日本."""
        output = "Größe 100 % 日本"
        running = self.begin_tape(output=output, checkpoint={"every": 0})
        self.write(os.path.join(output, "checkpoints"), "a file")
        details = self.refused(CODE.INTERNAL, lambda: self.checkpoint(control_pb2_grpc.ControlStub(self.channel(running))))
        self.assertIn(f"{output}/checkpoints", details)

    def test_a_job_that_ends_ends_its_streams_behind_the_last_line(self):
        """Several streams of one connection drain; what comes later finds nobody."""
        running = self.start_tape(steps=3000).meet()
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        streams = [stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1), timeout=60) for _ in range(3)]
        stub.GetStatus(control_pb2.GetStatusRequest(), timeout=20)
        running.let_go()
        for stream in streams:
            steps = [record.step for record in stream if json.loads(record.json)["type"] == "step"]
            self.assertEqual(steps, list(range(1, 3001)))
            self.assertEqual(stream.code(), CODE.OK)
        self.end(running, 0)
        self.refused(CODE.UNAVAILABLE, lambda: stub.GetStatus(control_pb2.GetStatusRequest(), timeout=5))

    def test_over_tcp_a_token_is_wanted(self):
        running = self.begin_tape(control={"listen": "tcp://127.0.0.1:0"})
        stub, request = control_pb2_grpc.ControlStub(self.channel(running)), control_pb2.GetStatusRequest()
        token = running.connection()["token"]
        for given in (None, f"Bearer {token[:-1]}x", f"Bearer {token}x", token, "Bearer"):
            metadata = [("authorization", given)] if given is not None else None
            self.refused(CODE.UNAUTHENTICATED, lambda: stub.GetStatus(request, metadata=metadata, timeout=20))
            self.refused(CODE.UNAUTHENTICATED, lambda: list(stub.WatchSteps(control_pb2.WatchStepsRequest(), metadata=metadata, timeout=20)))
        self.assertEqual(stub.GetStatus(request, metadata=[("authorization", f"Bearer {token}")], timeout=20).job, "tape")
        reads = [("authorization", f"Bearer {running.connection()['read_token']}")]
        self.assertEqual(stub.GetStatus(request, metadata=reads, timeout=20).job, "tape")
        self.refused(CODE.PERMISSION_DENIED, lambda: stub.Stop(control_pb2.StopRequest(), metadata=reads, timeout=20))
        self.still_trains(running)

    # ---- TLS ----

    def begin_tls(self, clients=False):
        self.ours, self.others = (Authority(self.directory, name) for name in ("authority", "stranger"))
        certificate, key = self.ours.sign("server", "IP:127.0.0.1")
        tls = {"certificate": certificate, "key": key, **({"client_authorities": self.ours.pem} if clients else {})}
        return self.begin_tape(control={"listen": "tcp://127.0.0.1:0", "tls": tls})

    def secure(self, running, authority, own=None, name=None):
        """A stub; own: (certificate, key), name: for which the certificate has to be."""
        chain, key = map(bytes_of, own) if own else (None, None)
        credentials = grpc.ssl_channel_credentials(bytes_of(authority.pem), private_key=key, certificate_chain=chain)
        options = [("grpc.ssl_target_name_override", name)] if name else []
        channel = grpc.secure_channel(running.connection()["endpoint"], credentials, options)
        self.addCleanup(channel.close)
        return control_pb2_grpc.ControlStub(channel)

    def test_tls(self):
        running = self.begin_tls()
        request, token = control_pb2.GetStatusRequest(), [("authorization", f"Bearer {running.connection()['token']}")]
        stub = self.secure(running, self.ours)
        self.assertEqual(stub.GetStatus(request, metadata=token, timeout=20).job, "tape")
        self.refused(CODE.UNAUTHENTICATED, lambda: stub.GetStatus(request, timeout=20))
        stream = stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1), metadata=token, timeout=60)
        self.assertEqual([json.loads(next(stream).json)["step"] for _ in range(200)], list(range(1, 201)))
        stream.cancel()
        self.assertEqual(stub.Checkpoint(control_pb2.CheckpointRequest(wait=True), metadata=token, timeout=60).name[:5], "step-")
        insecure = control_pb2_grpc.ControlStub(self.channel(running))
        for stranger in (self.secure(running, self.others), self.secure(running, self.ours, name="node8"), insecure):
            self.refused(CODE.UNAVAILABLE, lambda: stranger.GetStatus(request, metadata=token, timeout=20))
        self.still_trains(running)

    def test_tls_with_certificates_of_clients(self):
        running = self.begin_tls(clients=True)
        request, token = control_pb2.GetStatusRequest(), [("authorization", f"Bearer {running.connection()['token']}")]
        own, other = self.ours.sign("client"), self.others.sign("foreign")
        stub = self.secure(running, self.ours, own)
        self.assertEqual(stub.GetStatus(request, metadata=token, timeout=20).job, "tape")
        self.refused(CODE.UNAUTHENTICATED, lambda: stub.GetStatus(request, timeout=20))
        for given in (None, other):
            self.refused(CODE.UNAVAILABLE, lambda: self.secure(running, self.ours, given).GetStatus(request, metadata=token, timeout=20))
        self.still_trains(running)


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


if __name__ == "__main__":
    harness.main()
