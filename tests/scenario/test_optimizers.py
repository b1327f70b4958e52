"""Several optimizers in one job: one verdict, one scale, one norm (000 §8; G3, C1)."""

import json
import os

import numpy

import harness
import toys
from toys import gpt, job_of, tokens

TWO_LAYERS = {  # ŷ = b·a·x: at a = b = 1 the gradients of both layers are the same
    "type": "mlp",
    "inputs": 1,
    "hidden": [1],
    "outputs": 1,
    "bias": False,
    "activation": "none",
    "init": {"values": {"layers.0.weight": [1], "layers.1.weight": [1]}},
}


def two(first, second, **keys):
    """One optimizer for the first layer (or for weights), another for all else."""
    return [{"name": "one", "match": "*", **keys, **first}, {"name": "other", "match": "*", **second}]


class Optimizers(toys.Training):
    def job(self, model, optimizers, **keys):
        job = job_of(model, **keys)
        job["optimizer"] = optimizers
        return job

    def test_no_layer_is_left_scaled(self):
        """Two linear layers, an SGD for each, S = 1024: the ratio of their updates is 1, and would be S if one were left scaled.
        The gradient of each is 2: the norm is √8, and √8/2 halves both."""
        optimizers = two({"match": "layers.0.*", "type": "sgd", "lr": 0.25}, {"type": "sgd", "lr": 0.25})
        for ranks in (1, 3, 4):
            job = self.job(TWO_LAYERS, optimizers, batch=8, compute="fp16", scale=1024)
            out = self.train(job, 8 * [(1, 1, 0)], ranks)
            moved = [1 - out.tensors[f"layers.{i}.weight"].item() for i in range(2)]
            self.assert_near(moved, [0.5, 0.5])
            self.assert_near(out.steps[0]["grad_norm"], 8**0.5)
            self.assert_near(out.steps[0]["grad_norm_scaled"], 1024 * 8**0.5, 1e-3)
        optimizers[0]["clip_norm"] = 2**0.5
        out = self.train(self.job(TWO_LAYERS, optimizers, batch=8, compute="fp16", scale=1024), 8 * [(1, 1, 0)], 2)
        self.assert_near([1 - tensor.item() for tensor in out.tensors.values()], [0.25, 0.25])

    def test_an_overflow_in_one_keeps_all_from_stepping(self):
        """ŷ = b·a·x at a = 0, b = 1000: the gradient of b is 0, that of a S·1000 on its way, which at S = 128 is no number of fp16 and
        at S = 64 is one. b decays by an eighth in every step that is made: once; a's first step is one of AdamW's, by lr."""
        model = {**TWO_LAYERS, "init": {"values": {"layers.0.weight": [0], "layers.1.weight": [1000]}}}
        optimizers = two(
            {"match": "layers.1.*", "type": "sgd", "lr": 0.5, "weight_decay": 0.25, "momentum": 0.5},
            {"type": "adamw", "lr": 0.25},
        )
        for ranks, batch in ((1, 1), (2, 3), (4, 4)):
            job = self.job(model, optimizers, batch=batch, compute="fp16", scale=128 * batch)
            out = self.train(job, 2 * batch * [(1, 1, -0.5)], ranks)
            self.assertEqual(out.verdicts(), "SA")
            self.assertEqual(out.column("loss_scale"), [128 * batch, 64 * batch])
            self.assertEqual(out.steps[0]["nonfinite"]["tensor"], "layers.0.weight")
            self.assert_near([tensor.item() for tensor in out.tensors.values()], [-0.25, 875])

    def test_each_follows_its_own_algorithm_over_a_resume(self):
        """Linear regression in fp64 against numpy: AdamW with decay for the weight, SGD with momentum for the bias; interrupted
        after 3 of 6 steps, and gone on with at another N."""
        data = numpy.random.default_rng(3).normal(size=(48, 3)).round(3)
        start = [0.5, -0.25, 0.125]
        model = {"type": "linear", "inputs": 2, "init": {"values": {"weight": start[:2], "bias": start[2:]}}}
        optimizers = two(
            {"match": "weight", "type": "adamw", "lr": 0.02, "weight_decay": 0.3, "betas": [0.8, 0.95]},
            {"type": "sgd", "lr": 0.05, "momentum": 0.9},
        )
        w, b = numpy.array(start[:2]), start[2]
        m = v = d = 0
        for step, batch in enumerate(data.reshape(6, 8, 3), 1):
            error = batch[:, :2] @ w + b - batch[:, 2]
            g, h = (error[:, None] * batch[:, :2]).mean(axis=0), error.mean()
            m, v, d = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g, h if step == 1 else 0.9 * d + h
            w = w - 0.02 * 0.3 * w
            w = w - 0.02 * (m / (1 - 0.8**step)) / (numpy.sqrt(v / (1 - 0.95**step)) + 1e-8)
            b = b - 0.05 * d
        rows = [(1, *row) for row in data.tolist()]
        for ranks, then in ((1, 3), (4, 2)):
            job = self.job(model, optimizers, steps=3, batch=8, micro=3 if ranks == 1 else 1, compute="fp64", checkpoint={"every": 3})
            out = self.train(job, rows, ranks)
            self.assertEqual(
                [(group["optimizer"], group["lr"], group["weight_decay"]) for group in out.header["groups"]],
                [("one", 0.02, 0.3), ("other", 0.05, 0.0)],
            )
            self.assertEqual(out.header["memory"]["moments"], {1: 2 * 2 + 1, 4: 2}[ranks] * 8)
            job["data"]["train"] = "data"
            output = f"run{self.count}"
            done = self.run_job(job, ranks=then, output=output, arguments=("--set", "job.steps=6"))
            self.assertEqual(done.status, 0, done.err)
            found = toys.Outcome(done, os.path.join(self.directory, output)).tensors
            self.assert_near([*found["weight"].ravel(), found["bias"].item()], [*w, b], 1e-12)

    def test_two_alike_are_as_one(self):
        """A language model in bf16: a list of two AdamWs with the same numbers changes no bit, whatever is in which."""
        job = gpt(batch=5, micro=2, steps=4, compute="bf16", lr=0.01, optimizer="adamw",
                  optimizer_={"weight_decay": 0.1, "clip_norm": 0.5}, schedule={"type": "linear", "warmup": 1})
        alone = self.train(job, tokens(8 * 30 + 1))
        numbers = dict(job["optimizer"])
        clip = numbers.pop("clip_norm")
        job["optimizer"] = two({"match": "*.c_*", "clip_norm": clip}, numbers, **numbers)
        for ranks in (1, 2):
            out = self.train(job, tokens(8 * 30 + 1), ranks)
            for name, tensor in alone.tensors.items() if ranks == 1 else ():
                self.assertTrue(numpy.array_equal(out.tensors[name], tensor), name)
            self.assertEqual([len(step["lr_groups"]) for step in out.steps], 4 * [4])
            self.assert_near(out.column("grad_norm"), alone.column("grad_norm"), 1e-4)

    def test_a_list_is_verified_and_checked(self):
        """verify follows each; check prints a job that is the same."""
        data = numpy.random.default_rng(5).normal(size=(40, 3)).round(3).tolist()
        model = {"type": "mlp", "inputs": 2, "hidden": [3], "outputs": 1, "activation": "tanh"}
        optimizers = two({"match": "*.weight", "type": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip_norm": 0.5,
                          "groups": [{"match": "layers.0.*", "frozen": True}]}, {"type": "sgd", "lr": 0.1, "momentum": 0.9})
        job = self.job(model, optimizers, batch=8, micro=2, data={"train": "rows"})
        self.write("rows", toys.csv_text(job, [(1, *row) for row in data]))
        self.write("job.json", json.dumps(job))
        done = self.call(harness.GACCD, "check", "job.json")
        self.assertEqual(done.status, 0, done.err)
        self.write("again.yaml", done.out)
        self.assertEqual(self.call(harness.GACCD, "check", "again.yaml").out, done.out)
        done = self.call(harness.GACCD, "verify", "job.json", "--json", "--output", "verified", limit=60 * harness.PATIENCE)
        self.assertEqual(done.status, 0, done.out)
        checks = {check["name"]: check for check in json.loads(done.out)["checks"]}
        self.assertLess(checks["groups: each by its own numbers"]["measured"], 1e-12)


if __name__ == "__main__":
    harness.main()
