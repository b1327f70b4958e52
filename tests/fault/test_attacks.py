"""Two jobs under attack at every address (attacks.py), while others ask for their status: they train as if nobody were there, answer at
once, and hold no more memory than deploy/docs/control.md says."""
import concurrent.futures
import os
import sys
import threading
import time

import grpc

HERE = os.path.dirname(os.path.abspath(__file__))
PEER = os.path.join(os.path.dirname(HERE), "peer")
sys.path.insert(1, PEER)
import attacks
import control
import harness
import stubs
import toys
from stubs import control_pb2, control_pb2_grpc, workers_pb2, workers_pb2_grpc
from worker import open_channel

MEMORY = 96 << 20  # bytes; deploy/docs/control.md promises less than 256 MiB
ANSWER = harness.PROMPT + 1  # seconds, on connections that have to wait for the places of idle ones, too
LINEAR = {"type": "linear", "inputs": 3, "init": {"values": {"weight": [0.3, -0.2, 0.1], "bias": [0.05]}}}
ROWS = [(1, *((-1) ** i * (0.3 + 0.001 * i) if k == i % 3 else 0 for k in range(3)), 0.7 - 0.002 * i) for i in range(1024)]


def linear(steps, **sections):
    job = toys.job_of(LINEAR, steps=steps, batch=512, micro=1, **sections)
    job["optimizer"] = {"type": "sgd", "lr": 2**-6, "momentum": 0.5}
    job["data"].update(train="data.csv", order="shuffled")
    return job


def peak_memory(pid):
    return int(harness.read_proc(pid, "status").split("VmHWM:")[1].split()[0]) << 10


