"""A run as its user sees it: the progress line, final/, where the coordinator runs."""
import json
import os
import pty
import re
import signal
import subprocess
import sys
import unittest

import harness

# A container's first process: waits for the command, and for whatever it leaves.
FIRST = """
import os, subprocess, sys
status = subprocess.call(sys.argv[1:])
try:
    while True:
        os.wait()
except ChildProcessError:
    sys.exit(status)
"""
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc"]  # process ids of its own; host name and /dev/shm are shared


class Run(harness.Scenario):
    def setUp(self):
        super().setUp()
        self.job, text = harness.gpt(steps=300)
        self.write("text.txt", text)

    def on_a_terminal(self, ranks):
        """What a terminal shows of a run, and its exit status."""
        command = self.command(self.job, ranks, (), f"run{ranks}")
        master, slave = pty.openpty()
        process = subprocess.Popen(command, cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, stdout=slave,
                                   stderr=slave)
        os.close(slave)
        shown = b""
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:  # how a terminal says that nobody writes any more
            pass
        os.close(master)
        return shown.decode(), process.wait(20)

    def test_a_terminal_shows_the_progress_line(self):
        for ranks in (0, 2):
            shown, status = self.on_a_terminal(ranks)
            self.assertEqual(status, 0, shown)
            lines = [line for line in re.split(r"\r\n|\r\x1b\[K", shown) if line]
            for line in lines[:-1]:
                self.assertRegex(line, r"^step \d+/300  loss \d+\.\d+  lr 0\.001  \d+ tokens/s  \d+:\d\d left$")
            self.assertIn("step 300/300", lines[-2])
            self.assertRegex(lines[-1], f"^run{ranks}: final/model.safetensors ")

    def test_without_a_terminal_nothing_is_shown(self):
        done = self.run_job(self.job)
        self.assertEqual((done.status, done.out, done.err), (0, "", ""))

    def test_final_config_is_a_gpt2_config(self):
        for ours, theirs in (("gelu", "gelu"), ("gelu_tanh", "gelu_new")):
            self.job["model"].update(activation=ours, dropout=0.1)
            done = self.run_job(dict(self.job, job={"name": "gpt", "steps": 1}), output=ours)
            self.assertEqual(done.status, 0, done.err)
            with open(os.path.join(self.directory, ours, "final/config.json")) as file:
                config = json.load(file)
            wanted = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 2, "n_embd": 32,
                      "n_positions": 32, "vocab_size": 256, "activation_function": theirs, "layer_norm_epsilon": 1e-5,
                      "tie_word_embeddings": True, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
            self.assertEqual({key: config.get(key) for key in wanted}, wanted)

    @unittest.skipIf(subprocess.run([*CONTAINER, "true"], capture_output=True).returncode, "no process ids of one's own here")
    def test_jobs_whose_launchers_have_the_same_process_id_do_not_meet(self):
        """They mapped one another's messages: segmentation faults."""
        jobs = []
        for name in "ab":
            temporary = os.path.join(self.directory, name)
            os.mkdir(temporary)
            inside = ["env", f"TMPDIR={temporary}", f"XDG_RUNTIME_DIR={temporary}", sys.executable, "-c", FIRST]
            command = [*CONTAINER, *inside, *self.command(self.job, 2, (), f"run-{name}")]
            jobs.append(harness.Running(self, command, f"run-{name}"))
        for job in jobs:
            done = job.wait(60)
            self.assertEqual(done.status, 0, done.err)
        self.assertEqual(*[[step["loss"] for step in job.log("step")] for job in jobs])

    def test_the_coordinator_is_bound_to_no_core_and_belongs_to_no_group(self):
        job = self.start(dict(self.job, job={"name": "gpt", "steps": 10**9}), mpirun=["--bind-to", "core"]).until_step(1)
        coordinator, rank = job.connection()["pid"], job.ranks()[0]
        every = {int(cpu) for cpu in os.sched_getaffinity(0)}
        self.assertEqual(os.sched_getaffinity(coordinator), every)
        if len(every) >= 2:
            self.assertLess(os.sched_getaffinity(rank), every)
        self.assertEqual((os.getsid(coordinator), os.getpgid(coordinator)), (coordinator, coordinator))
        files = {os.readlink(f"/proc/{coordinator}/fd/{fd}") for fd in os.listdir(f"/proc/{coordinator}/fd") if int(fd) < 3}
        self.assertEqual(files, {"/dev/null"})
        os.kill(rank, signal.SIGKILL)
        job.wait(20)


if __name__ == "__main__":
    harness.main()
