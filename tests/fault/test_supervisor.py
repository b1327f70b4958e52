"""deploy/gaccd-run: a job that crashes or ends with 75 goes on, on the slots that are left, to the bytes of the run that never
ended; what no repetition mends ends at once, and what makes no progress after some."""
import json
import os
import shutil
import signal
import time

import checkpoints
import faults
import harness

SUPERVISOR = os.path.join(harness.ROOT, "deploy", "gaccd-run")


class Supervisor(faults.Faults):
    def job(self, steps=900, **checkpoint):
        job = self.gpt(steps=steps, checkpoint={"every": 60, **checkpoint})
        self.write("job.yaml", json.dumps(job))

    def supervise(self, *options, job="job.yaml", arguments=()):
        command = [SUPERVISOR, "--gaccd", harness.GACCD, "--backoff", "0.1", *options, "--", job, "--output", "run", *arguments]
        return harness.Running(self, command, "run")

    def kill_a_rank(self, running):
        """Once it has something to go on from; returns how many starts there had been."""
        harness.until(lambda: running.log("checkpoint"), 20, "a checkpoint")
        before = len(running.log("header"))
        os.kill(running.ranks()[1], signal.SIGKILL)
        return before

    def final(self, output):
        with open(os.path.join(self.directory, output, "final", "model.safetensors"), "rb") as file:
            return file.read()

    def check_same_as_whole(self, ranks=2):
        self.assertEqual(self.run_job("job.yaml", ranks=ranks, output="whole").status, 0)
        self.assertEqual(self.final("run"), self.final("whole"))

    def test_a_killed_rank_is_training_again_within_three_seconds(self):
        self.job()
        running = self.supervise("-n", "2", "--retries", "0")  # which counts starts without progress alone
        before = self.kill_a_rank(running)
        began = time.monotonic()

        def is_training():
            records = running.log()
            headers = [i for i, record in enumerate(records) if record["type"] == "header"]
            return len(headers) > before and any(record["type"] == "step" for record in records[headers[before]:])

        harness.until(is_training, 20, "a step of the second start")
        seconds = time.monotonic() - began
        self.assertLess(seconds, harness.PROMPT + 1)
        print(f"training again after {seconds:.2f} s", flush=True)
        done = running.wait(60)
        self.assertEqual(done.status, 0, done.err)
        self.assertIn("again in 0 s, from step-", done.err)
        self.assertTrue(self.log("header")[1]["resumed_from"])
        self.check_same_as_whole()

    def test_a_job_that_was_asked_to_end_goes_on(self):
        """By a signal to a rank; `--resume never` holds for the first start alone."""
        self.job()
        running = self.supervise("-n", "2", arguments=("--resume", "never")).until_step(20)
        os.kill(running.ranks()[1], signal.SIGTERM)
        done = running.wait(60)
        self.assertEqual(done.status, 0, done.err)
        self.assertIn("ended with 75 (rank 1: interrupted by SIGTERM", done.err)
        self.assertEqual([bool(header["resumed_from"]) for header in self.log("header")], [False, True])
        self.check_same_as_whole()

    def test_its_own_signals_are_the_jobs(self):
        """A stop ends both, behind a checkpoint, with 75; a second command goes on. USR1 only saves."""
        self.job(steps=faults.FOREVER, every=0)
        for number in (signal.SIGTERM, signal.SIGINT):
            running = self.supervise("-n", "2")
            running.until_step(running.log("step")[-1]["step"] + 5 if running.log("step") else 5)
            saved = len(running.log("checkpoint"))
            os.kill(running.process.pid, signal.SIGUSR1)
            harness.until(lambda: len(running.log("checkpoint")) > saved, 10, "a checkpoint")
            running.until_step(running.log("step")[-1]["step"] + 2)
            os.kill(running.process.pid, number)
            done = self.ended(running, time.monotonic(), harness.PROMPT + 1)
            self.assertEqual(done.status, 75, done.err)
            self.check_result(75, "interrupted by SIGUSR2")
            self.assertEqual(self.result()["checkpoint"], checkpoints.names(running.output)[-1])
            self.assertNotIn("again", done.err)
        self.assertEqual([bool(header["resumed_from"]) for header in self.log("header")], [False, True])

    def test_the_job_ends_behind_a_checkpoint_when_its_supervisor_is_killed(self):
        self.job(steps=faults.FOREVER)
        running = self.supervise("-n", "2").until_step(5)
        os.kill(running.process.pid, signal.SIGKILL)
        self.ended(running, time.monotonic(), harness.PROMPT + 1)
        self.check_result(75, "interrupted by SIGUSR2")

    def test_what_no_repetition_mends_is_not_repeated(self):
        self.job()
        with open(os.path.join(self.directory, "job.yaml")) as file:
            good = file.read()
        self.write("bad.yaml", good.replace('"layers"', '"lairs"'))
        self.write("few.yaml", good.replace('"global": 8, "micro": 2', '"global": 1, "micro": 1'))
        self.write("gone.yaml", good.replace("text.txt", "gone.txt"))
        for name, status in (("bad.yaml", 78), ("few.yaml", 78), ("gone.yaml", 66), ("none.yaml", 66)):
            done = self.supervise("-n", "2", job=name).wait()
            self.assertEqual(done.status, status, (name, done.err))
            self.assertNotIn("again", done.err)
            self.assertEqual(len(done.own_lines()), 1, done.err)
        done = self.call(SUPERVISOR, "--retreis", "2", "--", "job.yaml")
        self.assertEqual(done.status, 64)

    def test_starts_without_progress_are_limited(self):
        """A launcher that crashes before the job begins; then no slot at all. The waits double."""
        self.job()
        self.write("crash", "#!/bin/sh\ndate +%s.%N >> starts\nexit 134\n")
        os.chmod(os.path.join(self.directory, "crash"), 0o755)
        done = self.supervise("--retries", "2", "--backoff", "0.3", "--mpirun", "./crash").wait()
        self.assertEqual(done.status, 134, done.err)
        with open(os.path.join(self.directory, "starts")) as file:
            first, second, third = map(float, file)
        self.assertGreaterEqual(second - first, 0.3)
        self.assertGreaterEqual(third - second, 0.6)
        done = self.supervise("--retries", "1", "--slots-from", "echo 0").wait()
        self.assertEqual(done.status, 69, done.err)
        self.assertIn("given up", done.err)

    def test_a_launcher_that_outlives_its_job_is_killed(self):
        """As mpirun may when a rank dies while it connects: whether somebody was left to write a result or not."""
        self.job()
        for whom in ("the rank", "all"):
            with self.subTest(killed=whom):
                shutil.rmtree(os.path.join(self.directory, "run"), ignore_errors=True)
                self.write("launch", "#!/bin/sh\n[ -e again ] && exec mpirun \"$@\"\ntouch again\nmpirun \"$@\" &\n"
                           "trap '' TERM\nwait\nexec sleep 1000\n")
                os.chmod(os.path.join(self.directory, "launch"), 0o755)
                running = self.supervise("-n", "2", "--mpirun", "./launch", "--launcher-limit", "2")
                harness.until(lambda: running.log("checkpoint"), 20, "a checkpoint")
                victims = [running.ranks()[1]] if whom == "the rank" else self.processes()
                for pid in victims:
                    if harness.name_of(pid) in ("gaccd", "gaccd-coord"):
                        os.kill(pid, signal.SIGKILL)
                done = running.wait(60)
                self.assertEqual(done.status, 0, done.err)
                self.assertIn("the launcher has not ended within 2 s of its job", done.err)
                self.assertIn("again in 0 s, from step-", done.err)
                self.check_same_as_whole()
                os.remove(os.path.join(self.directory, "again"))
                shutil.rmtree(os.path.join(self.directory, "whole"))
                self.clear_up()

    def test_a_job_that_goes_on_may_take_longer_than_the_limit(self):
        """It takes the last one's result away when it begins, and has none of its own while it runs."""
        self.job()
        self.write("launch", "#!/bin/sh\nmkdir -p run\n"
                   "result() { echo '{\"exit\": '$1', \"reason\": \"none\"}' > run/new; mv run/new run/result.json; exit $1; }\n"
                   "[ -e again ] || { touch again; result 75; }\nrm run/result.json\nsleep 4\nresult 0\n")
        os.chmod(os.path.join(self.directory, "launch"), 0o755)
        done = self.supervise("--mpirun", "./launch", "--launcher-limit", "1").wait()
        self.assertEqual(done.status, 0, done.err)
        self.assertNotIn("it is killed", done.err)

    def test_it_goes_on_with_the_slots_that_are_left(self):
        """The batch stays; the end is that of a job that goes on from the same checkpoint on as many ranks of its own accord."""
        self.job(keep=0)
        self.write("slots", "3")
        running = self.supervise("--slots-from", "cat slots")
        harness.until(lambda: running.log("checkpoint"), 20, "a checkpoint")
        self.write("slots", "2")
        self.kill_a_rank(running)
        done = running.wait(60)
        self.assertEqual(done.status, 0, done.err)
        first, second = self.log("header")
        self.assertEqual((first["ranks"], second["ranks"]), (3, 2))
        self.assertEqual(first["effective_batch"], second["effective_batch"])
        shutil.move(os.path.join(self.directory, second["resumed_from"]), os.path.join(self.directory, "from"))
        self.assertEqual(self.run_job("job.yaml", ranks=2, arguments=("--resume", "from"), output="stayed").status, 0)
        self.assertEqual(self.final("run"), self.final("stayed"))


