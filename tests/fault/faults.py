"""What the fault tests share. Every one of them checks at its end that no process, socket or shared-memory file is left."""
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "scenario"))
import harness

FOREVER = 10**9


class Faults(harness.Scenario):
    def tape(self, **how):
        job, text = harness.tape(**how)
        self.write("tape.csv", text)
        return job

    def gpt(self, **how):
        job, text = harness.gpt(**how)
        self.write("text.txt", text)
        return job

    def check_line(self, done, status, *words):
        """One line of gaccd's own with these words in it."""
        self.assertEqual(done.status, status, done.err)
        lines = done.own_lines()
        self.assertEqual(len(lines), 1, done.err)
        for word in words:
            self.assertIn(word, lines[0])

    def check_result(self, status, words, output="run"):
        result = self.result(output)
        self.assertEqual((result["exit"], result["status"]), (status, "again" if status == 75 else "failed"))
        self.assertIn(words, result["reason"])

    def shell(self, text, ranks=0, **how):
        """A shell command in which JOB is a job's command line, on `ranks` ranks under mpirun, or on one without it."""
        command = f"{harness.GACCD} job.yaml --output run"
        return self.call("bash", "-c", text.replace("JOB", f"mpirun -n {ranks} {command}" if ranks else command), **how)

    def small_disk(self, size):
        """A file system of this size at "small", or a skip."""
        if os.getuid() != 0:
            self.skipTest("mounting a small file system needs root")
        path = os.path.join(self.directory, "small")
        os.makedirs(path, exist_ok=True)
        mounted = self.call("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path)
        if mounted.status != 0:
            self.skipTest(f"mounting a small file system: {mounted.err.strip()}")
        self.addCleanup(self.call, "umount", "-l", path)

    def clear_up(self):
        """What nobody was left to remove."""
        for left in os.listdir(self.temporary):
            shutil.rmtree(os.path.join(self.temporary, left), ignore_errors=True)
            if os.path.lexists(os.path.join(self.temporary, left)):
                os.remove(os.path.join(self.temporary, left))
        for left in self.unused_shared_memory():
            shutil.rmtree("/dev/shm/" + left, ignore_errors=True)
        for name in harness.ONLY_WHILE_IT_RUNS:
            if os.path.exists(os.path.join(self.directory, "run", name)):
                os.remove(os.path.join(self.directory, "run", name))

    def ended(self, job, since, limit=harness.PROMPT):
        """How the job ended; all of it is gone within the limit."""
        done = job.wait(20)
        self.assertEqual(harness.until_empty(self.processes, 10), [])
        self.assertLess(time.monotonic() - since, limit)
        return done
