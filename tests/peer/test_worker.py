"""Ranks that are not gaccd's: a linear model in numpy whose job is the same to the last bit, log and checkpoints included."""
import os
import signal
import sys

try:
    import grpc  # noqa: F401
    import mpi4py  # noqa: F401
    import xxhash  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import control
import harness
import stubs
import toys

HERE = os.path.dirname(os.path.abspath(__file__))

# One input of a row is not 0; weights of 0, 1, 2 and a half. 14 rows: the third batch of 5 is short.
ROWS = [([1, 2, 0, 0.5][i % 4], *((-1) ** i * (0.3 + 0.1 * i) if k == i % 3 else 0 for k in range(3)), 0.7 - 0.2 * i)
        for i in range(14)]
LINEAR = {"type": "linear", "inputs": 3, "init": {"values": {"weight": [0.3, -0.2, 0.1], "bias": [0.05]}}}
# Products with powers of two are exact: gaccd's kernels may contract them with the addition that follows, or not.
SGD = {"type": "sgd", "lr": 2**-4, "momentum": 0.5, "weight_decay": 2**-5, "clip_norm": 0.3}
ADAMW = {"type": "adamw", "lr": 0.02, "weight_decay": 0.1, "clip_norm": 0.5}


class Mixed(control.Steered):
    """Jobs whose ranks are of several programs."""

    def setUp(self):
        super().setUp()
        self.environment["PYTHONPATH"] = os.pathsep.join([stubs.directory.name, HERE])
        self.rows = ROWS
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def mpirun(self, job, ranks, output, arguments=()):
        """ranks: in their order, gaccd or the name of a worker here."""
        if job["data"]["format"] == "csv":
            self.write("data.csv", toys.csv_text(job, self.rows))
        command = self.command(job, 0, arguments, output)
        line = ["mpirun"]
        for rank in ranks:
            part = command if rank == "gaccd" else ["/usr/bin/python3", os.path.join(HERE, f"{rank}_worker.py")]
            line += (["-n", "1"] if line[-1] == "mpirun" else [":", "-n", "1"]) + part
        return harness.Running(self, line, output)

    def outcome(self, job, ranks, output, arguments=(), expect=0):
        done = self.mpirun(job, ranks, output, arguments).wait(60)
        self.assertEqual(done.status, expect, done.err)
        return toys.Outcome(done, os.path.join(self.directory, output))

    def linear(self, **sections):
        job = toys.job_of(LINEAR, steps=12, batch=5, micro=1, **sections)
        job["data"].update(train="data.csv", order="shuffled")
        return job

    def both(self, job, ranks, arguments=()):
        """The job with gaccd's ranks alone, and with these."""
        return self.outcome(job, ["gaccd"] * len(ranks), "alone", arguments), self.outcome(job, ranks, "mixed", arguments)