class Batch(faults.Faults):
    def batch(self, restarts, launcher):
        self.write("scontrol", "#!/bin/sh\necho scontrol $* >&2\nexit 1\n")
        self.write("launch", f"#!/bin/sh\n{launcher}\n")
        for name in ("scontrol", "launch"):
            os.chmod(os.path.join(self.directory, name), 0o755)
        environment = {**self.environment, "PATH": self.directory + ":" + os.environ["PATH"], "SLURM_JOB_ID": "7",
                       "SLURM_RESTART_COUNT": str(restarts), "GACCD_LAUNCHER": "./launch"}
        return self.call("bash", os.path.join(harness.ROOT, "deploy", "slurm", "gaccd.sbatch"), "JOB.yaml", env=environment)

    def test_a_start_that_is_warned_at_once_is_not_repeated_for_ever(self):
        """Without Slurm; tests/slurm has all else of the script."""
        warned = "trap 'exit 75' USR2\nkill -USR1 $PPID\nwhile :; do sleep 0.05; done"
        for restarts in (0, 1):
            self.assertIn("scontrol requeue 7", self.batch(restarts, warned).err)
        done = self.batch(2, warned)
        self.assertNotIn("requeue", done.err)
        self.assertIn("the time limit must be longer than the warning", done.err)
        self.assertEqual(done.status, 75)
        self.assertIn("scontrol requeue 7", self.batch(9, "exit 75").err)  # preempted, as often as it may be


if __name__ == "__main__":
    harness.main()
