"""A paused job waits between two steps as long as it takes, does what it is asked to, and goes on as if it had never waited."""
import os
import signal
import time

import checkpoints
import control
import harness
import toys
from control import REFUSED, slow_tape
from stubs import control_pb2, workers_pb2

PAUSED = workers_pb2.STATE_PAUSED


def model(steps):
    """Everything that a pause could disturb: a scale that moves, skips, moments, dropout, an order, a schedule, evaluations."""
    return toys.gpt(65, context=32, width=32, steps=steps, batch=8, micro=1, optimizer="adamw", lr=1e-2, compute="fp16",
                    model_={"dropout": 0.1}, scale={"initial": 2**17, "interval": 3}, optimizer_={"clip_norm": 0.5},
                    schedule={"type": "cosine", "warmup": 3, "minimum": 1e-3}, data={"order": "shuffled", "validation": 0.2},
                    evaluation={"every": 7, "sequences": 4}, checkpoint={"every": 10})


def facts(records):
    """All that is bit by bit the same in every run of a job."""
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records
            if record["type"] in ("step", "eval", "event")]


class Pausing(control.Steered):
    def bytes_of(self, output, ranks):
        with open(os.path.join(self.directory, output, "final", "model.safetensors"), "rb") as file:
            model = file.read()
        return model, checkpoints.contents(self.directory_of(output), checkpoints.name_of(40))

    def test_log_and_weights_are_those_of_a_run_that_never_waited(self):
        self.write("data", toys.tokens(3000))
        job = model(40)
        job["data"]["train"] = "data"
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                whole, paused = f"whole{ranks}", f"paused{ranks}"
                self.assertEqual(self.run_job(job, ranks=ranks, output=whole).status, 0)
                running = self.met(self.start(job, ranks=ranks, output=paused))
                stub, behind = self.stub(running), []
                for _ in range(12):  # over an evaluation and a checkpoint
                    behind.append(self.pause(stub).step)
                    time.sleep(0.03)
                    self.assertEqual(self.status(stub).phase, "paused")
                    self.assertEqual(self.resume(stub).step, behind[-1])
                self.end(running, 0)
                print(f"{ranks} ranks: paused behind {behind}")
                self.assertLess(behind[-1], 40)
                self.assertEqual(facts(running.log()), facts(harness.read_log(self.directory_of(whole))))
                self.assertEqual(self.bytes_of(paused, ranks), self.bytes_of(whole, ranks))

    def test_ranks_stay_alive_for_longer_than_the_timeout(self):
        running = self.begin(slow_tape(ranks=2, control={"timeout": harness.SLOWER}), ranks=2)
        stub = self.stub(running)
        effect = self.pause(stub)
        harness.until(lambda: all(rank.state == PAUSED for rank in self.status(stub).ranks), 5, "the state")
        time.sleep(3 * harness.SLOWER)
        status, log = self.status(stub), running.log("step")
        self.assertEqual((status.phase, status.step, len(log)), ("paused", effect.step, effect.step))
        self.assertLess(max(rank.seconds_since_heard for rank in status.ranks), 1)
        self.assertGreater(min(rank.seconds_in_state for rank in status.ranks), 2.5)
        self.resume(stub)
        running.until_step(effect.step + 2)
        self.assertLess(max(step["seconds"]["since_last_step"] for step in running.log("step")), 3)

    def test_a_paused_job_saves_once_and_stops(self):
        job = slow_tape(steps=12, lr=1, batch=2 * control.SLOW)
        rows = [(1, 1.0, 1.0)] * 2 * control.SLOW
        whole = self.train_into("whole", job, rows, 2)
        running = self.begin(job, ranks=2)
        stub = self.stub(running)
        here = self.pause(stub)
        self.assertEqual(self.pause(stub), here)
        saved = self.checkpoint(stub)
        self.assertEqual((saved.effect, saved.name), (here, checkpoints.name_of(here.optimizer_steps)))
        made = os.stat(checkpoints.path(running.output, saved.name, "manifest.json")).st_mtime_ns
        self.assertEqual(self.checkpoint(stub), saved)
        os.kill(running.ranks()[1], signal.SIGUSR1)
        time.sleep(0.3)
        self.assertEqual(self.status(stub).phase, "paused")
        self.assertEqual(self.stop(stub), here)
        self.end(running, 75)
        self.assertEqual(checkpoints.names(running.output), [saved.name])
        self.assertEqual(os.stat(checkpoints.path(running.output, saved.name, "manifest.json")).st_mtime_ns, made)
        self.assertEqual(self.result()["checkpoint"], saved.name)
        self.assertEqual([record["method"] for record in self.controls(running)],
                         ["Pause", "Pause", "Checkpoint", "Checkpoint", "Stop"])
        rest = self.train_into("run", job, rows, 2)
        self.assertEqual(rest.weight.tobytes(), whole.weight.tobytes())

    def test_signals(self):
        """USR1 saves, TERM saves and ends, at once."""
        running = self.begin(slow_tape(ranks=2), ranks=2)
        stub = self.stub(running)
        name = checkpoints.name_of(self.pause(stub).optimizer_steps)
        os.kill(running.ranks()[0], signal.SIGUSR1)
        harness.until(lambda: checkpoints.names(running.output) == [name], 10, "a checkpoint")
        self.resume(stub)
        name = checkpoints.name_of(self.pause(stub).optimizer_steps)
        os.kill(running.ranks()[1], signal.SIGTERM)
        self.end(running, 75)
        self.assertEqual((self.result()["checkpoint"], checkpoints.names(running.output)[-1]), (name, name))
        self.assertIn("rank 1: interrupted by SIGTERM", self.result()["reason"])

    def test_a_dead_rank_ends_a_paused_job(self):
        running = self.begin(slow_tape(ranks=2), ranks=2)
        self.pause(self.stub(running))
        os.kill(running.ranks()[1], signal.SIGKILL)
        running.wait()
        self.assertEqual(self.result()["exit"], 70)
        self.assertIn("rank 1: its process ended", self.result()["reason"])

    def test_finish(self):
        running = self.begin(slow_tape(lr=1))
        stub = self.stub(running)
        here = self.pause(stub)
        self.assertEqual(self.stop(stub, finish=True), here)
        self.end(running, 0)
        self.assert_near(self.weight(), -here.optimizer_steps, 0)

    def test_what_cannot_be(self):
        running = self.begin(slow_tape())
        stub = self.stub(running)
        self.assertEqual(self.refused(REFUSED, lambda: self.resume(stub)), "the job is not paused")
        with running.held():
            pause = stub.Pause.future(control_pb2.PauseRequest(), timeout=60)
            harness.until(lambda: list(self.status(stub).requests) == ["pause"], 20, "the request")
            resume = stub.Resume.future(control_pb2.ResumeRequest(), timeout=60)
            self.assertIn("Resume came before", self.refused(control.grpc.StatusCode.ABORTED, pause.result))
        effect = resume.result()
        running.until_step(effect.step + 1)
        with running.held():
            stop = stub.Stop.future(control_pb2.StopRequest(), timeout=60)
            harness.until(lambda: "stop" in self.status(stub).requests, 20, "the request")
            self.assertIn("asked to stop", self.refused(REFUSED, lambda: self.pause(stub)))
        stop.result()
        self.end(running, 75)
        log = [(record["method"], record["accepted"]) for record in self.controls(running)]
        self.assertEqual(log, [("Resume", False), ("Pause", False), ("Resume", True), ("Pause", False), ("Stop", True)])

    def test_before_the_first_step(self):
        running, late = self.held_back(slow_tape(ranks=2, steps=3))
        stub = self.stub(running)
        pause = stub.Pause.future(control_pb2.PauseRequest(), timeout=60)
        harness.until(lambda: list(self.status(stub).requests) == ["pause"], 10, "the request")
        os.kill(late, signal.SIGCONT)
        self.assertEqual(pause.result(), control_pb2.Effect())
        self.assertIn("nothing to save", self.refused(REFUSED, lambda: self.checkpoint(stub)))
        self.assertEqual((self.status(stub).phase, self.status(stub).step), ("paused", 0))
        self.resume(stub)
        self.end(running, 0)
        self.assertEqual([step["step"] for step in running.log("step")], [1, 2, 3])


if __name__ == "__main__":
    harness.main()
