"""WatchSteps with as many watchers as there may be, and with lines of any length."""
import json
import os
import selectors
import time

import grpc

import harness
import http2
from stubs import control_pb2, control_pb2_grpc

WATCHERS = 64
MESSAGE_CPU = 5e-6  # seconds of the coordinator, for a message to one watcher


def cpu_of(pid):
    """Seconds of all its threads."""
    return sum(int(harness.read_proc(pid, f"task/{thread}/schedstat").split()[0]) for thread in os.listdir(f"/proc/{pid}/task")) * 1e-9


class Watching(harness.Endless):
    def watchers(self, running, count, request):
        selector = selectors.DefaultSelector()
        for _ in range(count):
            watcher = http2.Watcher(running.connection()["endpoint"], request.SerializeToString())
            watcher.records = 0
            selector.register(watcher.sock, selectors.EVENT_READ, watcher)
            self.addCleanup(watcher.close)
        return selector, [key.data for key in selector.get_map().values()]

    def last_step(self, running):
        with grpc.insecure_channel(running.connection()["endpoint"]) as channel:
            return control_pb2_grpc.ControlStub(channel).GetStatus(control_pb2.GetStatusRequest(), timeout=20).step

    def read(self, selector, seconds):
        buffer, messages, end = bytearray(1 << 20), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for key, _ in selector.select(0.05):
                count = key.data.take(buffer)
                key.data.records += count
                messages += count
        return messages

    def test_64_watchers_miss_nothing_and_cost_five_microseconds_a_message_at_most(self):
        job, text = harness.tape(steps=10**9)
        self.write("tape.csv", text)
        running = self.start(job).until_step(50)
        pid = running.connection()["pid"]
        selector, watchers = self.watchers(running, WATCHERS, control_pb2.WatchStepsRequest(from_step=40))
        self.read(selector, 0.5)
        began, before = cpu_of(pid), self.last_step(running)
        messages = self.read(selector, 2)
        each = (cpu_of(pid) - began) / messages  # what the steps cost by themselves included
        self.assertGreaterEqual(messages, WATCHERS * (self.last_step(running) - before) / 2)
        self.assertLess(each, MESSAGE_CPU * harness.SLOWER)
        log = running.log("step")
        for watcher in watchers:  # from 40 on, each step once
            record = control_pb2.StepRecord.FromString(watcher.last)
            self.assertEqual(record.step, 39 + watcher.records)
            self.assertEqual(json.loads(record.json), log[record.step - 1])

    def test_one_more_is_refused(self):
        job, text = harness.tape(steps=10**9)
        self.write("tape.csv", text)
        running = self.start(job).until_step(1)
        self.read(self.watchers(running, WATCHERS, control_pb2.WatchStepsRequest())[0], 0.5)
        with grpc.insecure_channel(running.connection()["endpoint"]) as channel:
            with self.assertRaises(grpc.RpcError) as caught:
                next(control_pb2_grpc.ControlStub(channel).WatchSteps(control_pb2.WatchStepsRequest(), timeout=10))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_lines_of_any_length(self):
        """A skip names all sequences of its micro-batch: 0.1 MiB are sent, 1 MiB and more are left out, and the others are not affected."""
        steps = 30
        for rows, odd in ((3000, list(range(1, 2 * steps, 2))), (30000, [])):
            job, text = harness.tape(steps=steps, rows=[(1, "inf", 1)] + [(1, 1, 1)] * (2 * rows - 1))
            job["batch"] = {"global": rows, "micro": rows}
            self.write("tape.csv", text)
            running = self.start(job, ranks=0, output=f"run{rows}").meet()
            with grpc.insecure_channel(running.connection()["endpoint"]) as channel:
                stub = control_pb2_grpc.ControlStub(channel)
                watching = stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1), timeout=60 * harness.SLOWER)
                stub.GetStatus(control_pb2.GetStatusRequest(), timeout=10)
                running.let_go()
                records = list(watching)
            self.assertEqual(running.wait().status, 0)
            self.assertEqual([record.step for record in records], sorted(odd + list(range(2, 2 * steps + 1, 2))))
            log = running.log("step")
            self.assertEqual([record["verdict"] for record in log], ["skip", "apply"] * steps)
            for record in records:
                self.assertEqual(json.loads(record.json), log[record.step - 1])

    def to_the_end(self, sock):
        """Everything until the server has closed its side, after which what comes to it is no error for a second."""
        data, pong = b"", http2.frame(http2.PING, http2.ACK, payload=bytes(8))
        sock.setblocking(True)
        while more := sock.recv(1 << 16):
            data += more
            if http2.frame(http2.PING, payload=bytes(8)) in more:  # goes with GOAWAY
                sock.sendall(pong)
        for _ in range(3):
            sock.sendall(pong)
        return data

    def test_clients_may_send_until_they_have_read_the_end(self):
        """Some drop what they have not read when a write fails; the job's end is such an end, too."""
        job, text = harness.tape(steps=5)
        self.write("tape.csv", text)
        running = self.start(job).meet()
        sock = http2.connect(running.connection()["endpoint"])
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        self.assertTrue(self.to_the_end(sock).startswith(b"HTTP/1.1 "))

        def is_closed():
            try:
                sock.sendall(b"x")
            except ConnectionError:
                return True
            return False

        harness.until(is_closed, 5, "the end of a connection that its client does not close")
        sock.close()
        watcher = http2.Watcher(running.connection()["endpoint"], control_pb2.WatchStepsRequest(from_step=1).SerializeToString())
        running.let_go()
        frames, rest = http2.split(self.to_the_end(watcher.sock))
        watcher.close()
        self.assertEqual(running.wait().status, 0)
        self.assertEqual(rest, b"")
        self.assertIn(http2.GOAWAY, [frame[0] for frame in frames])
        bodies, rest = http2.split_messages(b"".join(payload for kind, _, _, payload in frames if kind == http2.DATA))
        self.assertEqual(rest, b"")
        records = [json.loads(control_pb2.StepRecord.FromString(body).json) for body in bodies]
        self.assertEqual(records, running.log("step"))


if __name__ == "__main__":
    harness.main()
