"""Deaths at random moments of a job's start, steps, evaluation and end. GACC_SEED chooses the moments; 1 when it is not set."""
import os
import random
import shutil
import signal
import time

import faults
import harness

TRIALS = int(os.environ.get("GACC_TRIALS", "20"))


class Deaths(faults.Faults):
    def victim(self, job, who):
        """Its process id; None before it lives."""
        if who == "mpirun":
            return job.process.pid
        if who == "coordinator":
            return next((pid for pid in self.processes() if harness.name_of(pid) == "gaccd-coord"), None)
        return job.ranks().get(who)

    def kill(self, job, who, output):
        """Whenever it is alive; everything ends, with one line at most, and a result if the job's directory was made."""
        deadline = time.monotonic() + 10
        while not (pid := self.victim(job, who)) and job.process.poll() is None and time.monotonic() < deadline:
            pass
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        since = time.monotonic()
        harness.until_empty(lambda: [each for each in self.processes() if each != job.process.pid], 10)
        try:
            job.process.wait(5)
        except harness.subprocess.TimeoutExpired:
            who = "mpirun"
            job.process.kill()  # when a rank dies while it connects, Open MPI 4.1's mpirun can wait for itself forever
            since = time.monotonic()
        done = self.ended(job, since)
        self.assertLessEqual(len(done.own_lines()), 1, done.err)
        if os.path.exists(os.path.join(job.output, "job.yaml")):
            result = self.result(output)
            self.assertIn((result["status"], result["exit"]), [("done", 0), ("failed", 70)], result)
        if who == "mpirun":  # killed before its ranks live it leaves its session
            for name in os.listdir(self.temporary):
                self.assertTrue(name.startswith("ompi."), name)
                shutil.rmtree(os.path.join(self.temporary, name))
        self.check_nothing_is_left(5)

    def sweep(self, start, longest, victims=("coordinator", 0, 1, "mpirun")):
        chance = random.Random(int(os.environ.get("GACC_SEED", "1")))
        for i in range(TRIALS):
            for who in victims:
                output = f"run-{i}-{who}"
                with self.subTest(trial=i, victim=who):
                    job = start(output)
                    time.sleep(harness.SLOWER * longest * chance.random())
                    self.kill(job, who, output)

    def test_while_it_starts(self):
        job = self.gpt(steps=faults.FOREVER)
        self.sweep(lambda output: self.start(job, output=output), 0.5)

    def test_in_steps_and_evaluations(self):
        job = self.gpt(steps=faults.FOREVER, evaluation={"every": 2})
        job["data"]["validation"] = 0.1
        self.sweep(lambda output: self.start(job, output=output).until_step(2), 0.3)

    def test_while_it_ends(self):
        job = self.gpt(steps=20)
        self.sweep(lambda output: self.start(job, output=output).until_step(18), 0.1)


if __name__ == "__main__":
    harness.main()
