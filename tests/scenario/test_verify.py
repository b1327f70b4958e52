"""gaccd verify on small jobs of every model: what it prints, what it leaves behind, and that it notices every planted fault."""
import json
import os
import signal
import subprocess
import time

import harness

JSON_CHECK = {"name", "measured", "allowed", "pass"}


def rows(header, values):
    return ",".join(header) + "\n" + "".join(",".join(f"{number:g}" for number in row) + "\n" for row in values)


def wave(i):
    """Some number in (−1, 1), the same in every run."""
    return ((i * 7919 + 13) % 2003) / 1001.5 - 1


def mlp(**sections):
    """Eight inputs, two layers, fractional weights, and rows that are masked."""
    job = {
        "job": {"name": "mlp", "steps": 5},
        "model": {"type": "mlp", "inputs": 8, "hidden": [16], "outputs": 2, "activation": "tanh"},
        "data": {"format": "csv", "train": "mlp.csv"},
        "batch": {"global": 12, "micro": 3},
        "optimizer": {"type": "adamw", "lr": 0.001},
    }
    job.update(sections)
    header = ["weight", *(f"x{i}" for i in range(8)), "y0", "y1"]
    values = [[(r % 4) / 2, *(wave(r * 10 + i) for i in range(10))] for r in range(40)]
    return job, rows(header, values)


def linear(**sections):
    job = {
        "job": {"name": "linear", "steps": 5},
        "model": {"type": "linear", "inputs": 3},
        "data": {"format": "csv", "train": "linear.csv"},
        "batch": {"global": 8, "micro": 2},
        "optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9},
    }
    job.update(sections)
    values = [[1, *(wave(r * 4 + i) for i in range(4))] for r in range(20)]
    return job, rows(["weight", "x0", "x1", "x2", "y0"], values)


def tape(**sections):
    job, _ = harness.tape(steps=5, batch={"global": 8, "micro": 2}, model={"type": "tape", "size": 5}, **sections)
    values = [[1 + r % 3, *(wave(r * 5 + i) for i in range(5))] for r in range(20)]
    return job, rows(["weight", *(f"g{i}" for i in range(5))], values)


