"""A process dies in the middle of a job: one line says which, result.json is written, everything else ends and nothing is left."""
import os
import signal
import time

import harness

FOREVER = 10**9


class Deaths(harness.Scenario):
    def setUp(self):
        super().setUp()
        self.job, text = harness.gpt(steps=FOREVER)
        self.write("text.txt", text)

    def kill(self, pid, job, limit=harness.PROMPT):
        """Kills, and returns how the job ended; all of it is gone within the limit."""
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        done = job.wait(20)
        self.assertEqual(harness.until_empty(self.processes, 10), [])
        self.assertLess(time.monotonic() - began, limit)
        return done

    def check_result(self, words, status=70):
        result = self.result()
        self.assertEqual((result["status"], result["exit"]), ("failed", status))
        self.assertIn(words, result["reason"])
        self.assertGreaterEqual(result["optimizer_steps"], 3)

    def check_one_line(self, done, *words):
        lines = done.own_lines()
        self.assertEqual(len(lines), 1, done.err)
        for word in words:
            self.assertIn(word, lines[0])

    def test_killing_rank_1_ends_all_and_rank_0_says_so(self):
        job = self.start(self.job).until_step(3)
        done = self.kill(job.ranks()[1], job)
        self.assertEqual(done.status, 137)  # mpirun's own, for a rank that died by a signal
        self.check_one_line(done, "rank 1")
        self.check_result("rank 1")

    def test_killing_rank_0_ends_all_and_rank_1_says_so(self):
        job = self.start(self.job).until_step(3)
        done = self.kill(job.ranks()[0], job)
        self.assertEqual(done.status, 137)
        self.check_one_line(done, "rank 0")
        self.check_result("rank 0")

    def test_killing_one_of_three(self):
        job = self.start(self.job, ranks=3).until_step(3)
        done = self.kill(job.ranks()[2], job)
        self.check_one_line(done, "rank 2")
        self.check_result("rank 2")

    def test_over_sockets_no_thread_but_the_main_one_calls_mpi(self):
        """A reduction that meets the dead rank's socket prints a message of Open MPI's; so did MPI_Abort, beside it: a
        segmentation fault, now and then."""
        self.environment["OMPI_MCA_btl"] = "self,tcp"
        job = self.start(self.job, ranks=3).until_step(3)
        done = self.kill(job.ranks()[2], job)
        self.assertEqual(done.status, 137)
        self.check_one_line(done, "rank 2")
        self.assertNotIn("MPI_ABORT was invoked", done.err)
        self.check_result("rank 2")

    def test_killing_the_coordinator(self):
        job = self.start(self.job).until_step(3)
        done = self.kill(job.connection()["pid"], job)
        self.assertEqual(done.status, 70)
        self.check_one_line(done, "rank 0", "coordinator is gone")
        self.check_result("coordinator is gone")

    def test_killing_mpirun(self):
        job = self.start(self.job).until_step(3)
        self.kill(job.process.pid, job, limit=harness.PROMPT + 1)
        self.check_result("rank")

    def test_killing_the_only_rank_without_mpirun(self):
        job = self.start(self.job, ranks=0).until_step(3)
        self.kill(job.process.pid, job)
        self.check_result("rank 0")

    def test_killing_the_coordinator_of_one_rank(self):
        job = self.start(self.job, ranks=0).until_step(3)
        done = self.kill(job.connection()["pid"], job)
        self.assertEqual(done.status, 70)
        self.check_one_line(done, "coordinator is gone")
        self.check_result("coordinator is gone")

    def test_a_rank_that_falls_silent(self):
        """It is spoken of after two seconds, if it has not been given up by then."""
        timeout = harness.SLOWER
        job = self.start(self.job, arguments=["--set", f"control.timeout={timeout:g}"]).until_step(3)
        os.kill(job.ranks()[1], signal.SIGSTOP)
        done = job.wait(20)
        self.assertEqual(done.status, 70)
        spoken_of = [f"gaccd: rank 1: silent for 2 s; lost after {timeout:g} s (control.timeout)"] * (timeout > 2)
        self.assertEqual(done.own_lines(), [*spoken_of, f"gaccd: rank 1: was silent for {timeout:g} s (control.timeout)"])
        self.check_result(f"rank 1: was silent for {timeout:g} s")

    def test_a_rank_that_never_comes(self):
        command = self.command(self.job, 1, ["--set", f"control.timeout={harness.SLOWER:g}"], "run")
        job = harness.Running(self, [*command, ":", "-n", "1", "sleep", "100"], "run")
        done = job.wait(20)
        self.assertEqual(done.status, 70)
        self.check_one_line(done, f"has not joined within {harness.SLOWER:g} s")
        self.assertEqual(self.result()["exit"], 70)


if __name__ == "__main__":
    harness.main()
