"""Groups that are frozen, and trained again, while the job runs: from one step on, on all ranks, with fresh moments, over a resume
(G4)."""
import os

import numpy

import checkpoints
import control
import toys
from control import INVALID, REFUSED

LINEAR = {"type": "linear", "inputs": 1, "init": {"values": {"weight": [0.1], "bias": [0]}}}
WEIGHT, BIAS = "optimizer.groups.0.frozen", "optimizer.groups.1.frozen"
LR = 2.0**-10


def endless(**keys):
    """AdamW whose gradients are −1e6 all along: lr a step, from the first step with fresh moments on; 3.2 lr in the first one, if
    only the moments were, and not their count."""
    keys.setdefault("optimizer_", {"groups": [{"match": "weight", "frozen": True}, {"match": "bias"}]})
    return toys.job_of(LINEAR, steps=10**6, batch=4, lr=LR, compute="fp64", optimizer="adamw", **keys)


class Freezing(control.Steered):
    rows = 4 * [(1, 1, 1e6)]

    def pause_behind(self, stub, step):
        """Where the job is held then, some steps further on than that."""
        here = self.pause(stub)
        while here.step < step:
            self.resume(stub)
            here = self.pause(stub)
        return here.step

    def final(self, running):
        return toys.read_safetensors(os.path.join(running.output, "final", "model.safetensors"))

    def finish(self, stub, running):
        """The steps of the job."""
        self.resume(stub)
        self.stop(stub, finish=True)
        self.end(running, 0)
        return running.log("step")

    def test_from_one_step_on_with_fresh_moments(self):
        """The weight is trained behind the first boundary, the bias frozen behind the second and trained behind the third."""
        for ranks in (1, 2, 4):
            running = self.begin(endless(), self.rows, ranks, output=f"run{ranks}")
            stub = self.stub(running)
            self.assertLess({WEIGHT, BIAS}, set(self.config(stub).live))
            places = []
            for settings in ({WEIGHT: "false"}, {BIAS: "true"}, {BIAS: "false"}):
                here = self.pause_behind(stub, places[-1] + 3 if places else 3)
                reply = self.set_paths(stub, settings)
                (path, value), = settings.items()
                was = "true" if value == "false" else "false"
                self.assertEqual([(c.path, c.was, c.now) for c in reply.changes], [(path, was, value)])
                self.assertEqual(reply.effect.step, here)
                places.append(here)
            steps = self.finish(stub, running)
            first, second, third = places
            for index, step in enumerate(steps):
                self.assertEqual([rate is None for rate in step["lr_groups"]], [index < first, second <= index < third], index)
                self.assertEqual(step["collectives"]["control"] > 0, index in places, index)
            weight, bias = (self.final(running)[name].item() for name in ("weight", "bias"))
            self.assert_near([weight, bias], [0.1 + LR * (len(steps) - first), LR * (second + len(steps) - third)], 1e-6)
            told = [record["changes"] for record in self.controls(running) if record["method"] == "SetParameters"]
            self.assertEqual([change["key"] for change, in told], [WEIGHT, BIAS, BIAS])

    def test_a_checkpoint_of_that_boundary_and_later_ones_go_on_with_it(self):
        """The files of the first have no moments for what is trained from there on. Another N each time."""
        job = endless(checkpoint={"every": 0, "keep": 0})
        running = self.begin(job, self.rows, 2, output="whole")
        stub = self.stub(running)
        at = self.pause_behind(stub, 3)
        self.set_paths(stub, {WEIGHT: "false", BIAS: "true"})
        names = [self.checkpoint(stub).name]
        self.resume(stub)
        later = self.pause_behind(stub, at + 3)
        names.append(self.checkpoint(stub).name)
        self.finish(stub, running)
        for name, done, ranks in zip(names, (at, later), (3, 1), strict=True):
            total = later + 5
            rest = self.train_into(f"rest{ranks}", {**job, "job": {"name": "toy", "steps": total}}, self.rows, ranks,
                                   ["--resume", checkpoints.path(running.output, name)])
            self.assertEqual(len(rest.steps), total - done)
            self.assert_near([rest.tensors[name].item() for name in ("weight", "bias")], [0.1 + LR * (total - at), LR * at], 1e-6)

    def test_the_bits_of_a_job_that_was_made_so(self):
        """A language model in bf16, dropout on, clipped: set while it runs, and by frozen_until."""
        job = toys.gpt(batch=5, micro=2, compute="bf16", lr=0.01, optimizer="adamw", model_={"dropout": 0.1}, steps=10**6,
                       optimizer_={"weight_decay": 0.1, "clip_norm": 0.5, "groups": [{"match": "h.*", "frozen": True}]})
        self.write("tokens", toys.tokens(8 * 30 + 1))
        job["data"]["train"] = "tokens"
        running = self.met(self.start(job, ranks=2), 1)
        stub = self.stub(running)
        at = self.pause_behind(stub, 2)
        self.set_paths(stub, {WEIGHT: "false"})
        self.resume(stub)
        self.pause_behind(stub, at + 2)
        total = len(self.finish(stub, running))
        job["optimizer"]["groups"] = [{"match": "h.*", "frozen_until": at}]
        job["job"]["steps"] = total
        done = self.run_job(job, ranks=2, output="made", limit=120)
        self.assertEqual(done.status, 0, done.err)
        made = toys.Outcome(done, self.directory_of("made"))
        for name, tensor in self.final(running).items():
            self.assertTrue(numpy.array_equal(made.tensors[name], tensor), name)

    def test_a_group_of_another_optimizer(self):
        sections = [{"name": "w", "match": "weight", "type": "adamw", "lr": LR},
                    {"name": "b", "match": "*", "type": "adamw", "lr": LR, "groups": [{"match": "bias"}]}]
        job = endless()
        job["optimizer"] = sections
        running = self.begin(job, self.rows)
        stub = self.stub(running)
        here = self.pause_behind(stub, 2)
        self.set_paths(stub, {"optimizer.1.groups.0.frozen": "true"})
        total = len(self.finish(stub, running))
        self.assert_near([self.final(running)[name].item() for name in ("weight", "bias")], [0.1 + LR * total, LR * here], 1e-6)

    def test_what_was_set_is_never_more_than_a_resume_takes(self):
        job = endless(optimizer_={"groups": [{"match": "weight"}] + 99 * [{"match": "bias"}]})
        running = self.begin(job, self.rows)
        stub = self.stub(running)
        for first in (0, 32):
            self.set_paths(stub, {f"optimizer.groups.{i}.frozen": "false" for i in range(first, first + 32)})
        refused = self.refused(REFUSED, lambda: self.set_paths(stub, {"optimizer.groups.64.frozen": "true"}))
        self.assertIn("more than 64 keys", refused)
        self.set_paths(stub, {"optimizer.groups.63.frozen": "true"})
        self.stop(stub)
        self.end(running, 75)
        done = self.result()["optimizer_steps"]
        self.train_into("run", {**job, "job": {"name": "toy", "steps": done + 2}}, self.rows)
        settings = running.log("header")[-1]["settings"]
        self.assertEqual((len(settings), settings[63]), (64, {"path": "optimizer.groups.63.frozen", "value": "true"}))

    def test_what_is_refused(self):
        groups = [{"match": "weight"}, {"match": "bias", "frozen_from": 10**6}]
        running = self.begin(endless(optimizer_={"groups": groups}), self.rows)
        stub = self.stub(running)
        for code, settings, word in (
            (INVALID, {"optimizer.groups.2.frozen": "true"}, "optimizer.groups.2.frozen"),
            (INVALID, {"optimizer.groups.*.frozen": "true"}, "a number is wanted in place of *"),
            (INVALID, {WEIGHT: "maybe"}, WEIGHT),
            (REFUSED, {BIAS: "true"}, "the group follows its frozen_from"),
            (REFUSED, {"optimizer.groups.0.weight_decay": "1"}, "cannot be changed while the job runs"),
        ):
            self.assertIn(word, self.refused(code, lambda settings=settings: self.set_paths(stub, settings)))
        self.stop(stub)
        self.end(running, 75)
        groups[:] = {"match": "weight", "frozen": True}, {"match": "bias"}
        running = self.begin(endless(optimizer_={"groups": groups}), self.rows, output="other")
        stub = self.stub(running)
        self.assertIn("nothing would be left to train", self.refused(REFUSED, lambda: self.set_paths(stub, {BIAS: "true"})))
        self.set_paths(stub, {BIAS: "true", WEIGHT: "false"})
        self.stop(stub, finish=True)
        self.end(running, 0)


if __name__ == "__main__":
    toys.harness.main()
