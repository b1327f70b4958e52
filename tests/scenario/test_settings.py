"""Other values of what a job is made of, set while it runs: from which window on, what they do, and that a resume keeps them."""
import json
import os
import re
import shutil
import signal

import checkpoints
import control
import harness
import toys
from control import INVALID, REFUSED, slow_tape
from stubs import control_pb2

SLOW = control.SLOW


def changes(reply):
    return [(change.path, change.was, change.now) for change in reply.changes]


class Setting(control.Steered):
    """Windows of slow_tape have the gradient 1, exactly: the weight is minus the sum of all lr."""

    def settings(self, running):
        return [record for record in self.controls(running) if record["method"] == "SetParameters"]

    def check_kill_and_resume(self, running, job, ranks):
        """kill -9 of a rank; the same command goes on. Returns the last start's records."""
        os.kill(max(running.ranks().items())[1], signal.SIGKILL)
        running.wait()
        harness.until(lambda: not self.processes(), 10, "the end of the coordinator")
        done = self.run_job("job.yaml", ranks=0 if ranks == 1 else ranks)
        self.assertEqual(done.status, 0, done.err)
        records = running.log()
        return records[max(i for i, record in enumerate(records) if record["type"] == "header"):]

    def test_lr_is_that_of_every_window_behind_the_boundary(self):
        for ranks in (1, 2):
            output = f"run{ranks}"
            running = self.begin(slow_tape(ranks=ranks, steps=40, lr=1), ranks=ranks, output=output)
            stub = self.stub(running)
            reply = self.set(stub, optimizer__lr=0.5)
            self.assertEqual(changes(reply), [("optimizer.lr", "1", "0.5")])
            at = reply.effect.step
            self.end(running, 0)
            self.assertLess(at, 40)
            self.assertEqual([step["lr"] for step in running.log("step")], [1] * at + [0.5] * (40 - at))
            self.assert_near(self.weight(output), -at - 0.5 * (40 - at), 0)
            record, = self.settings(running)
            self.assertEqual((record["step"], record["accepted"], record["changes"]),
                             (at, True, [{"key": "optimizer.lr", "was": "1", "now": "0.5"}]))

    def test_groups_keep_their_ratio(self):
        """Worked out here: half_mse of two rows, the bias at a quarter of the rate."""
        job = toys.job_of({"type": "linear", "inputs": 1, "bias": True,
                           "init": {"values": {"weight": [0.5], "bias": [0.25]}}}, steps=3000, batch=2, micro=1, lr=2.0**-8, compute="fp64",
                          optimizer_={"groups": [{"match": "bias", "lr": 2.0**-10}]})
        running = self.begin(job, rows=[(1, 1.0, 1.0), (1, -0.5, 0.25)])
        stub = self.stub(running)
        at = self.set(stub, optimizer__lr=2.0**-6).effect.step
        self.end(running, 0)
        self.assertLess(at, 3000)
        weight, bias = (toys.read_safetensors(os.path.join(running.output, "final", "model.safetensors"))[name].ravel()[0]
                        for name in ("weight", "bias"))
        w, b = 0.5, 0.25
        for step in range(3000):
            lr = 2.0**-8 if step < at else 2.0**-6
            one, other = w + b - 1, -0.5 * w + b - 0.25
            w, b = w - lr * (one - 0.5 * other) / 2, b - lr / 4 * (one + other) / 2
        self.assert_near([weight, bias], [w, b], 1e-9)

    def test_the_global_batch_changes_one_window_later(self):
        """Rows 1, 2, 3, …: which of them a window holds is seen by its gradient; K and M follow. At 1 and at 2 ranks."""
        for ranks in (1, 2):
            count, before, after, total = 40 * 1024, 512, 1024, 600
            rows = [float(i % 251) for i in range(count)]
            job = toys.tape((0,), steps=total, batch=before, micro=1, lr=2.0**-20, compute="fp64")
            output = f"run{ranks}"
            running = self.begin(job, rows=rows, ranks=ranks, output=output, step=0)
            stub = self.stub(running)
            self.pause(stub)
            self.resume(stub)
            reply = self.set(stub, batch__global=after)
            at = reply.effect.step
            self.assertEqual(reply.changes[0].effect.step, at + 1)
            self.end(running, 0)
            self.assertLess(at + 1, total)
            weight, first = 0.0, 0
            for index, step in enumerate(running.log("step")):
                size = min(before if index < at + 1 else after, count - first)  # an epoch's last batch is short
                mean = sum(rows[first:first + size]) / size
                first = (first + size) % count
                self.assert_close(step["grad_norm"], mean, 1e-12)
                self.assertEqual(step["accumulate"], [size // ranks] * ranks)
                weight -= 2.0**-20 * mean
            self.assert_close(self.weight(output), [weight], 1e-12)

    def test_a_paused_job_takes_the_batch_at_once(self):
        rows = [float(i % 251) for i in range(40 * 1024)]
        job = toys.tape((0,), steps=12, batch=512, micro=1, lr=2.0**-20, compute="fp64")
        running = self.begin(job, rows=rows, ranks=2, step=0)
        stub = self.stub(running)
        here = self.pause(stub)
        reply = self.set(stub, batch__global=256, optimizer__lr=2.0**-21)
        self.assertEqual((reply.effect, reply.changes[0].HasField("effect")), (here, False))
        self.assertEqual(re.search(r"\n  global: (\d+)", self.config(stub).yaml).group(1), "256")
        self.resume(stub)
        self.end(running, 0)
        for index, step in enumerate(running.log("step")):
            self.assertEqual(sum(step["accumulate"]), 512 if index < here.step else 256)
            self.assertEqual(step["lr"], 2.0**-20 if index < here.step else 2.0**-21)
        first = 512 * here.step
        self.assert_close(running.log("step")[here.step]["grad_norm"], sum(rows[first:first + 256]) / 256, 1e-12)

    def test_the_batch_behind_the_checkpoint_of_its_boundary(self):
        """The same parameters as the run that was ended and went on from there, with the new B."""
        rows = [float(i % 251) for i in range(40 * 1024)]
        job = toys.tape((0,), steps=14, batch=512, micro=1, lr=2.0**-10, optimizer_={"momentum": 0.5}, compute="fp64")
        running = self.begin(job, rows=rows, ranks=2, step=0, output="whole")
        stub = self.stub(running)
        here = self.pause(stub)
        while here.step < 2:
            self.resume(stub)
            here = self.pause(stub)
        self.set(stub, batch__global=1024)
        name = self.checkpoint(stub).name
        self.resume(stub)
        self.end(running, 0)
        whole = toys.Outcome(running.wait(), running.output)
        cut = self.directory_of("cut")
        os.makedirs(cut)
        rest = self.train_into("cut", job, rows, 2, ["--resume", checkpoints.path(running.output, name)])
        self.assertEqual(rest.header["effective_batch"], 1024)
        self.assertEqual(rest.weight.tobytes(), whole.weight.tobytes())
        other = self.train_into("other", job, rows, 3, ["--resume", checkpoints.path(running.output, name)])  # another N
        self.assertEqual(other.header["effective_batch"], 1024)
        self.assert_close(other.weight, whole.weight, 1e-12)

    def test_settings_survive_a_kill(self):
        """… and stand in the header; --set is stronger."""
        for ranks in (1, 2):
            job = slow_tape(ranks=ranks, steps=60, lr=1, checkpoint={"every": 1}, schedule={"type": "linear", "minimum": 0})
            running = self.begin(job, ranks=ranks, output="run")
            stub = self.stub(running)
            reply = self.set(stub, optimizer__lr=0.5, job__steps=80, optimizer__clip_norm=0.25)
            self.assertEqual(changes(reply), [("job.steps", "60", "80"), ("optimizer.lr", "1", "0.5"),
                                              ("optimizer.clip_norm", "null", "0.25"), ("schedule.total", "60", "80")])
            self.assertEqual([(setting.path, setting.value) for setting in self.config(stub).set],
                             [("optimizer.lr", "0.5"), ("job.steps", "80"), ("optimizer.clip_norm", "0.25")])
            name = self.checkpoint(stub).name
            self.assertEqual(len(checkpoints.manifest(running.output, name)["settings"]), 3)
            records = self.check_kill_and_resume(running, job, ranks)
            self.assertEqual([(each["path"], each["value"]) for each in records[0]["settings"]],
                             [("optimizer.lr", "0.5"), ("job.steps", "80"), ("optimizer.clip_norm", "0.25")])
            self.assertEqual(records[0]["changes"], [])
            steps = [record for record in records if record["type"] == "step"]
            self.assertEqual(steps[-1]["optimizer_steps"], 80)
            for step in steps:
                self.assert_close(step["lr"], 0.5 * (1 - (step["optimizer_steps"] - 1) / 80), 1e-12)
                self.assert_close(step["grad_norm_clipped"], 0.25, 1e-5)
            done = self.run_job("job.yaml", ranks=0 if ranks == 1 else ranks, arguments=["--set", "job.steps=82"])
            self.assertEqual(done.status, 0, done.err)
            last = running.log("header")[-1]
            self.assertEqual([each["path"] for each in last["settings"]], ["optimizer.lr", "optimizer.clip_norm"])
            self.assertEqual(running.log("step")[-1]["optimizer_steps"], 82)
            shutil.rmtree(running.output)

    def test_a_checkpoint_where_the_job_is_paused_gets_what_is_set_there(self):
        """Whether it was asked for or due, and the job is stopped or killed behind it; no tensor is written again."""
        for every, ends in ((0, "stop"), (1, "kill")):
            with self.subTest(every=every, ends=ends):
                self.check_set_while_paused(f"run-{every}-{ends}", every, ends)

    def check_set_while_paused(self, output, every, ends):
        job = toys.job_of({"type": "linear", "inputs": 1, "bias": True}, steps=10**6, batch=32, micro=1, lr=2.0**-8,
                          optimizer="adamw", optimizer_={"groups": [{"match": "weight"}, {"match": "bias"}]},
                          compute="fp16", scale=8, checkpoint={"every": every})
        running = self.begin(job, rows=[(1, 1.0, 1.0)] * 128, ranks=2, output=output)
        stub = self.stub(running)
        here = self.pause(stub).optimizer_steps
        name = self.checkpoint(stub).name
        before = checkpoints.contents(running.output, name)[0]
        settings = {"batch.global": "16", "optimizer.lr": "0.5", "job.steps": str(here + 4), "optimizer.groups.1.frozen": "true",
                    "precision.loss_scale.current": "32"}
        for path, value in settings.items():
            self.set_paths(stub, {path: value})
        if ends == "stop":
            self.stop(stub)
            self.end(running, 75)
        else:
            self.assertEqual(self.checkpoint(stub).name, name)
            os.kill(running.ranks()[1], signal.SIGKILL)
            running.wait()
            harness.until(lambda: not self.processes(), 10, "the end of the coordinator")
        self.assertEqual(checkpoints.names(running.output)[-1], name)
        after, facts = checkpoints.contents(running.output, name)
        self.assertEqual(after, before)
        kept = {each["path"]: each["value"] for each in facts["settings"]}
        self.assertEqual({path: kept.get(path) for path in settings if path != "precision.loss_scale.current"},
                         {path: value for path, value in settings.items() if path != "precision.loss_scale.current"})
        self.assertEqual(self.run_job("job.yaml", ranks=2, output=output).status, 0)
        for step in running.log("step")[here:]:
            self.assertEqual((step["lr"], step["loss_scale"], step["accumulate"]), (0.5, 32, [8, 8]))
        self.assertEqual(running.log("step")[-1]["optimizer_steps"], here + 4)

    def test_the_scale(self):
        """The next window has it, and its tracker begins anew; later overflows and growths go on from it."""
        for ranks in (1, 2):
            output = f"run{ranks}"
            job = slow_tape(ranks=ranks, steps=60, compute="fp16", scale={"initial": 8, "interval": 20})
            running = self.begin(job, ranks=ranks, output=output)
            stub = self.stub(running)
            reply = self.set_paths(stub, {"precision.loss_scale.current": 256})
            at = reply.effect.step
            was = running.log("step")[0]["loss_scale"]
            self.assertEqual(was, 8)
            self.end(running, 0)
            steps = running.log("step")
            self.assertEqual(changes(reply), [("precision.loss_scale.current", str(int(steps[at - 1]["loss_scale"])), "256")])
            self.assertEqual((steps[at - 1]["loss_scale_next"], steps[at - 1]["growth_tracker"]), (256, 0))
            self.assertEqual([step["loss_scale"] for step in steps[at:at + 21]], [256] * 20 + [512])
            self.assertEqual(steps[at]["growth_tracker"], 1)
            self.assert_near(self.weight(output), -60 * 2.0**-10, 0)

    def test_a_choice_brings_keys_of_its_own_and_takes_them_along(self):
        """on_overflow: retry has retries. 2^30 / SLOW overflows until it has fallen three times. Both survive a stop."""
        def of(key):
            return "precision.loss_scale." + key

        running = self.begin(slow_tape(compute="fp16", scale=8))
        stub = self.stub(running)
        self.assertIn("does not apply", self.refused(REFUSED, lambda: self.set_paths(stub, {of("retries"): 5})))
        reply = self.set_paths(stub, {of("retries"): 5, of("on_overflow"): "retry", of("current"): 2**30})
        self.assertEqual(changes(reply), [(of("on_overflow"), "skip", "retry"), (of("retries"), "", "5"),
                                          (of("current"), "8", "1073741824")])
        step = running.until_step(reply.effect.step + 1).log("step")[reply.effect.step]
        self.assertEqual((step["verdict"], step["retries"], step["loss_scale"]), ("apply", 3, 2**27))
        self.stop(stub)
        self.end(running, 75)
        running = self.met(self.start("job.yaml", ranks=0), step=1)
        stub = self.stub(running)
        kept = {setting.path: setting.value for setting in self.config(stub).set}
        self.assertEqual(kept, {of("on_overflow"): "retry", of("retries"): "5"})
        self.set_paths(stub, {of("on_overflow"): "skip"})
        self.assertEqual([(each.path, each.value) for each in self.config(stub).set], [(of("on_overflow"), "skip")])

    def test_a_window_that_is_run_again_is_no_boundary_before_its_end(self):
        """With interval: 1 every window overflows once. Whenever one is asked, what is answered is where it takes effect."""
        scale = {"initial": 2.0**27, "interval": 1, "on_overflow": "retry"}
        running = self.begin(slow_tape(compute="fp16", scale=scale, checkpoint={"every": 0}), step=3)
        stub = self.stub(running)
        steps = {}
        for i in range(1, 9):
            steps[2.0**-i] = self.set(stub, optimizer__lr=2.0**-i).effect.step
        names = [self.checkpoint(stub).name for _ in range(4)]
        stopped = self.stop(stub)
        self.end(running, 75)
        log = running.log("step")
        self.assertEqual({step["retries"] for step in log[1:]}, {1})
        for lr, step in steps.items():
            self.assertEqual(next(record["step"] for record in log if record["lr"] == lr), step + 1)
        self.assertEqual(stopped.step, log[-1]["step"])
        self.assertEqual([record["name"] for record in running.log("checkpoint")], [*names, f"step-{stopped.optimizer_steps:08}"])

    def test_intervals(self):
        job = slow_tape(steps=10**6, checkpoint={"every": 0, "keep": 0})
        running = self.begin(job)
        stub = self.stub(running)
        at = self.set(stub, checkpoint__every=2, checkpoint__keep=2).effect.step
        running.until_step(at + 9)
        harness.until(lambda: len(checkpoints.names(running.output)) >= 2, 20, "checkpoints")
        for record in running.log("checkpoint"):
            self.assertEqual(record["optimizer_steps"] % 2, 0)
        self.assertLessEqual(len(checkpoints.names(running.output)), 3)

    def test_a_job_ends_at_the_steps_that_it_has_now(self):
        running = self.begin(slow_tape(lr=1))
        stub = self.stub(running)
        done = self.status(stub).optimizer_steps
        self.assertIn("is below the", self.refused(REFUSED, lambda: self.set(stub, job__steps=1)))
        self.assertEqual(self.set(stub, job__steps=done + 40).changes[0].was, "1000000")
        self.end(running, 0)
        self.assert_near(self.weight(), -done - 40, 0)
        self.assertEqual(self.result()["total_steps"], done + 40)

    def test_in_a_window_all_or_none(self):
        running = self.begin(slow_tape(control={"listen": "tcp://127.0.0.1:0"}), step=0)
        stub = self.stub(running)
        token = running.connection()["token"]
        metadata = [("authorization", f"Bearer {token}")]
        status = lambda: stub.GetStatus(control_pb2.GetStatusRequest(), metadata=metadata, timeout=20)  # noqa: E731
        harness.until(lambda: status().phase == "training", 20, "training")
        two = [control_pb2.Setting(path=path, value=value) for path, value in (("optimizer.lr", "0.5"), ("optimizer.clip_norm", "-1"))]
        self.assertIn("optimizer.clip_norm: ", self.refused(INVALID, lambda: stub.SetParameters(
            control_pb2.SetParametersRequest(settings=two), metadata=metadata, timeout=60)))
        with running.held():
            good = stub.SetParameters.future(control_pb2.SetParametersRequest(settings=two[:1]), metadata=metadata, timeout=60)
            harness.until(lambda: list(status().requests) == ["set optimizer.lr"], 20, "the request")
        self.assertEqual(good.result().changes[0].now, "0.5")
        refused, accepted = self.settings(running)
        self.assertEqual((refused["accepted"], refused["changes"], accepted["accepted"]), (False, [], True))
        self.assertRegex(accepted["by"], r"^token control from 127\.0\.0\.1:\d+$")
        self.assertNotIn(token, json.dumps(running.log()))

    def test_what_is_refused(self):
        running = self.begin(slow_tape(ranks=2), ranks=2)
        stub = self.stub(running)
        for code, path, value, words in (
                (INVALID, "optimizer.lr", "fast", "optimizer.lr: "), (INVALID, "optimizer.lr", "-1", "optimizer.lr: "),
                (INVALID, "optimizer.rl", "1", "unknown key; did you mean"), (INVALID, "batch.accumulate", "4", "is derived: K and M"),
                (INVALID, "M", "4", "is derived: K and M"), (INVALID, "batch.global", "1", "cannot be shared by 2 ranks"),
                (INVALID, "batch.global", "0", "batch.global: "), (INVALID, "", "1", "wants the path of a key"),
                (REFUSED, "batch.micro", "2", "cannot be changed while the job runs"),
                (REFUSED, "model.size", "2", "cannot be changed while the job runs"),
                (REFUSED, "precision.loss_scale.current", "8", "has no loss scale"),
                (INVALID, "evaluation.every", "5", "needs data.validation")):
            self.assertIn(words, self.refused(code, lambda: self.set_paths(stub, {path: value})), path)
        twice = [control_pb2.Setting(path="optimizer.lr", value="1")] * 2
        for settings, words in (([], "between 1 and"), (twice, "is given twice")):
            self.assertIn(words, self.refused(INVALID, lambda: stub.SetParameters(
                control_pb2.SetParametersRequest(settings=settings), timeout=20)))
        self.assertEqual([record["accepted"] for record in self.settings(running)], [False] * 14)
        self.assertEqual(changes(self.set(stub, optimizer__lr=2.0**-10)), [("optimizer.lr", "0.0009765625", "0.0009765625")])

    def test_a_list_goes_by_its_index_as_on_the_command_line(self):
        """One path for what may be set, the answer, the record, the resumed header and what is said of the file; --set takes it."""
        path = "optimizer.0.lr"
        job = slow_tape(lr=1)
        job["optimizer"].update(name="all", match="*")
        job["optimizer"] = [job["optimizer"]]
        running = self.begin(job)
        stub = self.stub(running)
        self.assertEqual([live for live in self.config(stub).live if live.startswith("optimizer.")], [path, "optimizer.0.clip_norm"])
        self.assertIn("no element lr", self.refused(INVALID, lambda: self.set_paths(stub, {"optimizer.lr": "0.5"})))
        self.assertEqual(changes(self.set_paths(stub, {path: "0.5"})), [(path, "1", "0.5")])
        self.assertEqual(self.settings(running)[-1]["changes"], [{"key": path, "was": "1", "now": "0.5"}])
        self.stop(stub)
        self.end(running, 75)
        steps = self.result()["optimizer_steps"]
        job["optimizer"][0]["momentum"] = 0.5
        done = self.run_job(job, ranks=0, arguments=["--set", f"job.steps={steps + 2}"])
        self.assertEqual(done.own_lines(), ["gaccd: optimizer.0.momentum: 0 stays as in the checkpoint, not 0.5; "
                                            "--set optimizer.0.momentum=… changes it"])
        self.assertEqual(running.log("header")[-1]["settings"], [{"path": path, "value": "0.5"}])
        self.assertEqual([step["lr"] for step in running.log("step")[-2:]], [0.5, 0.5])
        done = self.run_job(job, ranks=0, arguments=["--set", f"job.steps={steps + 3}", "--set", f"{path}=0.25"])
        self.assertEqual((done.status, running.log("header")[-1]["settings"]), (0, []))
        self.assertEqual(running.log("step")[-1]["lr"], 0.25)

    def test_the_configuration(self):
        running = self.begin(slow_tape(compute="fp16", scale=8))
        stub = self.stub(running)
        self.set(stub, optimizer__lr=0.25)
        config = self.config(stub)
        self.assertIn("\n  lr: 0.25\n", config.yaml)
        self.assertIn(f"\n  global: {SLOW} ", config.yaml)
        self.assertIn("optimizer.lr", config.live)
        self.assertIn("precision.loss_scale.current", config.live)
        self.assertNotIn("batch.micro", config.live)
        self.assertEqual([(setting.path, setting.value) for setting in config.set], [("optimizer.lr", "0.25")])


if __name__ == "__main__":
    harness.main()
