"""Whole jobs against the usual PyTorch loop (loop.py), from the same weights on the same data: losses, gradient norms, learning
rates and parameters of ten steps, and single gradients (M2, K1).

The global batch of 15 rows is cut in the four ways of SPLITS, of which three end in a short micro-batch; the data hold 40 rows,
so every third batch is an epoch's short last one; a third of the csv rows has the weight 0, a third a fractional one.
"""
import itertools
import os
import sys

try:
    import torch
except ImportError:
    print("skipped: no python3-torch")
    sys.exit(77)

import numpy

import harness
import loop
import noise
import toys

STEPS, GLOBAL, ROWS = 10, 15, 40
SPLITS = ((15, 1), (4, 1), (8, 2), (2, 2))  # (b, N): K = 1, 4, 1, 4

MODELS = {
    "linear": {"type": "linear", "inputs": 5},
    "linear mse": {"type": "linear", "inputs": 5, "bias": False, "loss": "mse"},
    "mlp": {"type": "mlp", "inputs": 5, "hidden": [16, 9], "outputs": 3, "activation": "tanh"},
    "mlp of classes": {"type": "mlp", "inputs": 5, "hidden": [16], "outputs": 4, "activation": "gelu", "norm": "layer",
                       "loss": "cross_entropy"},
    "gpt": {"type": "gpt", "layers": 2, "heads": 3, "width": 24, "context": 8, "vocab": 61},
    "gpt untied": {"type": "gpt", "layers": 1, "heads": 2, "width": 16, "context": 8, "vocab": 61, "tie": False,
                   "bias": False, "activation": "gelu"},
}
OPTIMIZERS = {
    "adamw": {"type": "adamw", "lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.99], "clip_norm": 0.5},
    "sgd": {"type": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.02, "clip_norm": 0.5},
}
BIASES = {"groups": [{"match": "*bias", "lr": 0.02, "weight_decay": 0.1}]}
GRADIENT = {"type": "sgd", "lr": 1}  # w₀ − w₁ of one step is the gradient
COSINE = {"type": "cosine", "total": 10, "minimum": 0.001}
SCHEDULES = {"linear": {"type": "linear", "total": 10, "minimum": 0.001}, "mlp": COSINE, "gpt": COSINE}


def rows_of(spec, seed=3):
    """(weight, x…, y…)"""
    random = numpy.random.default_rng(seed)
    weights = random.permutation(numpy.concatenate([numpy.zeros(13), numpy.ones(14), random.uniform(0.1, 3, 13)]))
    x = random.normal(size=(ROWS, spec["inputs"]))
    if spec.get("loss") == "cross_entropy":
        y = random.integers(0, spec["outputs"], (ROWS, 1))
    else:
        y = random.normal(size=(ROWS, spec.get("outputs", 1)))
    return [(weight, *a, *b) for weight, a, b in zip(weights.tolist(), x.tolist(), y.tolist())]


class Loop(toys.Training):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(1)

    def job(self, spec, optimizer, micro, compute="fp32", steps=STEPS, weighting="token", schedule=None):
        """The job, its data, its initial weights."""
        initial = loop.draw(spec)
        loop.write_safetensors(os.path.join(self.directory, "initial"), initial)
        job = toys.job_of({**spec, "init": {"file": "initial"}}, steps=steps, batch=GLOBAL, micro=micro, compute=compute,
                          batch_={"weighting": weighting}, data_={"order": "shuffled"}, optimizer_=optimizer,
                          **({"schedule": schedule} if schedule else {}))
        tensors = {name: torch.from_numpy(values) for name, values in initial.items()}
        if spec["type"] != "gpt":
            return job, rows_of(spec), tensors
        job["data"]["format"] = "bytes"
        return job, toys.tokens(ROWS * spec["context"] + 1, spec["vocab"]), tensors

    def compare(self, spec, optimizer, split, absolute, relative, **keys):
        """Every number of gaccd's job is PyTorch's within absolute + relative·|PyTorch's|."""
        job, data, initial = self.job(spec, optimizer, split[0], **keys)
        kind = torch.float64 if keys.get("compute") == "fp64" else torch.float32
        out = self.train(job, data, split[1])
        seen, parameters = loop.train(job, data, initial, keys.get("steps", STEPS), kind=kind)
        for key, wanted in seen.items():
            numpy.testing.assert_allclose(out.column(key), wanted, relative, absolute, err_msg=key)
        self.complete(parameters, out)
        width = spec.get("width", 0)
        numpy.testing.assert_allclose(loop.flat(out.tensors, width), loop.flat(parameters, width), relative, absolute)
        return seen

    def complete(self, tensors, out):
        """Adds the zeros that files hold for the biases of a gpt without any."""
        for name in set(out.tensors) - set(tensors):
            self.assertTrue(name.endswith("bias") and not out.tensors[name].any(), name)
            tensors[name] = numpy.zeros(out.tensors[name].shape)
        self.assertEqual(sorted(out.tensors), sorted(tensors))

    def test_ten_steps_in_fp32(self):
        """K1's tolerances for fp32; for every model and optimizer a schedule where PyTorch has the same."""
        for (name, spec), (kind, optimizer), split in itertools.product(MODELS.items(), OPTIMIZERS.items(), SPLITS):
            with self.subTest(model=name, optimizer=kind, split=split):
                seen = self.compare(spec, optimizer, split, 1e-5, 1e-4, schedule=SCHEDULES.get(name))
                self.assertGreater(max(seen["grad_norm"]), 0.5)  # the clip was needed

    def test_groups_have_rates_and_decays_of_their_own(self):
        for name, kind, split in itertools.product(("linear", "mlp", "gpt"), OPTIMIZERS, SPLITS[1::2]):
            with self.subTest(model=name, optimizer=kind, split=split):
                self.compare(MODELS[name], {**OPTIMIZERS[kind], **BIASES}, split, 1e-5, 1e-4)

    def test_every_weighting(self):
        """microbatch is the loop that calls loss.mean() and divides by the number of micro-batches, sum the one that does not."""
        for weighting, name, split in itertools.product(("microbatch", "sum"), ("linear", "mlp of classes", "gpt"), SPLITS):
            with self.subTest(weighting=weighting, model=name, split=split):
                self.compare(MODELS[name], OPTIMIZERS["sgd"], split, 1e-5, 1e-4, weighting=weighting)

    def test_ten_steps_in_fp64(self):
        """The same algorithm to the last digits: neither an epsilon elsewhere nor a constant in single precision."""
        for (name, spec), (kind, optimizer), split in itertools.product(MODELS.items(), OPTIMIZERS.items(), SPLITS[1::2]):
            with self.subTest(model=name, optimizer=kind, split=split):
                self.compare(spec, optimizer, split, 1e-10, 1e-10, compute="fp64")

    def test_every_gradient(self):
        """One step of SGD with lr 1, and no clip. fp32's rounding is 6e-8 of what is subtracted."""
        for compute, splits, allowed in (("fp64", SPLITS, 1e-13), ("fp32", SPLITS[-1:], 2e-6)):
            for (name, spec), split in itertools.product(MODELS.items(), splits):
                with self.subTest(model=name, split=split, compute=compute):
                    self.compare(spec, GRADIENT, split, allowed, allowed, steps=1, compute=compute)

    def test_a_linear_layer_of_sixteen_inputs(self):
        """The check that the specification writes out: 4 micro-batches of 8, lr 0.05, against one batch of 32, in fp32 and in
        fp16 with a scale; the median of relative errors is below 0.05, and no factor 1/K is there."""
        spec = {"type": "linear", "inputs": 16, "loss": "mse"}
        data = [(1, *row) for row in numpy.random.default_rng(0).normal(size=(32, 17)).tolist()]
        initial = loop.draw(spec)
        loop.write_safetensors(os.path.join(self.directory, "initial"), initial)

        def job(micro, compute="fp32", **keys):
            return toys.job_of({**spec, "init": {"file": "initial"}}, steps=1, batch=32, micro=micro, lr=0.05, compute=compute,
                               **keys)

        tensors = {name: torch.from_numpy(values) for name, values in initial.items()}
        base = loop.train(job(32), data, tensors, 1)[1]["weight"]
        for ranks in (1, 2, 4):
            found = self.train(job(8), data, ranks).tensors["weight"]
            numpy.testing.assert_allclose(found, base, 1e-4, 1e-5)
            found = self.train(job(8, "fp16", scale=1024), data, ranks).tensors["weight"]
            self.assertLess(numpy.median(numpy.abs(found - base) / numpy.maximum(numpy.abs(base), 1e-6)), 0.05)
            self.assertFalse(numpy.allclose(found, base / 4, atol=1e-3))

    def test_gradients_in_bf16(self):
        """gaccd's bf16 and autocast's round in different places. Each may be off by what Monte Carlo arithmetic with bf16's
        unit makes of the gradient (noise.Disturbed), norm by norm: so they differ by at most twice that."""
        for (name, spec), split in itertools.product(MODELS.items(), SPLITS[1::2]):
            with self.subTest(model=name, split=split):
                job, data, initial = self.job(spec, GRADIENT, split[0], "bf16", steps=1)
                out = self.train(job, data, split[1])
                seen, wanted = loop.train(job, data, initial, 1, compute="bf16")
                loss_noise, allowed = noise.of_first_step(job, data, initial, noise.BF16_UNIT)
                self.assertLessEqual(abs(out.steps[0]["loss"] - seen["loss"][0]), 2 * loss_noise)
                for key, most in allowed.items():
                    self.assertLessEqual(numpy.linalg.norm(out.tensors[key] - wanted[key]), 2 * most, key)


if __name__ == "__main__":
    harness.main()
