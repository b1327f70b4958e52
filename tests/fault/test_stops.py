"""Signals, stopped processes, and deaths while a job starts or ends."""
import contextlib
import json
import os
import random
import shutil
import signal
import time

import faults
import harness


def blocks(pid, number):
    """Whether a signal waits for a thread that takes it."""
    lines = harness.read_proc(pid, "status").splitlines()
    return any(line.startswith("SigBlk:") and int(line.split()[1], 16) >> (number - 1) & 1 for line in lines)


class Stops(faults.Faults):
    def coordinator(self):
        return next((pid for pid in self.processes() if harness.name_of(pid) == "gaccd-coord"), None)

    def test_a_signal_before_the_first_step(self):
        """While ranks start: the job file is a pipe, or MPI waits for a rank that never comes."""
        self.write("job.yaml", json.dumps(self.tape()))
        os.mkfifo(os.path.join(self.directory, "pipe"))
        writer = os.open(os.path.join(self.directory, "pipe"), os.O_RDWR)
        self.addCleanup(os.close, writer)
        waiting = self.start("pipe", ranks=0)
        harness.until(lambda: blocks(waiting.process.pid, signal.SIGTERM), 5, "a blocked signal")
        os.kill(waiting.process.pid, signal.SIGTERM)
        self.check_line(self.ended(waiting, time.monotonic()), 75, "rank 0: interrupted by SIGTERM before the first step")
        for ranks, mpirun in ((1, True), (1, False)):
            command = self.command("job.yaml", ranks, [], "run")
            other = 'trap "sleep 0.3; exit 1" TERM; sleep 100 & wait'  # leaves after rank 0, as ranks of gaccd would
            running = harness.Running(self, [*command, ":", "-n", "1", "bash", "-c", other], "run")
            harness.until(lambda: os.path.exists(os.path.join(running.output, "connection.json")), 20, "a coordinator")
            os.kill(running.process.pid if mpirun else running.ranks()[0], signal.SIGTERM)
            done = self.ended(running, time.monotonic())
            self.check_line(done, 1 if mpirun else 75, "rank 0: interrupted by SIGTERM before the first step")
            self.check_result(75, "rank 0: interrupted by SIGTERM before the first step")
            self.check_nothing_is_left()

    def test_a_signal_to_a_rank_that_waits_for_rank_0(self):
        """… which still reads its job, from a pipe, for longer than mpirun would have waited before it kills."""
        os.mkfifo(os.path.join(self.directory, "pipe"))
        with open(os.path.join(self.directory, "pipe"), "r+b", buffering=0) as pipe:
            running = self.start("pipe", ranks=2)
            harness.until(lambda: 1 in running.ranks() and blocks(running.ranks()[1], signal.SIGTERM), 20, "a blocked signal")
            os.kill(running.ranks()[1], signal.SIGTERM)
            time.sleep(1)
            self.assertIn(1, running.ranks())
            pipe.write(json.dumps(self.tape()).encode())
        self.check_line(self.ended(running, time.monotonic()), 75, "rank 1: interrupted by SIGTERM before the first step")
        self.check_result(75, "rank 1: interrupted by SIGTERM before the first step")
        self.check_nothing_is_left()

    def beside(self, other, job="job.yaml"):
        """A job whose second rank is this command, to its end."""
        running = harness.Running(self, [*self.command(job, 1, [], "run"), ":", "-n", "1", *other], "run")
        return self.ended(running, time.monotonic())

    def test_a_rank_that_never_comes_is_the_reason(self):
        """It ends before it is one; mpirun tells the others to go as an operator's signal to mpirun does."""
        self.write("job.yaml", json.dumps(self.tape()))
        for other in ("exit 3", "sleep 0.5; exit 3"):
            done = self.beside(["bash", "-c", other])
            self.check_line(done, 3, "rank 0: interrupted by rank 1's end before the first step")
            self.check_result(70, "rank 0: interrupted by rank 1's end before the first step")
            self.check_nothing_is_left()

    def test_a_rank_that_cannot_reach_the_coordinator_is_the_reason(self):
        """Where rank 1 looks there is no socket; it says so to rank 0."""
        if os.getuid() != 0:
            self.skipTest("a mount of its own needs root")
        self.write("job.yaml", json.dumps(self.tape()))
        sockets = self.environment["XDG_RUNTIME_DIR"] = os.path.join(self.directory, "sockets")
        os.mkdir(sockets, 0o700)
        own = " ".join(self.command("job.yaml", 0, [], "run"))
        done = self.beside(["unshare", "-m", "sh", "-c", f"mount -t tmpfs none {sockets} && exec {own}"])
        self.check_line(done, 69, f"gaccd: rank 1: cannot reach the coordinator at unix:{sockets}/")
        self.check_result(69, f"rank 1: cannot reach the coordinator at unix:{sockets}/")

    def test_a_refused_command_line_ends_as_soon(self):
        self.write("job.yaml", json.dumps(self.tape()))
        for ranks in (2, 4):
            for arguments, words in ((["--device", "cuda"], "--device cuda"), (["--ouptut", "x"], "did you mean --output?")):
                for _ in range(3):  # it was a matter of luck
                    done = self.run_job("job.yaml", ranks=ranks, arguments=arguments)
                    self.check_line(done, 69 if "cuda" in words else 64, words)
                    self.assertLess(done.seconds, harness.PROMPT)

    def test_an_ignored_signal_stays_ignored(self):
        job = self.gpt(steps=faults.FOREVER)
        self.environment["LC_ALL"] = "C"
        running = harness.Running(self, ["nohup", *self.command(job, 0, [], "run")], "run").until_step(3)
        os.kill(running.process.pid, signal.SIGHUP)
        running.until_step(running.log("step")[-1]["step"] + 20)
        os.kill(running.process.pid, signal.SIGTERM)
        self.check_line(self.ended(running, time.monotonic()), 75, "interrupted by SIGTERM")

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

    def test_a_launcher_killed_before_mpi_has_started(self):
        """Open MPI does not notice it there: rank 0 waits for the job file, rank 1 for rank 0."""
        os.mkfifo(os.path.join(self.directory, "pipe"))
        writer = os.open(os.path.join(self.directory, "pipe"), os.O_RDWR)
        self.addCleanup(os.close, writer)
        running = self.start("pipe")
        harness.until(lambda: len(running.ranks()) == 2, 20, "both ranks")
        for pid in running.ranks().values():
            harness.until(lambda: blocks(pid, signal.SIGTERM), 5, "a blocked signal")
        os.kill(running.process.pid, signal.SIGKILL)
        self.ended(running, time.monotonic())
        for name in os.listdir(self.temporary):
            self.assertTrue(name.startswith("ompi."), name)  # there was no coordinator yet to remove the session
            shutil.rmtree(os.path.join(self.temporary, name))

    def test_a_launcher_killed_before_its_ranks_begin(self):
        """Rank 0 has come and gone, and its directory with it, when rank 1 looks for it."""
        late = 'sleep $((1 + OMPI_COMM_WORLD_RANK)); exec "$@"'
        gaccd = self.command(self.gpt(steps=faults.FOREVER), 0, [], "run")
        running = harness.Running(self, ["mpirun", "-n", "2", "bash", "-c", late, "bash", *gaccd], "run")
        harness.until(lambda: len(self.processes()) >= 5, 20, "two ranks asleep")
        os.kill(running.process.pid, signal.SIGKILL)
        self.ended(running, time.monotonic() + 2)
        self.check_nothing_is_left()
        self.assertEqual(self.result()["exit"], 70)

    def test_a_death_while_a_finished_job_starts_again(self):
        job = self.tape()
        self.assertEqual(self.run_job(job).status, 0)
        before = self.result()
        command = self.command(job, 1, [], "run")
        running = harness.Running(self, [*command, ":", "-n", "1", "sleep", "100"], "run")
        harness.until(lambda: 0 in running.ranks() and self.unused_shared_memory(), 20, "rank 0 on its way into MPI")
        os.kill(running.ranks()[0], signal.SIGKILL)
        self.ended(running, time.monotonic())
        self.check_nothing_is_left()
        self.assertEqual(self.result(), before)

    def test_a_signal_while_rank_0_stands_in(self):
        """It does not cut short what rank 0 does for a coordinator that is gone."""
        running = self.start(self.gpt(steps=faults.FOREVER)).until_step(3)
        rank_0 = running.ranks()[0]
        os.kill(running.connection()["pid"], signal.SIGKILL)
        harness.until(lambda: "the coordinator is gone" in running.said()[1], 5, "a line of rank 0")
        with contextlib.suppress(ProcessLookupError):  # it may be done already
            os.kill(rank_0, signal.SIGTERM)
        self.check_line(self.ended(running, time.monotonic()), 70, "rank 0: the coordinator is gone")
        self.check_result(70, "the coordinator is gone")
        self.check_nothing_is_left()

    def test_only_rank_0_says_that_the_coordinator_is_out_of_reach(self):
        """However long its launcher takes to tell the others to go."""
        running = self.start(self.gpt(steps=faults.FOREVER))
        harness.until(lambda: os.path.exists(os.path.join(running.output, "connection.json")), 20, "a coordinator")
        os.kill(running.connection()["pid"], signal.SIGKILL)
        harness.until(lambda: "the coordinator is gone" in running.said()[1], 20, "a line of rank 0")
        os.kill(running.process.pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(running.process.pid, signal.SIGCONT)
        self.check_line(self.ended(running, time.monotonic()), 70, "rank 0: the coordinator is gone")

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
        timeout = harness.SLOWER
        running = self.start(self.gpt(steps=faults.FOREVER), arguments=["--set", f"control.timeout={timeout:g}"]).until_step(3)
        os.kill(running.connection()["pid"], signal.SIGSTOP)
        done = self.ended(running, time.monotonic() + timeout)
        self.assertEqual(done.status, 70)
        self.assertEqual(len(done.own_lines()), 1 + (timeout > 2), done.err)  # silent for 2 s
        self.assertIn(f"the coordinator is gone: it has not answered for {timeout:g} s", done.own_lines()[-1])
        self.check_result(70, "has not answered")

    def test_who_is_stopped_for_less_than_the_timeout_goes_on(self):
        """Told of after two seconds, on stderr, in the log and in status; the end has the bytes of the run without a stop."""
        job = self.gpt(steps=1500)
        self.assertEqual(self.run_job(job, output="whole").status, 0)
        with open(os.path.join(self.directory, "whole", "final", "model.safetensors"), "rb") as file:
            whole = file.read()
        for who, begins, ends in (("rank", "rank 1: silent for 2 s; lost after 60 s (control.timeout)", "rank 1: heard again after "),
                                  ("coordinator", "rank 0: the coordinator has been silent for 2 s; lost after 60 s (control.timeout)",
                                   "the coordinator was stopped for ")):
            with self.subTest(who=who):
                running = self.start(job, output=who).until_step(3)
                pid = running.ranks()[1] if who == "rank" else running.connection()["pid"]
                os.kill(pid, signal.SIGSTOP)
                harness.until(lambda: begins in running.said()[1], 10, begins)
                if who == "rank":
                    self.assertGreaterEqual(self.ctl(running)["ranks"][1]["seconds_since_heard"], 2)
                os.kill(pid, signal.SIGCONT)
                done = running.wait()
                self.assertEqual(done.status, 0, done.err)
                self.assertIn(ends, done.err)
                said = [event["text"] for event in running.log("event") if event["event"] == "silence"]
                self.assertEqual([text.split(ends)[0] for text in said if text.startswith(ends)], [""])
                self.assertEqual(begins in said, who == "rank")
                with open(os.path.join(running.output, "final", "model.safetensors"), "rb") as file:
                    self.assertEqual(file.read(), whole)

    def ctl(self, running):
        done = self.call(harness.GACCCTL, "status", "--run", running.output, "--json")
        self.assertEqual(done.status, 0, done.err)
        return json.loads(done.out)

    def test_a_job_stopped_as_a_whole_ends_when_it_wakes(self):
        timeout = max(3, harness.SLOWER)
        running = self.start(self.gpt(steps=faults.FOREVER), ranks=0, arguments=["--set", f"control.timeout={timeout:g}"]).until_step(3)
        os.kill(running.process.pid, signal.SIGSTOP)
        harness.until(lambda: os.path.exists(os.path.join(running.output, "result.json")), 10, "a result")
        os.kill(running.process.pid, signal.SIGCONT)
        done = self.ended(running, time.monotonic())
        self.assertEqual(done.status, 70)
        self.assertEqual(done.own_lines(), [f"gaccd: rank 0: silent for 2 s; lost after {timeout:g} s (control.timeout)",
                                            f"gaccd: rank 0: was silent for {timeout:g} s (control.timeout)"])
        self.check_result(70, f"was silent for {timeout:g} s")

    def test_who_speaks_for_ranks_that_fail_alike_is_heard_before_another_ends_the_job(self):
        """All lack the memory for one micro-batch, and mpirun kills without waiting."""
        if harness.SANITIZER:
            self.skipTest("the sanitizer needs the address space that is taken away")
        self.environment["OMPI_MCA_odls_base_sigkill_timeout"] = "0"
        self.write("job.yaml", json.dumps(self.tape(batch={"global": 2**30, "micro": 2**28})))
        for _ in range(8):
            done = self.shell("ulimit -v 4000000; JOB", ranks=3)
            self.check_line(done, 70, "no memory for a micro-batch of 268435456 sequences")

    def test_deaths_at_the_end(self):
        """While the model is written, and after it."""
        chance = random.Random(1)
        for victim in (0, 1, "coordinator"):
            job = self.gpt(steps=30)
            running = self.start(job).meet()
            pid = running.connection()["pid"] if victim == "coordinator" else running.ranks()[victim]
            running.let_go()
            running.until_step(28)
            time.sleep(0.05 * chance.random())
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it was over
            done = self.ended(running, time.monotonic())
            self.assertLessEqual(len(done.own_lines()), 1, done.err)
            self.assertIn("exit", self.result())
            shutil.rmtree(running.output)


if __name__ == "__main__":
    harness.main()