class Verify(harness.Scenario):
    def verify(self, job, data, name, ranks=0, arguments=(), output="run", limit=120):
        """ranks 0: without mpirun."""
        self.write(name, data)
        self.write("job.yaml", json.dumps(job))
        launcher = ["mpirun", "-n", str(ranks)] if ranks else []
        return self.call(*launcher, harness.GACCD, "verify", "job.yaml", "--output", output, *arguments, limit=limit)

    def findings(self, done):
        self.assertIn(done.status, (0, 76), done.err)
        return json.loads(done.out)

    def check_all_pass(self, job, data, name, ranks=0, caught=12, arguments=()):
        done = self.verify(job, data, name, ranks, ["--json", *arguments])
        found = self.findings(done)
        self.assertEqual(set(found), {"checks", "negative_controls", "pass"})
        for check in found["checks"]:
            self.assertLessEqual(JSON_CHECK, set(check))
            self.assertTrue(check["pass"], check)
        for control in found["negative_controls"]:
            self.assertTrue(control["pass"], control)
            self.assertTrue(control["skipped"] or control["caught_by"], control)
        self.assertGreaterEqual(sum(not control["skipped"] for control in found["negative_controls"]), caught)
        self.assertTrue(found["pass"])
        self.assertEqual((done.status, done.err), (0, ""))
        return found

    # --- every model ---

    def test_a_language_model_passes_and_every_fault_is_caught(self):
        job, text = harness.gpt()
        found = self.check_all_pass(job, text, "text.txt", caught=20)
        self.assertEqual({control["fault"] for control in found["negative_controls"] if control["skipped"]},
                         {"masked targets counted", "penalty in full in every micro-batch", "only the rank that overflowed skips", "recomputed without dropout",
                          "recomputed from the next block's input"})

    def test_a_language_model_passes_over_mpi(self):
        job, text = harness.gpt(precision={"compute": "fp16"})
        job["data"]["mask"] = {"values": [ord("e")]}
        found = self.check_all_pass(job, text, "text.txt", ranks=2, caught=21)
        self.assertFalse(next(each for each in found["negative_controls"] if each["fault"] == "masked targets counted")["skipped"])
        over_mpi = next(check for check in found["checks"] if check["name"] == "fp32: mpirun's ranks = 1")
        self.assertFalse(over_mpi["skipped"])
        self.assertLess(over_mpi["measured"], 1e-5)

    def test_an_mlp_with_masked_rows_passes(self):
        found = self.check_all_pass(*mlp(), "mlp.csv", caught=18)
        masked = next(control for control in found["negative_controls"] if control["fault"] == "masked targets counted")
        self.assertFalse(masked["skipped"])

    def test_an_mlp_passes_over_mpi(self):
        self.check_all_pass(*mlp(), "mlp.csv", ranks=2, caught=18)

    def test_a_linear_model_passes(self):
        self.check_all_pass(*linear(), "linear.csv")

    def test_a_linear_model_passes_over_mpi(self):
        self.check_all_pass(*linear(), "linear.csv", ranks=2)

    def test_a_tape_passes(self):
        self.check_all_pass(*tape(), "tape.csv")

    def test_a_tape_passes_over_mpi(self):
        self.check_all_pass(*tape(), "tape.csv", ranks=2)

    # --- other definitions of the loss ---

    def test_what_microbatch_weighting_does_not_promise_is_skipped_with_a_reason(self):
        job, data = mlp(batch={"global": 12, "micro": 3, "weighting": "microbatch"})
        found = self.check_all_pass(job, data, "mlp.csv")
        whole = next(check for check in found["checks"] if check["name"] == "fp32: accumulated = whole")
        self.assertTrue(whole["skipped"])
        self.assertIn("microbatch", whole["note"])

    def test_the_sum_passes(self):
        job, data = mlp(batch={"global": 12, "micro": 3, "weighting": "sum"})
        self.check_all_pass(job, data, "mlp.csv")

    # --- other jobs ---

    def test_profiles_and_fixed_scales_pass(self):
        for loss_scale in ({"profile": "deepspeed", "hysteresis": 2}, {"profile": "megatron", "interval": 1},
                           {"mode": "static", "initial": 128}):
            with self.subTest(loss_scale):
                job, data = mlp(precision={"compute": "fp16", "loss_scale": loss_scale})
                self.check_all_pass(job, data, "mlp.csv")

    def test_a_classifier_in_fp64_with_groups_clip_and_a_schedule_passes(self):
        job, data = mlp(
            model={"type": "mlp", "inputs": 8, "hidden": [8, 8], "outputs": 3, "activation": "relu", "norm": "layer",
                   "loss": "cross_entropy"},
            precision={"compute": "fp64"}, schedule={"type": "cosine", "warmup": 2, "minimum": 1e-4},
            optimizer={"type": "adamw", "lr": 0.01, "weight_decay": 0.5, "clip_norm": 0.1,
                       "groups": [{"match": "layers.0.*", "lr": 0.02, "weight_decay": 0.1}, {"match": "*.1.*", "frozen": True}]})
        lines = [line.split(",") for line in data.split()]
        data = "\n".join(",".join([*line[:9], "y0" if i == 0 else str(i % 3)]) for i, line in enumerate(lines)) + "\n"
        self.check_all_pass(job, data, "mlp.csv")

    def test_as_few_rows_as_there_can_be_pass(self):
        job, data = linear(batch={"global": 2, "micro": 1})
        self.check_all_pass(job, "\n".join(data.split()[:3]) + "\n", "linear.csv", caught=8)

    def test_what_no_loss_scale_brings_into_fp16_is_skipped_unless_the_job_is_in_fp16(self):
        job, data = tape()
        data = data.split()[0] + "\n" + "1,1e20,1e20,1e20,1e20,1e20\n" * 20
        found = self.findings(self.verify(job, data, "tape.csv", arguments=["--json"]))
        self.assertEqual([check["name"] for check in found["checks"] if not check["pass"]], [])
        skipped = [check["name"] for check in found["checks"] if check["skipped"]]
        self.assertIn("fp16, S: accumulated = whole", skipped)
        self.assertIn("fp32: one AdamW step", skipped)  # nor into the second moment
        job["precision"] = {"compute": "fp16"}
        done = self.verify(job, data, "tape.csv", arguments=["--json"])
        self.assertEqual(done.status, 76)
        failed = [check for check in self.findings(done)["checks"] if not check["pass"]]
        self.assertIn("overflows in fp16 at every loss scale", {check["note"] for check in failed})

    def test_a_gradient_that_is_not_finite_is_no_pass(self):
        job, data = tape()
        lines = data.split()
        done = self.verify(job, "\n".join([lines[0], *(["1,inf,1,1,1,1"] * 20)]) + "\n", "tape.csv")
        self.assertEqual(done.status, 76, done.out)
        self.assertIn("NOT VERIFIED", done.out)
        self.assertIn("look first at fp32 accumulation", done.out)

    def normed(self, hidden=(12, 12, 12), **norm):
        return mlp(model={"type": "mlp", "inputs": 8, "hidden": list(hidden), "outputs": 2, "activation": "relu", **norm})

    def test_on_a_kink_the_slope_is_taken_beside_it(self):
        """A channel that is 0 in every row is normalised to 0, where relu has two slopes."""
        job, data = self.normed((16, 8), norm="batch", norm_stats="micro")
        done = self.verify(job, data, "mlp.csv", arguments=["--sequences", "9"])
        self.assertRegex(done.out, r"\nfp64: gradient = slope of the loss .* pass\n")

    def test_a_bias_before_batchnorm_has_a_gradient_of_noise_which_adamw_follows(self):
        job, data = self.normed(norm="batch", norm_stats="window")
        done = self.verify(job, data, "mlp.csv", arguments=["--sequences", "12"])
        self.assertEqual(done.status, 0, done.out)
        self.assertRegex(done.out, r"\nfp32: one AdamW step .* pass\n")

    def test_a_type_that_is_too_coarse_for_the_model_fails_the_job_that_computes_in_it(self):
        """Groups of six that relu has left little of: bf16 holds half of the gradient."""
        job, data = self.normed(norm="group", norm_groups=2)
        done = self.verify(job, data, "mlp.csv", arguments=["--sequences", "5"])
        self.assertEqual(done.status, 0, done.out)
        self.assertRegex(done.out, r"\nbf16: = fp64 reference kernels +skipped: .* bf16 is too coarse for this model")
        done = self.verify(dict(job, precision={"compute": "bf16"}), data, "mlp.csv", arguments=["--sequences", "5"])
        self.assertEqual(done.status, 76, done.out)
        self.assertRegex(done.out, r"\nbf16: = fp64 reference kernels .* FAIL\n")

    # --- the command ---

    def test_the_size_of_the_probe_can_be_chosen_and_is_printed(self):
        job, data = mlp()
        job["batch"]["micro"] = 2  # the least, whatever the machine can afford
        done = self.verify(job, data, "mlp.csv", arguments=["--sequences", "11"])
        self.assertEqual(done.status, 0, done.out)
        self.assertEqual(done.out.splitlines()[0], "probe: 11 sequences in 6 micro-batches of 2, the last of 1")
        self.assertIn("30 checks passed, 0 failed, 4 skipped", done.out.splitlines()[-1])
        self.assertIn("receipt: run/verify.json", done.out.splitlines()[-1])
        for count in ("4", "8"):  # an even number of micro-batches for a rank: what is done twice must not be as if never done
            done = self.verify(job, data, "mlp.csv", arguments=["--sequences", count])
            self.assertRegex(done.out, r"\nparameters written in a window +window: parameters are frozen\n")
        for words, why in ((["--sequences", "41"], "the training data hold 40"), (["--sequences", "x"], "--sequences x")):
            done = self.verify(job, data, "mlp.csv", arguments=words)
            self.assertEqual(done.status, 64)
            self.assertEqual(len(done.own_lines()), 1, done.err)
            self.assertIn(why, done.err)

    def test_errors_are_the_jobs(self):
        job, data = mlp()
        job["batch"]["micro"] = 13
        done = self.verify(job, data, "mlp.csv", ranks=2)
        self.assertEqual((done.status, len(done.own_lines())), (78, 1), done.err)
        job["batch"]["micro"] = 3
        done = self.verify(job, data.replace("y1", "y9"), "mlp.csv", ranks=2)
        self.assertEqual((done.status, len(done.own_lines())), (65, 1), done.err)

    def test_set_is_for_verify_too(self):
        job, data = mlp()
        done = self.verify(job, data, "mlp.csv", arguments=["--set", "batch.weighting=microbatch"])
        self.assertIn("skipped: weighting microbatch", done.out)

    def test_an_interruption_leaves_nothing(self):
        job, text = harness.gpt()
        self.write("text.txt", text)
        self.write("job.yaml", json.dumps(job))
        for launcher in ([], ["mpirun", "-n", "2"]):
            with self.subTest(launcher):
                process = subprocess.Popen([*launcher, harness.GACCD, "verify", "job.yaml", "--output", "run"],
                                           cwd=self.directory, env=self.environment, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, text=True)
                process.stdout.readline()
                process.send_signal(signal.SIGINT)
                _, said = process.communicate(timeout=20)
                self.assertNotEqual(process.returncode, 0)
                if not launcher:
                    self.assertEqual(said, "gaccd: verify: interrupted by SIGINT\n")
                self.assertFalse(os.path.exists(os.path.join(self.directory, "run")))

    def begin_together(self, timeout):
        """Three ranks, with minutes of work before them."""
        job, text = harness.slow_gpt(control={"timeout": timeout})
        self.write("text.txt", text)
        self.write("job.yaml", json.dumps(job))
        running = harness.Running(self, ["mpirun", "-n", "3", harness.GACCD, "verify", "job.yaml", "--output", "run"], "run")
        harness.until(lambda: "probe: " in running.said()[0], 60, "the probe")
        return running

    def test_a_stopped_rank_is_waited_for_until_the_timeout(self):
        for stopped, waits in ((1, 0), (0, 1)):
            running = self.begin_together(3)
            os.kill(running.ranks()[stopped], signal.SIGSTOP)
            done = running.wait(20)
            self.assertEqual(done.status, 70, done.err)
            ends = f"waits no longer for rank {stopped}, which is silent for 3 s (control.timeout)"
            lines = [line for line in done.own_lines() if line != f"gaccd: verify: rank 2 {ends}"]  # where mpirun takes two seconds more
            self.assertEqual(lines[:2], [
                f"gaccd: verify: rank {waits} waits for rank {stopped}, which is silent; not beyond 3 s (control.timeout)",
                f"gaccd: verify: rank {waits} {ends}"])
            self.assertEqual(lines[2:], [] if stopped else ["gaccd: verify: interrupted by rank 1's end"])
            self.assertFalse(os.path.exists(os.path.join(self.directory, "run")))

    def test_a_rank_that_goes_on_before_the_timeout_is_told_of_and_no_more(self):
        running = self.begin_together(60)
        pid = running.ranks()[1]
        os.kill(pid, signal.SIGSTOP)
        harness.until(lambda: "rank 0 waits for rank 1" in running.said()[1], 20, "a line")
        os.kill(pid, signal.SIGCONT)
        harness.until(lambda: "rank 1 goes on after" in running.said()[1], 20, "another")
        time.sleep(1)
        self.assertIsNone(running.process.poll())
        self.assertRegex(running.said()[1], "^gaccd: verify: rank 0 waits .*\ngaccd: verify: rank 1 goes on after [0-9.]+ s\n$")
        os.kill(pid, signal.SIGKILL)
        running.wait()

    # --- the receipt ---

    def receipt(self, output="run"):
        with open(os.path.join(self.directory, output, "verify.json")) as file:
            return json.load(file)

    def train(self, *arguments, output="run"):
        return self.call(harness.GACCD, "job.yaml", "--output", output, *arguments)

    def check_refused(self, why, *arguments, output="run"):
        done = self.train(*arguments, output=output)
        self.assertEqual(done.status, 76, done.err)
        self.assertEqual(len(done.err.splitlines()), 1, done.err)
        self.assertIn(why, done.err)
        self.assertFalse(os.path.exists(os.path.join(self.directory, output, "log.jsonl")))

    def test_a_receipt_says_what_it_is_for(self):
        job, data = linear()
        self.verify(job, data, "linear.csv", ranks=2)
        receipt = self.receipt()
        for key, length in (("job_digest", 64), ("program_digest", 64)):
            self.assertEqual(len(receipt[key]), length)
        self.assertTrue(receipt["device"].startswith("cpu"))
        self.assertEqual((receipt["ranks"], receipt["pass"]), (2, True))
        self.assertLess(abs(time.mktime(time.strptime(receipt["time"], "%Y-%m-%dT%H:%M:%SZ")) - time.timezone - time.time()), 60)
        self.assertEqual(os.listdir(os.path.join(self.directory, "run")), ["verify.json"])

    def test_training_that_requires_a_receipt_wants_the_right_one(self):
        job, data = linear(verify="required")
        self.write("linear.csv", data)
        self.write("job.yaml", json.dumps(job))
        self.check_refused("there is no receipt")
        del job["verify"]  # the key is not part of what the receipt is for
        self.assertEqual(self.verify(job, data, "linear.csv").status, 0)
        job["verify"] = "required"
        self.write("job.yaml", json.dumps(job))
        self.check_refused("another job", "--set", "optimizer.lr=0.2")
        self.check_refused("there is no receipt", output="elsewhere")
        path = os.path.join(self.directory, "run", "verify.json")
        sound = self.receipt()
        for key, value, why in (("program_digest", "0" * 64, "another gaccd program"), ("device", "abacus", "another device"),
                                ("pass", False, "the verification failed")):
            with open(path, "w") as file:
                json.dump({**sound, key: value}, file)
            self.check_refused(why)
        with open(path, "w") as file:
            file.write("[")
        self.check_refused("is no receipt")
        with open(path, "w") as file:
            json.dump(sound, file)
        done = self.train()
        self.assertEqual(done.status, 0, done.err)
        self.assertEqual(self.result()["status"], "done")

    def test_a_receipt_moves_with_the_run(self):
        job, data = linear(verify="required")
        self.verify(job, data, "linear.csv", output="first")
        os.rename(os.path.join(self.directory, "first"), os.path.join(self.directory, "second"))
        self.assertEqual(self.train(output="second").status, 0)


if __name__ == "__main__":
    harness.main()
