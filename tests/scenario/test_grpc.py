"""Any gRPC client can call: grpcio, with stubs generated here from proto/, against a running job."""
import concurrent.futures
import json
import os
import signal

import grpc

import harness
from stubs import control_pb2, control_pb2_grpc, workers_pb2, workers_pb2_grpc


class Grpc(harness.Endless):
    def setUp(self):
        super().setUp()
        self.job, text = harness.gpt(steps=10**9)
        self.write("text.txt", text)

    def begin(self, **sections):
        return self.start(dict(self.job, **sections)).until_step(3)

    def channel(self, running):
        channel = grpc.insecure_channel(running.connection()["endpoint"])
        self.addCleanup(channel.close)
        return channel

    def refused(self, code, call):
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def test_get_status(self):
        running = self.begin()
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        status = stub.GetStatus(control_pb2.GetStatusRequest(), timeout=10)
        self.assertEqual((status.job, status.phase, status.pid), ("gpt", "training", running.connection()["pid"]))
        self.assertEqual((status.effective_batch, status.micro_batch, len(status.ranks)), (8, 2, 2))
        self.assertGreaterEqual(status.optimizer_steps, 3)
        self.assertGreater(status.tokens_per_second, 0)
        self.assertLess(max(rank.seconds_since_heard for rank in status.ranks), 5)
        self.assertGreater(status.started_unix_seconds, 1.6e9)

    def test_watch_steps_from_the_first_and_from_now(self):
        running = self.begin()
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        first = stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=2))
        seen = [next(first) for _ in range(30)]
        self.assertEqual([record.step for record in seen], list(range(2, 32)))
        log = running.log("step")
        self.assertEqual([json.loads(record.json) for record in seen], log[1:31])
        now = next(stub.WatchSteps(control_pb2.WatchStepsRequest()))
        self.assertGreaterEqual(now.step, len(log))
        first.cancel()

    def test_watching_all_lines(self):
        """From the header to the end; a step's number says where the others stand."""
        job = dict(self.job, job={"name": "gpt", "steps": 30}, checkpoint={"every": 10})
        running = self.start(job)
        harness.until(lambda: os.path.exists(os.path.join(running.output, "connection.json")), 10, "connection.json")
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        records = list(stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1, all=True), timeout=60 * harness.SLOWER))
        self.assertEqual(running.wait().status, 0)
        lines = [json.loads(record.json) for record in records]
        self.assertEqual(lines, running.log())
        self.assertEqual({line["type"] for line in lines}, {"header", "step", "checkpoint", "end"})
        step = 1
        for record, line in zip(records, lines):
            step = line["step"] if line["type"] == "step" else step
            self.assertEqual(record.step, step)

    def test_watching_ends_with_the_job_after_its_last_step(self):
        running = self.start(dict(self.job, job={"name": "gpt", "steps": 300})).until_step(1)
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        steps = [record.step for record in stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1), timeout=60 * harness.SLOWER)]
        self.assertEqual(steps, list(range(1, 301)))
        self.assertEqual(running.wait().status, 0)

    def test_the_end_of_the_job_ends_a_stream_and_refuses_new_calls_meanwhile(self):
        running = self.start(dict(self.job, job={"name": "gpt", "steps": 200})).until_step(1)
        channel = self.channel(running)
        stub = control_pb2_grpc.ControlStub(channel)
        stream = stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1), timeout=60)
        steps, codes = 0, set()
        for record in stream:
            steps += 1
            if record.step < 200:
                continue
            try:  # the job is at its end while this stream has more to give
                stub.GetStatus(control_pb2.GetStatusRequest(), timeout=10)
                codes.add(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                codes.add(error.code())
        self.assertEqual((steps, stream.code()), (200, grpc.StatusCode.OK))
        self.assertLessEqual(codes, {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE})
        self.refused(grpc.StatusCode.UNAVAILABLE, lambda: stub.GetStatus(control_pb2.GetStatusRequest(), timeout=10))
        self.assertEqual(running.wait().status, 0)

    def test_a_watcher_that_does_not_read_holds_up_nobody_and_misses_nothing(self):
        job, text = harness.tape(steps=10**9)
        self.write("tape.csv", text)
        running = self.start(job).until_step(1)
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        lazy = stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1), timeout=300 * harness.SLOWER)
        running.until_step(20000, limit=240)  # some 14 MB of lines, more than the coordinator queues for one watcher
        for pid in running.ranks().values():
            os.kill(pid, signal.SIGSTOP)  # so that no new line wakes anybody
        self.assertEqual([next(lazy).step for _ in range(20000)], list(range(1, 20001)))
        lazy.cancel()
        for pid in running.ranks().values():
            os.kill(pid, signal.SIGCONT)

    def test_many_at_once(self):
        running = self.begin()
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: stub.GetStatus(control_pb2.GetStatusRequest(), timeout=20), range(200)))
        self.assertEqual({answer.job for answer in answers}, {"gpt"})

    def test_a_token_is_wanted_over_tcp(self):
        running = self.begin(control={"listen": "tcp://127.0.0.1:0"})
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        request = control_pb2.GetStatusRequest()
        token = running.connection()["token"]
        for given in (None, f"Bearer {token[:-1]}x", token, "Bearer"):
            metadata = [("authorization", given)] if given is not None else None
            self.refused(grpc.StatusCode.UNAUTHENTICATED, lambda: stub.GetStatus(request, metadata=metadata, timeout=10))
        status = stub.GetStatus(request, metadata=[("authorization", f"Bearer {token}")], timeout=10)
        self.assertEqual(status.job, "gpt")

    def test_joining_needs_the_secret(self):
        running = self.begin()
        stub = workers_pb2_grpc.WorkersStub(self.channel(running))
        hello = workers_pb2.WorkerMessage(hello=workers_pb2.Hello(rank=0, ranks=2))
        for metadata in (None, [("gacc-secret-bin", bytes(32))], [("gacc-secret-bin", b"short")]):
            self.refused(grpc.StatusCode.UNAUTHENTICATED,
                         lambda: list(stub.Join(iter([hello]), metadata=metadata, timeout=10)))
        running.until_step(len(running.log("step")) + 3)  # the job does not mind

    def test_what_does_not_exist(self):
        running = self.begin()
        unknown = self.channel(running).unary_unary("/gacc.v1.Control/Nonsense", request_serializer=bytes,
                                                  response_deserializer=bytes)
        self.refused(grpc.StatusCode.UNIMPLEMENTED, lambda: unknown(b"", timeout=10))
        nonsense = self.channel(running).unary_unary("/gacc.v1.Control/GetStatus", request_serializer=bytes,
                                                     response_deserializer=bytes)
        self.refused(grpc.StatusCode.INVALID_ARGUMENT, lambda: nonsense(b"\xff\xff\xff", timeout=10))
        running.until_step(len(running.log("step")) + 3)


if __name__ == "__main__":
    harness.main()
