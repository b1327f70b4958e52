"""Signals, stopped processes, and deaths while a job starts or ends."""
import os
import random
import shutil
import signal
import time

import faults
import harness


class Stops(faults.Faults):
    def coordinator(self):
        return next((pid for pid in self.processes() if harness.name_of(pid) == "gaccd-coord"), None)

    def test_a_signal_to_a_rank_ends_all(self):
        job = self.gpt(steps=faults.FOREVER)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            running = self.start(job, output=f"run{number}").until_step(3)
            os.kill(running.ranks()[1], number)
            done = self.ended(running, time.monotonic())
            self.assertIn(done.status, (70, 128 + number))  # whether mpirun sees the death or MPI_Abort first
            self.check_line(done, done.status, "rank 1: its process ended")
            self.check_result(70, "rank 1: its process ended", f"run{number}")

    def test_a_signal_to_the_launcher_ends_all(self):
        job = self.gpt(steps=faults.FOREVER)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            running = self.start(job, output=f"run{number}").until_step(3)
            os.kill(running.process.pid, number)
            done = self.ended(running, time.monotonic())
            self.assertEqual(done.status, 128 + number if number == signal.SIGUSR1 else 1, done.err)  # mpirun passes on USR1
            self.assertLessEqual(len(done.own_lines()), 1, done.err)
            self.check_result(70, "its process ended", f"run{number}")

    def test_a_coordinator_killed_before_the_ranks_join(self):
        job = self.gpt(steps=faults.FOREVER)
        for ranks in (2, 0):
            running = self.start(job, ranks=ranks)
            harness.until(lambda: os.path.exists(os.path.join(running.output, "connection.json")), 20, "a coordinator")
            os.kill(running.connection()["pid"], signal.SIGKILL)
            done = self.ended(running, time.monotonic())
            self.check_line(done, 70, "rank 0: the coordinator is gone")
            self.check_result(70, "the coordinator is gone")
            self.check_nothing_is_left()

    def test_a_coordinator_killed_as_soon_as_it_lives(self):
        job = self.gpt(steps=faults.FOREVER)
        for _ in range(5):
            running = self.start(job, ranks=0)
            while not (pid := self.coordinator()) and running.process.poll() is None:
                pass
            os.kill(pid, signal.SIGKILL)
            self.check_line(self.ended(running, time.monotonic()), 70, "coordinator")
            self.check_nothing_is_left()

    def test_a_coordinator_that_stops_is_ended(self):
        running = self.start(self.gpt(steps=faults.FOREVER), arguments=["--set", "control.timeout=1"]).until_step(3)
        os.kill(running.connection()["pid"], signal.SIGSTOP)
        done = self.ended(running, time.monotonic() + 1)
        self.check_line(done, 70, "the coordinator is gone: it has not answered for 1 s")
        self.check_result(70, "has not answered")

    def test_a_rank_that_is_stopped_for_less_than_the_timeout_goes_on(self):
        running = self.start(self.gpt(steps=100), arguments=["--set", "control.timeout=10"]).until_step(3)
        os.kill(running.ranks()[1], signal.SIGSTOP)
        time.sleep(1)
        os.kill(running.ranks()[1], signal.SIGCONT)
        self.assertEqual(running.wait().status, 0)

    def test_a_job_stopped_as_a_whole_ends_when_it_wakes(self):
        running = self.start(self.gpt(steps=faults.FOREVER), ranks=0, arguments=["--set", "control.timeout=1"]).until_step(3)
        os.kill(running.process.pid, signal.SIGSTOP)
        harness.until(lambda: os.path.exists(os.path.join(running.output, "result.json")), 10, "a result")
        os.kill(running.process.pid, signal.SIGCONT)
        done = self.ended(running, time.monotonic())
        self.check_line(done, 70, "rank 0: was silent for 1 s (control.timeout)")
        self.check_result(70, "was silent for 1 s")

    def test_deaths_at_the_end(self):
        """While the model is written, and after it."""
        chance = random.Random(1)
        for victim in (0, 1, "coordinator"):
            job = self.gpt(steps=30)
            running = self.start(job).until_step(28)
            pid = running.connection()["pid"] if victim == "coordinator" else running.ranks().get(victim)
            time.sleep(0.05 * chance.random())
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, TypeError):
                pass  # it was over
            done = self.ended(running, time.monotonic())
            self.assertLessEqual(len(done.own_lines()), 1, done.err)
            self.assertIn("exit", self.result())
            shutil.rmtree(running.output)


if __name__ == "__main__":
    harness.main()
