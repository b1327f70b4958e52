"""A disk that stops before each call of a save in turn, and forgets what was not made durable; or fails there. Whatever is left, the
same command finishes the job with the bytes of the run that was never disturbed, from a checkpoint that was complete."""
import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

import checkpoints
import faults
import harness
import toys

EVERY, STEPS = 2, 7
HEAVY = bool(os.environ.get("GACC_HEAVY"))


class Disk(toys.Training, faults.Faults):
    @classmethod
    def setUpClass(cls):
        cls.shim = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"gacc-disk-{os.getpid()}.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", cls.shim, os.path.join(harness.ROOT, "tests", "fault", "disk.c"), "-ldl"],
                       check=True)

    @classmethod
    def tearDownClass(cls):
        os.remove(cls.shim)

    def setUp(self):
        super().setUp()
        self.job = toys.tape((1, 2, 3), steps=STEPS, batch=2, micro=1, optimizer="adamw", lr=0.1,
                             checkpoint={"every": EVERY, "keep": 1})
        self.job["data"]["train"] = "data"
        self.write("data", toys.csv_text(self.job, [(1, 2, 3, 4), (1, -1, 0, 1), (2, 0, 0, 1)]))
        self.write("job.yaml", json.dumps(self.job))
        self.plain = dict(self.environment)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def under(self, **settings):
        """The environment of a job whose disk is watched."""
        for left in ("state", "state.d", "run", "trace"):
            shutil.rmtree(self.path(left), ignore_errors=True)
            if os.path.isfile(self.path(left)):
                os.remove(self.path(left))
        self.environment = dict(self.plain, LD_PRELOAD=self.shim, GACC_DISK=self.path("run"), GACC_DISK_STATE=self.path("state"),
                                **{"GACC_DISK_" + name: str(value) for name, value in settings.items()})

    def model(self, run):
        with open(self.path(run, "final", "model.safetensors"), "rb") as file:
            return file.read()

    def trace(self, ranks):
        """The calls of an undisturbed job: [(call, name of the directory it is about, path)], and its model."""
        self.under(TRACE=self.path("trace"))
        self.assertEqual(self.run_job("job.yaml", ranks=ranks).status, 0)
        with open(self.path("trace")) as file:
            calls = [line.split() for line in file]
        self.wanted = self.model("run")
        return [(name, path) for _, name, path in sorted(calls, key=lambda call: int(call[0]))]

    def state(self):
        """Calls, threads that wait, writes beside the checkpoints that a full disk refused, lines, whether it is full: disk.c."""
        try:
            with open(self.path("state"), "rb") as file:
                return struct.unpack("5Q", file.read())
        except (FileNotFoundError, struct.error):
            return (0, 0, 0, 0, 0)

    def stop(self, call, ranks):
        """Runs the job until its disk stops before this call, and ends it; False: it was over before."""
        self.under(STOP=call)
        running = self.start("job.yaml", ranks=ranks)
        harness.until(lambda: running.process.poll() is not None or self.state()[1], 20, f"call {call}")
        found = running.process.poll() is None
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        running.process.wait()
        harness.until_empty(self.processes, 10)
        self.environment = self.plain
        self.clear_up()
        return found

    def durable(self, inode, kind):
        try:
            with open(self.path("state.d", f"{inode}.{kind}"), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def rebuild(self, source, target, names_live, data_live):
        """What a crash leaves: directories and files each as they are now, or as they were when last made durable. A file that
        never was is empty."""
        os.mkdir(target)
        if names_live:
            entries = [(os.lstat(os.path.join(source, name)).st_ino, name) for name in os.listdir(source)]
        else:
            entries = [line.split(" ", 1) for line in (self.durable(os.stat(source).st_ino, "names") or b"").decode().splitlines()]
        by_inode = {str(os.lstat(os.path.join(folder, name)).st_ino): os.path.join(folder, name)
                    for top in (self.path("run"), self.path("state.d")) for folder, folders, files in os.walk(top) for name in folders + files}
        for inode, name in entries:
            live = by_inode.get(str(inode))
            if live and os.path.isdir(live):
                self.rebuild(live, os.path.join(target, name), names_live, data_live)
            else:
                data = self.durable(inode, "data") or b""
                if data_live and live:
                    with open(live, "rb") as file:
                        data = file.read()
                with open(os.path.join(target, name), "wb") as file:
                    file.write(data)

    def crashes(self):
        """Directories that the stopped job's disk might hold after the crash."""
        for number, (names_live, data_live) in enumerate(((True, True), (True, False), (False, False), (False, True))):
            target = self.path(f"left{number}")
            shutil.rmtree(target, ignore_errors=True)
            os.mkdir(target)
            shutil.copy(self.path("run", "job.yaml"), target)
            log = self.path("run", "log.jsonl")
            if data_live:
                shutil.copy(log, target)
            else:
                with open(os.path.join(target, "log.jsonl"), "wb") as file:
                    file.write(self.durable(os.stat(log).st_ino, "data") or b"")
            folder = self.path("run", "checkpoints")
            known = b" checkpoints\n" in (self.durable(os.stat(self.path("run")).st_ino, "names") or b"")
            if os.path.exists(folder) and (names_live or known):
                self.rebuild(folder, os.path.join(target, "checkpoints"), names_live, data_live)
            yield f"left{number}"

    def check_goes_on(self, run, ranks, told, call):
        """told: the newest that the log called complete before the crash."""
        done = self.run_job("job.yaml", ranks=ranks, output=run)
        self.assertEqual(done.status, 0, (call, run, done.err))
        self.assertEqual(self.model(run), self.wanted, (call, run))
        log = harness.read_log(self.path(run))
        self.assertEqual({record["step"] for record in log if record["type"] == "step"}, set(range(1, STEPS + 1)), (call, run))
        headers = [record for record in log if record["type"] == "header"]
        resumed = headers[-1]["resumed"]["optimizer_steps"] if headers[-1]["resumed_from"] else 0
        self.assertGreaterEqual(resumed, told, (call, run, done.err))
        self.assertNotIn("damaged", done.err, (call, run))
        return resumed

    def check_stops(self, calls, ranks):
        found = set()
        for call in calls:
            if not self.stop(call, ranks):
                continue
            told = max([record["optimizer_steps"] for record in harness.read_log(self.path("run")) if record["type"] == "checkpoint"],
                       default=0)
            for run in self.crashes():
                found.add(self.check_goes_on(run, ranks, told, call))
        return found

    def test_it_stops_before_each_call_of_a_save(self):
        """The second save, which removes the first; GACC_HEAVY: all of the job, and two ranks."""
        calls = self.trace(0)
        names = [name for name, _ in calls]
        for name in ("mkdir", "open", "ftruncate", "pwrite", "write", "fsync", "close", "rename", "unlink", "rmdir"):
            self.assertIn(name, names)
        begin = next(i for i, (_, path) in enumerate(calls) if "step-00000004" in path)  # its parent's mkdir comes before
        end = next(i for i, (_, path) in enumerate(calls) if "step-00000006" in path)  # its parent's mkdir comes before
        self.assertGreater(end - begin, 20)
        self.assertEqual(self.check_stops(range(1 if HEAVY else begin, len(calls) + 1 if HEAVY else end), 0) & {2, 4}, {2, 4})
        if HEAVY:
            self.check_stops(range(1, len(self.trace(2)) + 1), 2)

    def test_it_fails_at_each_call_of_a_save(self):
        """Disk full, quota, read-only, no permission, bad block; one write that is cut short. Once is no end, and the older stays."""
        calls = self.trace(0)
        begin = next(i for i, (_, path) in enumerate(calls) if "step-00000004" in path)  # its parent's mkdir comes before
        numbers = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)
        end = next(i for i, (_, path) in enumerate(calls) if "step-00000006" in path)  # its parent's mkdir comes before
        for call in range(begin, end):
            name, path = calls[call - 1]
            for number in numbers if HEAVY else numbers[call % 5:][:1]:
                self.under(FAIL=f"{call}:{number}")
                done = self.run_job("job.yaml", ranks=0)
                self.assertEqual(done.status, 0, (call, name, done.err))
                self.assertEqual(self.model("run"), self.wanted)
                removes = "step-00000002" in path
                events = [(e["event"], e["text"]) for e in harness.read_log(self.path("run")) if e["type"] == "event"]
                self.assertEqual([event for event, _ in events], ["checkpoint_left" if removes else "checkpoint_failed"], (call, name, path, events))
                self.assertEqual(done.own_lines(), ["gaccd: " + events[0][1]])
                if not removes:
                    self.assertTrue(events[0][1].startswith("checkpoint step-00000004 failed: "), (call, name, path, events))
                    self.assertIn(os.strerror(number), events[0][1])
                    self.assertTrue(events[0][1].endswith("(the newest complete one: step-00000002)"), events[0][1])
                self.assertEqual(checkpoints.names(self.path("run"))[-1], "step-00000006")
                self.assertNotIn("step-00000004", os.listdir(self.path("run", "checkpoints")))
        writes = [call for call in range(begin, end) if "write" in calls[call - 1][0]]
        self.assertGreater(len(writes), 3)
        for call in writes:
            self.under(FAIL=f"{call}:0")
            done = self.run_job("job.yaml", ranks=0)
            self.assertEqual((done.status, done.err, self.model("run")), (0, "", self.wanted))
        self.environment = self.plain

    def test_a_full_disk_keeps_no_line_of_the_log(self):
        """Lines find no room while a checkpoint fails for want of it; behind its end they stand in the log, in order, and training
        has gone on to the same bytes."""
        self.job["checkpoint"]["every"] = 4
        self.job["job"]["steps"] = 10
        self.write("job.yaml", json.dumps(self.job))
        for ranks in (0, 2):
            self.trace(ranks)
            self.under(FULL="step-00000004:7:2")
            done = self.run_job("job.yaml", ranks=ranks)
            self.assertEqual((done.status, self.model("run")), (0, self.wanted), done.err)
            self.assertGreaterEqual(self.state()[2], 2)
            self.assertEqual(len(done.own_lines()), 1, done.err)
            self.assertIn("checkpoint step-00000004 failed: rank ", done.err)
            self.assertIn("No space left on device", done.err)
            log = harness.read_log(self.path("run"))
            self.assertEqual([record["step"] for record in log if record["type"] == "step"], list(range(1, 11)))
            self.assertEqual([record["type"] for record in log if record["type"] != "step"], ["header", "event", "checkpoint", "end"])
            self.assertEqual(checkpoints.names(self.path("run")), ["step-00000008"])

    def test_a_job_that_ends_on_a_full_disk_has_its_log_and_result(self):
        """A rank is killed while a checkpoint takes the room that the last lines and result.json want: both are written when it is
        gone."""
        self.job["job"]["steps"] = faults.FOREVER
        self.job["checkpoint"]["every"] = 4
        self.write("job.yaml", json.dumps(self.job))
        self.under(FULL=f"step-00000004:7:{faults.FOREVER}")
        running = self.start("job.yaml", ranks=2)
        harness.until(lambda: self.state()[2] >= 2, 20, "a full disk")
        os.kill(running.ranks()[1], signal.SIGKILL)
        self.ended(running, time.monotonic())
        self.assertEqual((self.result()["exit"], self.result()["status"]), (70, "failed"))
        self.assertIn("rank 1: its process ended", self.result()["reason"])
        log = harness.read_log(self.path("run"))
        steps = [record["step"] for record in log if record["type"] == "step"]
        self.assertEqual((steps, log[-1]["type"]), (list(range(1, len(steps) + 1)), "end"))
        self.assertGreater(len(steps), 4)  # lines that were refused: those behind the checkpoint's

    def test_two_failures_in_a_row_end_the_job_with_74(self):
        """case 22-3: a file system without room for another; the last good one is intact, and the job goes on when there is."""
        if os.getuid() != 0:
            self.skipTest("mounting a small file system needs root")
        job, text = harness.gpt(steps=12, checkpoint={"every": 2, "keep": 1})
        self.write("text.txt", text)
        self.assertEqual(self.run_job(job, output="whole").status, 0)
        os.mkdir(self.path("small"))
        if self.call("mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", self.path("small")).status != 0:
            self.skipTest("mounting a small file system")
        self.addCleanup(self.call, "umount", "-l", self.path("small"))
        for ranks in (0, 2):
            shutil.rmtree(self.path("small", "run"), ignore_errors=True)
            done = self.run_job(job, ranks=ranks, output="small/run")
            self.assertEqual(done.status, 74, done.err)
            self.assertEqual(len(done.own_lines()), 3, done.err)
            self.assertIn("No space left on device", done.err)
            result = self.result("small/run")
            self.assertEqual((result["status"], result["exit"], result["checkpoint"]), ("failed", 74, "step-00000002"))
            self.assertIn("small/run/checkpoints/step-0000000", result["reason"])
            self.assertEqual(sorted(os.listdir(self.path("small", "run", "checkpoints"))), ["latest", "step-00000002"])
            self.assertEqual(self.call(harness.GACCD, "inspect", self.path("small", "run", "checkpoints", "step-00000002")).status, 0)
        shutil.copytree(self.path("small", "run"), self.path("roomy"))
        self.assertEqual(self.run_job(job, output="roomy").status, 0)
        self.assertEqual(self.model("roomy"), self.model("whole"))


if __name__ == "__main__":
    harness.main()
