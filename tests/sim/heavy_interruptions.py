"""What ends and interrupts jobs on simulated GPUs, beside the faults that test_faults.py has in every run: a rank that stands
still for a while or for ever, signals in a step, kills at any moment, and the same command that goes on to the same bytes."""
import os
import random
import shutil
import signal
import sys
import time

import harness
import toys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fault"))
import faults  # noqa: E402

RANKS, STEPS = 2, 12
KILLS = 6


class Interruptions(faults.Faults, toys.Training):
    def setUp(self):
        super().setUp()
        self.environment.pop("OMPI_MCA_odls_base_sigkill_timeout")  # who is left has a word to say
        self.write("data", toys.tokens(8 * 4000 + 1))

    def job(self, steps=STEPS, **keys):
        job = toys.gpt(context=8, width=16, layers=2, batch=8, micro=2, steps=steps, optimizer="adamw", compute="fp16",
                       scale={"initial": 2**20, "interval": 3}, lr=1e-3, model_={"dropout": 0.1}, data_={"order": "shuffled"}, **keys)
        job["data"]["train"] = "data"
        return job

    def begin(self, job, output="run", until=2):
        return self.start(job, ranks=RANKS, output=output).until_step(until, limit=60 * harness.PATIENCE)

    def model(self, output):
        with open(os.path.join(self.directory, output, "final", "model.safetensors"), "rb") as file:
            return file.read()

    def whole(self, job):
        done = self.run_job(job, ranks=RANKS, output="whole", limit=60 * harness.PATIENCE)
        self.assertEqual(done.status, 0, done.err)
        self.assertIn("simulated", self.log("header", "whole")[0]["device"])
        return self.model("whole"), self.steps("whole")

    def steps(self, output):
        """The last record of every attempt, without times."""
        records = {record["step"]: record for record in self.log("step", output)}
        return [{key: value for key, value in record.items() if key != "seconds"} for record in records.values()]

    def test_a_rank_that_stands_still_is_told_of_and_goes_on(self):
        running = self.begin(self.job(steps=1000))
        rank = running.ranks()[1]
        os.kill(rank, signal.SIGSTOP)
        harness.until(lambda: "silent" in running.said()[1], 20 * harness.PATIENCE, "word of the silence")
        reached = running.log("step")[-1]["step"]
        os.kill(rank, signal.SIGCONT)
        running.until_step(reached + 3, limit=60 * harness.PATIENCE)
        os.kill(rank, signal.SIGTERM)
        self.assertEqual(running.wait(60 * harness.PATIENCE).status, 75)

    def test_a_rank_that_stands_still_for_ever_ends_all(self):
        running = self.begin(self.job(steps=1000, control={"timeout": 4}))
        os.kill(running.ranks()[1], signal.SIGSTOP)
        done = running.wait(60 * harness.PATIENCE)
        self.assertNotEqual(done.status, 0)
        self.assertIn("rank 1", self.result()["reason"])

    def test_a_signal_in_a_step_saves_and_the_same_command_goes_on(self):
        """To a rank, to the coordinator and, passed on at once, to mpirun."""
        job = self.job(checkpoint={"every": 100})
        wanted = self.whole(job)
        for output, number in (("rank", signal.SIGTERM), ("coordinator", signal.SIGTERM), ("mpirun", signal.SIGUSR2)):
            running = self.begin(job, output)
            pid = {"rank": running.ranks()[1], "coordinator": running.connection()["pid"], "mpirun": running.process.pid}[output]
            os.kill(pid, number)
            done = running.wait(60 * harness.PATIENCE)
            self.assertEqual(done.status, 75, done.err)
            self.assertIn("is complete", done.err)
            done = self.run_job(job, ranks=RANKS, output=output, limit=60 * harness.PATIENCE)
            self.assertEqual(done.status, 0, done.err)
            self.assertEqual((self.model(output), self.steps(output)), wanted)

    def test_kills_at_any_moment_lose_no_bit(self):
        """Of a rank, of the coordinator, of all, while steps run and while they are saved."""
        job = self.job(checkpoint={"every": 1, "keep": 2})
        wanted = self.whole(job)
        chance = random.Random(7)
        for kill in range(KILLS):
            running = self.begin(job, until=2)
            harness.until(lambda: self.log("checkpoint", "run"), 60 * harness.PATIENCE, "a checkpoint")
            time.sleep(chance.uniform(0, 0.5))
            victims = ([running.ranks()[kill % RANKS]], [running.connection()["pid"]], self.processes())[kill % 3]
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            self.assertNotEqual(running.wait(60 * harness.PATIENCE).status, 0)
            self.assertEqual(harness.until_empty(self.processes, 20), [])
            self.clear_up()
            done = self.run_job(job, ranks=RANKS, limit=60 * harness.PATIENCE)
            self.assertEqual(done.status, 0, done.err)
            self.assertNotEqual(self.log("header", "run")[-1]["resumed_from"], None)
            self.assertEqual((self.model("run"), self.steps("run")), wanted)
            shutil.rmtree(os.path.join(self.directory, "run"))


if __name__ == "__main__":
    harness.main()