class Attacked:
    """A job, its addresses, and its status asked for again and again, on new connections and on one that stays."""

    def __init__(self, test, output, **sections):
        self.test, self.output, told = test, output, os.path.join(test.directory, output + ".told")
        test.environment["GACC_TOLD"] = told
        job = linear(10**9, **sections)
        test.write("data.csv", toys.csv_text(job, ROWS))
        telling = ["-n", "1", "/usr/bin/python3", os.path.join(HERE, "telling_worker.py")]
        self.running = harness.Running(test, [*test.command(job, 1, (), output), ":", *telling], output).until_step(3)
        with open(told, "rb") as file:
            self.invitation = workers_pb2.Invitation.FromString(file.read())
        self.connection = self.running.connection()
        self.memory = peak_memory(self.connection["pid"])
        token = self.connection["token"]
        self.metadata = [("authorization", f"Bearer {token}")] if token else None
        self.slowest, self.asked, self.over = 0.0, 0, threading.Event()
        self.asking = threading.Thread(target=self.ask_again_and_again)

    def targets(self):
        """Operators' address, and workers' where that is another."""
        trust = attacks.OPERATOR if self.metadata else attacks.OWNER
        yield attacks.Target(self.connection["endpoint"], trust, self.connection["token"])
        if self.invitation.addresses.startswith("tcp:"):
            yield attacks.Target(self.invitation.addresses, attacks.WORKER, invitation=self.invitation)

    def status(self, channel):
        stub = control_pb2_grpc.ControlStub(channel)
        return stub.GetStatus(control_pb2.GetStatusRequest(), metadata=self.metadata, timeout=20 * harness.SLOWER)

    def status_again(self, channel):
        """Whose connection gave its place away before the call was on it hears GOAWAY, and calls again."""
        for _ in range(3):
            try:
                return self.status(channel)
            except grpc.RpcError as error:
                if (error.code(), error.details()) != (grpc.StatusCode.UNAVAILABLE, "GOAWAY received"):
                    raise
        return self.status(channel)

    def ask_again_and_again(self):
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.connection["endpoint"]) as lasting:
            while not self.over.wait(0.05):
                with grpc.insecure_channel(self.connection["endpoint"], options) as fresh:
                    for channel in (lasting, fresh):
                        began = time.monotonic()
                        try:
                            self.status_again(channel)
                        except grpc.RpcError as error:
                            self.test.failures.append(f"{self.output}: GetStatus: {error.code().name}: {error.details()}")
                        self.slowest = max(self.slowest, time.monotonic() - began)
                        self.asked += 1

    def stop(self):
        """The number of steps."""
        with grpc.insecure_channel(self.connection["endpoint"]) as channel:
            return control_pb2_grpc.ControlStub(channel).Stop(control_pb2.StopRequest(finish=True), metadata=self.metadata, timeout=60).step

    def join(self, conversations):
        """What became of calls to Join through one connection, each with these messages."""
        codes = []
        with open_channel(self.invitation.addresses, self.invitation.certificate, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            for messages in conversations:
                call = workers_pb2_grpc.WorkersStub(channel).Join(iter(messages), metadata=[("gacc-secret-bin", self.invitation.secret)],
                                                                timeout=10 * harness.SLOWER)
                try:
                    codes.append(("OK", [message.WhichOneof("body") for message in call]))
                except grpc.RpcError as error:
                    codes.append((error.code().name, error.details()))
        return codes


class Attacks(control.Steered):
    def setUp(self):
        super().setUp()
        self.environment["PYTHONPATH"] = os.pathsep.join([stubs.directory.name, PEER, HERE])
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self.failures = []

    def hello(self, job, **but):
        digest = job.invitation.job.digest
        return workers_pb2.WorkerMessage(hello=workers_pb2.Hello(**{"rank": 1, "ranks": 2, "job_digest": digest, "host": "h", "pid": 1, **but}))

    def impostors(self, job):
        """Who has the secret and is no rank: refused by name."""
        refused = "FAILED_PRECONDITION"
        cases = (({}, "this rank has joined already"), ({"rank": 0}, "this rank has joined already"), ({"rank": 2}, "there is no such rank"),
                 ({"rank": 2**32 - 1}, "there is no such rank"), ({"ranks": 3}, "the number of ranks differs"),
                 ({"job_digest": bytes(32)}, "the job differs"), ({"job_digest": b""}, "the job differs"))
        for but, words in cases:
            self.assertEqual(job.join([[self.hello(job, **but)]] * 2), [(refused, words)] * 2)
        unexpected = ("INVALID_ARGUMENT", "not a message that is expected here")
        report = workers_pb2.WorkerMessage(report=workers_pb2.Report(step=1))
        self.assertEqual(job.join([[report], [workers_pb2.WorkerMessage()], [report, self.hello(job)]]), [unexpected] * 3)

    def attack(self, how, *jobs):
        def one(attack, target):
            try:
                if not attack(target, how):
                    self.failures.append(f"{attack.__name__} on {target.address}: not what it says")
            except OSError as error:
                self.failures.append(f"{attack.__name__} on {target.address}: {error!r}")

        targets = [target for job in jobs for target in job.targets()]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            done = [pool.submit(one, attack, target) for whom, attack in attacks.ATTACKS for target in targets if target.trust in whom]
            while concurrent.futures.wait(done, 0.05).not_done:
                how.tick()
        for each in done:
            each.result()

    def under_attack(self, how):
        jobs = [Attacked(self, "tcp", control={"listen": "tcp://127.0.0.1:0", "workers": "tcp://127.0.0.1:0"}), Attacked(self, "unix")]
        for job in jobs:
            job.asking.start()
        try:
            self.attack(how, *jobs)
            for job in jobs:
                self.impostors(job)
            for job in jobs:
                job.running.until_step(len(job.running.log("step")) + 3)
        finally:
            for job in jobs:
                job.over.set()
                job.asking.join()
            how.close()
        self.assertEqual(self.failures, [])
        for job in jobs:
            self.assertGreater(job.asked, 3)
            self.assertLess(job.slowest, ANSWER * harness.SLOWER, job.output)
            self.assertLess(peak_memory(job.connection["pid"]) - job.memory, MEMORY * harness.SLOWER, job.output)
        steps = [job.stop() for job in jobs]
        for job in jobs:
            self.end(job.running, 0)
        self.assertEqual(self.run_job(linear(max(steps)), output="alone", limit=120).status, 0)
        without = [dict(record, seconds=None) for record in self.log("step", output="alone")]
        for job, count in zip(jobs, steps):
            self.assertEqual([dict(record, seconds=None) for record in job.running.log("step")], without[:count])

    def test_every_attack_at_every_address(self):
        self.under_attack(attacks.How(seconds=10 * harness.SLOWER))


if __name__ == "__main__":
    harness.main()