class Linear(Mixed):
    def assert_same(self, alone, mixed):
        """All bits of the final parameters, and all fields of the log but the seconds."""
        for name, values in alone.tensors.items():
            self.assertEqual(mixed.tensors[name].tobytes(), values.tobytes(), name)
        self.assertEqual([without_seconds(record) for record in mixed.steps + mixed.evaluations],
                         [without_seconds(record) for record in alone.steps + alone.evaluations])

    def test_sgd_is_the_same_to_the_last_bit(self):
        alone, mixed = self.both(self.linear(optimizer_=SGD), ["gaccd", "linear"])
        self.assert_same(alone, mixed)
        self.assertEqual(alone.column("accumulate")[:3], [[3, 2], [3, 2], [2, 2]])
        self.assertEqual({coefficient < 1 for coefficient in alone.column("clip_coefficient")}, {True, False})

    def test_three_ranks_with_micro_batch_weighting_and_an_evaluation_are_the_same_to_the_last_bit(self):
        """The last rank owns no parameter."""
        job = self.linear(optimizer_=SGD, batch_={"weighting": "microbatch"}, evaluation={"every": 4})
        job["data"]["validation"] = "data.csv"
        alone, mixed = self.both(job, ["gaccd", "linear", "linear"])
        self.assert_same(alone, mixed)
        self.assertEqual(len(alone.evaluations), 3)

    def test_over_tcp_it_takes_the_coordinators_certificate(self):
        """gaccd's own ranks do, too: whatever is TCP is TLS."""
        job = self.linear(optimizer_=SGD)
        alone = self.outcome(job, ["gaccd", "gaccd"], "alone")
        job["control"] = {"workers": "tcp://127.0.0.1:0"}
        self.assert_same(alone, self.outcome(job, ["gaccd", "linear"], "mixed"))

    def test_adamw_differs_by_roundings(self):
        job = self.linear(optimizer_=ADAMW, schedule={"type": "cosine", "warmup": 3, "minimum": 0.001})
        alone, mixed = self.both(job, ["gaccd", "linear"])
        for name, values in alone.tensors.items():
            self.assert_near(mixed.tensors[name], values, 3e-8)
        self.assertEqual((mixed.verdicts(), mixed.column("lr")), ("A" * 12, alone.column("lr")))
        for column in ("loss", "grad_norm", "clip_coefficient"):
            self.assert_close(mixed.column(column), alone.column(column), 1e-6)

    def test_checkpoints_are_the_same_files_and_go_on(self):
        job = self.linear(optimizer_=SGD, checkpoint={"every": 5})
        alone, mixed = self.both(job, ["gaccd", "linear"])
        self.assert_same(alone, mixed)
        for name in ("model", "optimizer-00000-of-00002", "optimizer-00001-of-00002"):
            files = [os.path.join(self.directory, run, "checkpoints/step-00000005", f"{name}.safetensors") for run in ("alone", "mixed")]
            self.assertEqual(*map(bytes_of, files), name)
        checkpoint = os.path.join(self.directory, "mixed/checkpoints/step-00000005")
        self.assertEqual(self.call(harness.GACCD, "inspect", checkpoint).status, 0)
        resumed = self.outcome(job, ["gaccd", "linear"], "resumed", ["--resume", checkpoint])
        self.assertEqual(resumed.steps[0]["optimizer_steps"], 6)
        self.assertEqual(resumed.weight.tobytes(), alone.weight.tobytes())
        again = self.mpirun(job, ["gaccd", "linear"], "resumed").wait(30)
        self.assertEqual((again.status, again.own_lines()), (0, ["gaccd: resumed: already finished"]))

    def test_a_pause_with_a_checkpoint_in_it_changes_nothing(self):
        job = self.linear(optimizer_=SGD)
        job["job"]["steps"] = 1000
        alone = self.outcome(job, ["gaccd", "gaccd"], "alone")
        running = self.met(self.mpirun(job, ["gaccd", "linear"], "mixed"), step=1)
        stub = self.stub(running)
        held = self.pause(stub)
        harness.until(lambda: {rank.state for rank in self.status(stub).ranks} == {stubs.workers_pb2.STATE_PAUSED}, 10, "paused")
        self.assertEqual(self.checkpoint(stub).effect.step, held.step)
        self.assertEqual(self.resume(stub).step, held.step)
        mixed = toys.Outcome(self.end(running, 0), running.output)
        self.assertLess(held.step, 1000)
        self.assert_same(alone, mixed)

    def test_what_a_worker_cannot_do_it_says_in_its_hello(self):
        done = self.mpirun(self.linear(precision_={"reduce": "bf16"}), ["gaccd", "linear"], "run").wait(60)
        self.assertEqual((done.status, self.result()["exit"]), (78, 78))
        self.assertEqual(done.own_lines(), ["gaccd: rank 1: this worker knows neither precision.reduce: bf16 nor control.self_check"])

    def test_a_collective_call_that_it_leaves_out_ends_the_job_within_the_timeout(self):
        timeout = 5 * harness.SLOWER
        done = self.mpirun(self.linear(optimizer_=SGD, control={"timeout": timeout}), ["gaccd", "forgetful"], "run").wait(30)
        reason = (f"rank 0: step 3: has waited {timeout:g} s (control.timeout) in the reduction, which rank 1 has left: "
                  "they do not make the same collective calls")
        self.assertEqual((self.result()["exit"], self.result()["reason"]), (70, reason))
        self.assertNotEqual(done.status, 0)
        self.assertEqual(done.own_lines()[-1], f"gaccd: {reason}")

    def test_its_death_is_seen(self):
        job = self.linear(optimizer_=SGD)
        job["job"]["steps"] = 10**9
        running = self.mpirun(job, ["gaccd", "linear"], "run").until_step(5)
        (worker,) = (pid for pid in self.processes() if harness.read_proc(pid, "cmdline").startswith("/usr/bin/python3"))
        os.kill(worker, signal.SIGKILL)
        self.assertNotEqual(running.wait(20).status, 0)
        self.assertEqual(self.result()["exit"], 70)
        self.assertIn("rank 1: its process ended", self.result()["reason"])


def bytes_of(path):
    with open(path, "rb") as file:
        return file.read()


def without_seconds(record):
    return {key: value for key, value in record.items() if key != "seconds"}


if __name__ == "__main__":
    harness.main()
