"""deploy/slurm/gaccd.sbatch under a real Slurm: warned before its time limit it saves, goes back into the queue, and goes on to the
bytes of the run that never ended; scancel ends it; srun starts it; two jobs share a node."""
import json
import os
import signal
import sys

import checkpoints
import cluster
import faults
import harness

SCRIPT = os.path.join(harness.ROOT, "deploy", "slurm", "gaccd.sbatch")
SRUN = "srun --mpi=pmix gaccd"
LAUNCHERS = {"mpirun": "", "srun": SRUN, "supervisor": "gaccd-run --gaccd gaccd --"}


class Batch(faults.Faults):
    def setUp(self):
        super().setUp()
        self.slurm = cluster.Cluster(os.path.join(self.directory, "slurm"), self.environment)
        self.slurm.environment["PATH"] = f"{os.path.dirname(harness.GACCD)}:{harness.ROOT}/deploy:{cluster.PATH}"
        self.slurm.start()

    def tearDown(self):
        self.slurm.stop()
        super().tearDown()

    def job(self, steps):
        job = self.gpt(steps=steps, checkpoint={"every": 10}, control={"timeout": 120})
        self.write("job.yaml", json.dumps(job))

    def submit(self, *options, output="run", ranks=2, **environment):
        said = self.slurm.call("sbatch", "--parsable", f"--ntasks={ranks}", "--output", output + ".out", *options, SCRIPT, "job.yaml",
                               "--output", output, cwd=self.directory, **environment)
        self.assertRegex(said, r"^\d+$")
        return said

    def said(self, output="run"):
        with open(os.path.join(self.directory, output + ".out")) as file:
            return file.read()

    def until_step(self, step, output="run"):
        harness.until(lambda: any(record["step"] >= step for record in self.log("step", output)), 30, f"step {step}")

    def ranks(self):
        return [pid for pid in self.processes()
                if os.path.basename(harness.executable_of(pid)) == "gaccd" and harness.name_of(pid) == "gaccd"]

    def final(self, output):
        with open(os.path.join(self.directory, output, "final", "model.safetensors"), "rb") as file:
            return file.read()

    def check_same_as_whole(self, *outputs):
        done = self.run_job("job.yaml", ranks=2, output="whole")
        self.assertEqual(done.status, 0, done.err)
        for output in outputs:
            self.assertEqual(self.final(output), self.final("whole"), output)

    def check_resumed(self, *resumed, output="run"):
        self.assertEqual([bool(header["resumed_from"]) for header in self.log("header", output)], list(resumed))

    def test_a_warning_before_the_time_limit(self):
        """By Slurm's own clock. The job is stopped meanwhile, so as not to be done before the warning comes."""
        self.job(steps=400)
        job = self.submit("--time=1", "--signal=B:USR1@10")
        self.until_step(20)
        for pid in self.ranks():
            os.kill(pid, signal.SIGSTOP)
        self.assertFalse(os.path.exists(os.path.join(self.directory, "run", "result.json")))
        harness.until(lambda: "the time limit is near" in self.said(), 60, "a warning")
        for pid in self.ranks():
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(self.slurm.wait(job, 90), "COMPLETED", self.said())
        self.assertEqual(self.slurm.state(job)[1], 1)
        self.assertIn("interrupted by SIGUSR2: checkpoint step-", self.said())
        self.check_resumed(False, True)
        self.check_same_as_whole("run")

    def test_a_warning_to_any_launcher(self):
        """The same signal, sent at once; each passes it on."""
        self.job(steps=2000)
        for output, launcher in LAUNCHERS.items():
            job = self.submit(output=output, GACCD_LAUNCHER=launcher)
            self.until_step(20, output)
            self.assertEqual(self.slurm.call("scancel", "--batch", "--signal=USR1", job), "")
            self.assertEqual(self.slurm.wait(job, 90), "COMPLETED", self.said(output))
            self.assertEqual(self.slurm.state(job)[1], 1)
            self.check_resumed(False, True, output=output)
            self.assertEqual({header["ranks"] for header in self.log("header", output)}, {2})
        self.check_same_as_whole(*LAUNCHERS)

    def test_scancel_ends_it_for_good(self):
        """Behind the checkpoint that the signal asks for, if it is written in time."""
        self.job(steps=faults.FOREVER)
        for output, launcher in LAUNCHERS.items():
            job = self.submit(output=output, GACCD_LAUNCHER=launcher)
            self.until_step(20, output)
            self.assertEqual(self.slurm.call("scancel", job), "")
            self.assertEqual(self.slurm.wait(job, 30), "CANCELLED", self.said(output))
            self.assertEqual(self.slurm.state(job)[1], 0)
            self.assertEqual(harness.until_empty(self.ranks, 10), [])
            result = self.result(output)
            self.assertEqual(result["exit"], 75)
            self.assertEqual(result["checkpoint"], checkpoints.names(os.path.join(self.directory, output))[-1])

    def test_two_jobs_on_one_node(self):
        self.job(steps=1500)
        jobs = {"one": self.submit(output="one"), "two": self.submit(output="two", GACCD_LAUNCHER=SRUN)}
        for output in jobs:
            self.until_step(20, output)
        self.assertEqual({self.slurm.state(job)[0] for job in jobs.values()}, {"RUNNING"})
        for output, job in jobs.items():
            self.assertEqual(self.slurm.wait(job, 90), "COMPLETED", self.said(output))
        self.check_same_as_whole(*jobs)

    def test_a_job_that_is_refused_is_not_put_back(self):
        self.job(steps=5)
        with open(os.path.join(self.directory, "job.yaml")) as file:
            text = file.read()
        self.write("job.yaml", text.replace('"layers"', '"lairs"'))
        job = self.submit()
        self.assertEqual(self.slurm.wait(job, 30), "FAILED", self.said())
        self.assertEqual(self.slurm.state(job)[1], 0)
        self.assertIn("lairs", self.said())


if __name__ == "__main__":
    if why := cluster.missing():
        print("skipped:", why)
        sys.exit(77)
    harness.main()
