"""Adapters beside frozen weights (G5, case 16-4): what they compute, by hand and by numpy; every split, type and resume; files."""

import copy
import json
import os

import numpy

import harness
import toys
from toys import csv_text, gpt, job_of, tokens

TYPES = (("fp64", 1e-12), ("fp32", 3e-6), ("bf16", 0.02), ("fp16", 0.003))


def mlp(hidden=(5, 4), inputs=3, outputs=2, lora=None, model_=None, **keys):
    model = {"type": "mlp", "inputs": inputs, "hidden": list(hidden), "outputs": outputs, "activation": "tanh"}
    return job_of({**model, **({"lora": lora} if lora else {}), **(model_ or {})}, **keys)


def rows(count, inputs=3, outputs=2):
    values = numpy.random.default_rng(5).normal(size=(count, inputs + outputs))
    return [(1, *row) for row in values.round(3).tolist()]


def split(tensors):
    """The model as it would be without adapters, and these."""
    return (
        {name: tensor for name, tensor in tensors.items() if ".lora_" not in name},
        {name: tensor for name, tensor in tensors.items() if ".lora_" in name},
    )


class Reference:
    """An mlp with adapters in numpy, forward and backward written out; mean of squares over outputs and rows."""

    def __init__(self, tensors, layers, factor):
        self.tensors = {name: tensor.astype(float) for name, tensor in tensors.items()}
        self.layers, self.factor = layers, factor

    def gradients(self, x, y):
        """The loss, and the gradients of the adapters alone."""
        inputs, into, factor = [], [], self.factor
        for i in range(self.layers):
            a, b = (self.tensors[f"layers.{i}.lora_{letter}.weight"] for letter in "AB")
            inputs.append(x)
            into.append(x @ a.T)
            x = x @ self.tensors[f"layers.{i}.weight"].T + self.tensors[f"layers.{i}.bias"] + factor * into[i] @ b.T
            if i < self.layers - 1:
                x = numpy.tanh(x)
        loss, d, found = ((x - y) ** 2).mean(), 2 * (x - y) / y.size, {}
        for i in reversed(range(self.layers)):
            a, b = (self.tensors[f"layers.{i}.lora_{letter}.weight"] for letter in "AB")
            found[f"layers.{i}.lora_B.weight"] = factor * d.T @ into[i]
            found[f"layers.{i}.lora_A.weight"] = factor * (d @ b).T @ inputs[i]
            d = d @ self.tensors[f"layers.{i}.weight"] + factor * d @ b @ a
            d = d * (1 - inputs[i] ** 2)
        return loss, found

    def step(self, x, y, lr):
        loss, gradients = self.gradients(x, y)
        for name, gradient in gradients.items():
            self.tensors[name] -= lr * gradient
        return loss


class Adapters(toys.Training):
    def state(self, checkpoint):
        path = os.path.join(self.directory, f"run{self.count}", "checkpoints", checkpoint, "model.safetensors")
        return toys.read_safetensors(path)

    def final(self, name):
        return os.path.join(self.directory, f"run{self.count}", "final", name)

    def final_files(self):
        files = {}
        for folder in (self.final(""), self.final("adapter")):
            for name in os.listdir(folder):
                if name != "adapter":
                    with open(os.path.join(folder, name), "rb") as file:
                        files[name] = file.read()
        self.assertEqual(
            sorted(files), ["README.md", "adapter_config.json", "adapter_model.safetensors", "config.json", "model.safetensors"]
        )
        return files

    def test_one_number_by_hand(self):
        """w = 2, A = [1, 3], B = 0.5 of rank 1, alpha 2: factor 2, x = (1, 1), u = 2·(1 + 3) = 8, ŷ = 2 + 1 + 8·0.5 = 7. With y = 5
        and half_mse d = 2: ∂B = 2·8 = 16, ∂A = 2·2·0.5·(1, 1) = (2, 2); lr 0.1: B = −1.1, A = (0.8, 2.8). Merged:
        w + 2·B·A = (2, 1) − 2.2·(0.8, 2.8) = (0.24, −5.16). Without the factor in the forward pass ŷ would be 5, and no gradient."""
        values = {"layers.0.weight": [2, 1], "layers.0.lora_A.weight": [1, 3], "layers.0.lora_B.weight": [0.5]}
        for compute, allowed in TYPES:
            job = mlp(
                hidden=(),
                inputs=2,
                outputs=1,
                lora={"rank": 1, "alpha": 2},
                model_={"loss": "half_mse", "bias": False, "init": {"values": values}},
                lr=0.1,
                compute=compute,
                scale=4 if compute == "fp16" else None,
                checkpoint={"every": 1},
            )
            out = self.train(job, [(1, 1, 1, 5)])
            self.assert_near([out.steps[0]["loss"], out.steps[0]["grad_norm"]], [2, (16**2 + 2 * 2**2) ** 0.5], allowed)
            adapters = toys.read_safetensors(self.final("adapter/adapter_model.safetensors"))
            self.assert_near(adapters["base_model.model.layers.0.lora_A.weight"], [[0.8, 2.8]], 1e-6)
            self.assert_near(adapters["base_model.model.layers.0.lora_B.weight"], [[-1.1]], 1e-6)
            self.assert_near(out.tensors["layers.0.weight"], [[0.24, -5.16]], 2e-6)
            self.assertEqual(self.state("step-00000001")["layers.0.weight"].tolist(), [[2, 1]])

    def test_steps_are_those_of_numpy(self):
        """Every type, N and split, uneven K, a short last micro-batch: loss, norm and adapters, step by step."""
        lora, data, lr, steps = {"rank": 2, "alpha": 3, "targets": "layers.?"}, rows(36), 0.5, 4
        start = {}
        for compute, allowed in TYPES:
            for ranks, micro in ((1, 9), (1, 2), (2, 2), (4, 2)) if compute == "fp64" else ((2, 2), (4, 2)):
                job = mlp(lora=lora, steps=steps, batch=9, micro=micro, lr=lr, compute=compute, checkpoint={"every": steps})
                if compute == "fp16":
                    job["precision"]["loss_scale"] = {"initial": 64}
                if not start:  # A as it begins, and B at zero
                    self.train({**copy.deepcopy(job), "optimizer": {"type": "sgd", "lr": 0}}, data)
                    start = self.state("step-00000004")
                    self.assertEqual({name: start[name].any() for name in split(start)[1]}, {
                        f"layers.{i}.lora_{letter}.weight": letter == "A" for i in range(3) for letter in "AB"
                    })
                out = self.train(job, data, ranks)
                reference = Reference(start, 3, lora["alpha"] / lora["rank"])
                table = numpy.array(data)[:, 1:]
                for i, step in enumerate(out.steps):
                    part = table[9 * i : 9 * i + 9]
                    norm = sum((g**2).sum() for g in reference.gradients(part[:, :3], part[:, 3:])[1].values()) ** 0.5
                    self.assert_close(step["grad_norm"], norm, 4 * allowed)
                    self.assert_close(step["loss"], reference.step(part[:, :3], part[:, 3:], lr), allowed)
                base, adapters = split(self.state("step-00000004"))
                for name, tensor in adapters.items():
                    self.assert_near(tensor, reference.tensors[name], allowed)
                for name, tensor in base.items():
                    self.assertEqual(tensor.tobytes(), start[name].astype(tensor.dtype).tobytes(), name)
                self.assertEqual(out.header["trained"], sum(tensor.size for tensor in adapters.values()))
                self.assertEqual(sorted(out.tensors), sorted(base))
                for name in (f"layers.{i}.weight" for i in range(3)):
                    a, b = (adapters[name.replace("weight", f"lora_{letter}.weight")].astype(float) for letter in "AB")
                    self.assert_near(out.tensors[name], base[name] + 1.5 * b @ a, 1e-6)

    def test_a_model_with_adapters_begins_as_the_one_without(self):
        """From a base model's file, or from the same seed: the same loss to the bit, since B is zero. Its merged file is a base
        again."""
        base = gpt(steps=2, batch=4, lr=0.5, layers=2)
        found = self.train(base, tokens(8 * 20 + 1))
        path = self.final("model.safetensors")
        job = copy.deepcopy(base)
        job["model"]["lora"] = {"rank": 3, "targets": ["*.c_proj", "*.attn.c_attn.weight", "h.?.mlp.c_fc"]}
        fresh = self.train(job, tokens(8 * 20 + 1))
        self.assertEqual(fresh.steps[0]["loss"], found.steps[0]["loss"])
        self.assertNotEqual(fresh.steps[1]["loss"], found.steps[1]["loss"])
        job["model"]["init"] = {"file": path}
        begun = self.train(job, tokens(8 * 20 + 1))
        again = copy.deepcopy(base)
        again["model"]["init"] = {"file": path}
        self.assertEqual(begun.steps[0]["loss"], self.train(again, tokens(8 * 20 + 1)).steps[0]["loss"])
        merged = os.path.join(self.directory, f"run{self.count - 1}", "final", "model.safetensors")
        again["model"]["init"] = {"file": merged}
        again["optimizer"]["lr"] = 0
        self.assertNotEqual(self.train(again, tokens(8 * 20 + 1)).steps[0]["loss"], begun.steps[0]["loss"])
        again["model"]["init"] = {"file": os.path.join(os.path.dirname(merged), "adapter", "adapter_model.safetensors")}
        out = self.train(again, tokens(8 * 20 + 1), expect=65)
        self.assertRegex(out.err, "the model has no tensor base_model.*: the file holds adapters alone.*goes on from its checkpoints"
                         ".*final/model.safetensors")

    def test_adapters_into_a_model_without_them_are_refused_with_the_ways_that_there_are(self):
        job = mlp(lora={"rank": 1}, steps=1, checkpoint={"every": 1})
        self.train(job, rows(4))
        for name, said in (
            ("checkpoints/step-00000001/model.safetensors", "layers.0.lora_A.weight: it is an adapter's"),
            ("final/adapter/adapter_model.safetensors", "base_model.model.layers.0.lora_A.weight: the file holds adapters alone"),
        ):
            out = self.train(mlp(steps=1, model_={"init": {"file": f"run1/{name}"}}), rows(4), expect=65)
            self.assertIn(f"the model has no tensor {said}", out.err)
            self.assertIn("goes on from its checkpoints", out.err)
            self.assertIn("that job's final/model.safetensors, into which the adapters are merged", out.err)

    def test_recomputed_adapters_behind_a_frozen_embedding_train(self):
        """16-4: two layers, rank 1, one step: every B has moved; the same bits with recomputation, with dropout in model and
        adapters."""
        for lora_dropout, compute, ranks in ((0, "fp32", 1), (0.25, "bf16", 2)):
            found = []
            for recompute in ("none", "block"):
                job = gpt(layers=2, steps=1, batch=5, micro=2, lr=0.5, compute=compute, checkpoint={"every": 1})
                job["model"].update(dropout=lora_dropout, lora={"rank": 1, "targets": "h.*", "dropout": lora_dropout})
                self.train({**job, "recompute": recompute}, tokens(8 * 20 + 1), ranks)
                found.append(split(self.state("step-00000001"))[1])
            self.assertEqual(len(found[0]), 2 * 2 * 4)
            for name, tensor in found[0].items():
                self.assertEqual(tensor.tobytes(), found[1][name].tobytes(), name)
                if "lora_B" in name:
                    self.assertTrue(tensor.all(), name)

    def test_every_split_drops_the_same(self):
        """fp64, dropout in adapters of gpt and mlp: the parameters of all splits, to rounding; other bits in every step."""
        for job, data, splits in (
            (gpt(layers=2, steps=3, batch=7, micro=7, lr=0.3, compute="fp64"), tokens(8 * 30 + 1), ((1, 2), (2, 2), (4, 1))),
            (mlp(steps=3, batch=7, micro=7, lr=0.3, compute="fp64"), rows(21), ((1, 1), (2, 2))),
        ):
            job["model"]["lora"] = {"rank": 2, "alpha": 8, "targets": "*", "dropout": 0.5}
            whole = self.train(job, data)
            for ranks, micro in splits:
                job["batch"]["micro"] = micro
                out = self.train(job, data, ranks)
                self.assert_close(out.column("loss"), whole.column("loss"), 1e-13)
                for name, tensor in whole.tensors.items():
                    self.assert_near(out.tensors[name], tensor, 1e-13)
            job["model"]["lora"]["dropout"] = 0
            self.assertNotEqual(self.train(job, data).column("loss"), whole.column("loss"))

    def test_a_resumed_job_is_the_uninterrupted_one(self):
        """AdamW, fp16, dropout: log and files to the bit; other numbers of the adapters are refused."""
        job = gpt(layers=1, steps=6, batch=5, micro=2, lr=0.01, optimizer="adamw", compute="fp16", scale=128)
        job["model"]["lora"] = {"rank": 2, "targets": "*", "dropout": 0.1}
        job["checkpoint"] = {"every": 3}
        whole = self.train(job, tokens(8 * 30 + 1), 2)
        files = self.final_files()
        half = self.train({**job, "job": {"name": "toy", "steps": 3}}, tokens(8 * 30 + 1), 2)
        job["data"]["train"] = "data"
        output = f"run{self.count}"
        refused = self.run_job(job, ranks=2, output=output, arguments=["--set", "model.lora.alpha=4"])
        self.assertEqual(refused.status, 78, refused.err)
        self.assertIn("model.lora.alpha", refused.err)
        done = self.run_job(job, ranks=2, output=output)
        self.assertEqual(done.status, 0, done.err)
        steps = [step for step in toys.Outcome(done, os.path.join(self.directory, output)).steps]
        for one, other in zip(whole.steps, steps, strict=True):
            self.assertEqual({**one, "seconds": 0}, {**other, "seconds": 0})
        self.assertEqual(self.final_files(), files)
        self.assertEqual(half.column("loss"), whole.column("loss")[:3])

    def test_what_peft_wants_stands_beside_the_model(self):
        job = gpt(layers=2, steps=1, batch=2, lr=0.1)
        job["model"]["lora"] = {"rank": 2, "alpha": 4, "targets": ["h.1.*"], "dropout": 0.1}
        self.train(job, tokens(8 * 10 + 1))
        with open(self.final("adapter/adapter_config.json")) as file:
            config = json.load(file)
        layers = ["h.1.attn.c_attn", "h.1.attn.c_proj", "h.1.mlp.c_fc", "h.1.mlp.c_proj"]
        self.assertEqual([config[key] for key in ("peft_type", "r", "lora_alpha", "lora_dropout")], ["LORA", 2, 4, 0.1])
        self.assertEqual((config["target_modules"], config["fan_in_fan_out"], config["bias"]), (layers, True, "none"))
        names = [f"base_model.model.transformer.{layer}.lora_{letter}.weight" for layer in layers for letter in "AB"]
        self.assertEqual(sorted(toys.read_safetensors(self.final("adapter/adapter_model.safetensors"))), sorted(names))

    def check(self, job, status):
        job = {**job, "data": {**job["data"], "train": "data"}}
        done = self.call(harness.GACCD, "check", self.write("job.yaml", json.dumps(job)))
        self.assertEqual(done.status, status, done.err)
        return done.own_lines()

    def test_a_target_that_is_no_layer_is_told_the_nearest_of_them(self):
        """As the peft library's users write them; a glob that ends so where there is one. An optimizer's patterns are told of
        tensors that it may have."""
        self.write("data", "to be or not to be")
        linears = "h.0.mlp.c_proj, h.1.mlp.c_proj"
        for target, hint in (
            ("c_attn", "'*.c_attn' does"),
            ("c_attn.weight", "'*.c_attn.weight' does"),
            ("mlp.c_*", "'*.mlp.c_*' does"),
            ("q_proj", f"near it: {linears}"),
            ("h.7.mlp.c_proj", f"near it: {linears}"),
            ("ln_f", "near it: h.0.mlp.c_fc, h.1.mlp.c_fc"),
        ):
            job = gpt(layers=2, steps=1, model_={"lora": {"rank": 2, "targets": target}})
            self.assertEqual(self.check(job, 78)[-1:], [f"gaccd: model.lora.targets: '{target}' matches no linear layer; {hint}"])
        for model, pattern, hint in (
            ({}, "c_attn.weight", "matches no tensor; '*.c_attn.weight' does"),
            ({"lora": {"rank": 2}}, "h.0.attn.c_attn.wieght", "matches no tensor; near it: h.0.attn.c_attn.lora_A.weight, "
             "h.0.attn.c_attn.lora_B.weight"),
        ):
            job = gpt(steps=1, model_=model, optimizer_={"groups": [{"match": pattern}]})
            self.assertEqual(self.check(job, 78)[-1], f"gaccd: optimizer.groups.0.match: '{pattern}' {hint}")
        job = mlp(steps=1, batch=2, model_={"norm": "batch", "norm_stats": "window"}, optimizer_={"groups": [{"match": "*running*"}]})
        refused = self.check(job, 78)
        self.assertEqual(refused, ["gaccd: optimizer.groups.0.match: '*running*' matches running statistics, which no optimizer moves"])

    def test_what_never_trains_and_begins_at_random_is_doubted(self):
        self.write("data", csv_text(mlp(), rows(4)))
        values = {"init": {"values": {"layers.0.weight": [0] * 15}}}
        for job, word in (
            (mlp(lora={"rank": 1}, steps=1), "model.lora: the weights beside the adapters"),
            (mlp(model_={"norm": "batch", "norm_stats": "frozen"}, steps=1), "model.norm_stats frozen: mean and variance"),
        ):
            lines = self.check(job, 0)
            self.assertEqual((len(lines), word in lines[0]), (1, True), lines)
            job["data"]["train"] = "data"
            self.assertIn(word, self.run_job(job, ranks=0).own_lines()[0])
            job["model"].update(values)
            self.assertEqual(self.check(job, 0), [])
        self.assertEqual(self.check(mlp(steps=1), 0), [])

    def test_adapters_are_in_groups_and_under_the_norm(self):
        """Their own learning rates (LoRA+), and one half frozen: A then keeps every bit. Patterns that match nothing that is
        trained are refused, as are adapters of nothing."""
        lora = {"rank": 2, "targets": "layers.*"}
        job = mlp(lora=lora, steps=2, batch=4, lr=0.1, checkpoint={"every": 1})
        job["optimizer"]["groups"] = [{"match": "*.lora_A.*", "frozen": True}, {"match": "*.lora_B.*", "lr": 0.4}]
        out = self.train(job, rows(8))
        first, second = (split(self.state(f"step-0000000{i}"))[1] for i in (1, 2))
        for name, tensor in first.items():
            self.assertEqual(numpy.array_equal(tensor, second[name]), "lora_A" in name, name)
        self.assertEqual([group["frozen"] for group in out.header["groups"]], [True, False, True])
        for keys, word in (
            ({"optimizer": {"lr": 1, "groups": [{"match": "layers.0.weight", "lr": 1}]}}, "optimizer.groups.0.match"),
            ({"model": {**job["model"], "lora": {"rank": 2, "targets": "layers.7"}}}, "model.lora.targets"),
            ({"model": {**job["model"], "lora": {"alpha": 2}}}, "model.lora.rank is missing"),
            ({"model": {**job["model"], "lora": {"rank": 2, "targets": []}}}, "model.lora.targets"),
            ({"model": {**job["model"], "lora": {"rank": 2, "targets": "norms.0"}}}, "model.lora.targets"),
        ):
            refused = self.run_job({**job, **keys, "data": {**job["data"], "train": "data"}}, ranks=0, output="refused")
            self.assertEqual(refused.status, 78, refused.err)
            self.assertIn(word, refused.err)

    def test_verify_sees_both_halves(self):
        """With B at zero A would have no gradient, and nothing that is wrong with it could be seen."""
        job = mlp(lora={"rank": 2, "alpha": 3}, steps=1, batch=8, micro=2, lr=0.1)
        self.write("data", toys.csv_text(job, rows(16)))
        job["data"]["train"] = "data"
        self.write("job.yaml", json.dumps(job))
        done = self.call(toys.harness.GACCD, "verify", "job.yaml", "--sequences", "9", "--json", "--output", "run", limit=60)
        self.assertEqual(done.status, 0, done.err)
        verified = json.loads(done.out)
        found = {row.get("name", row.get("fault")): row for row in verified["checks"] + verified["negative_controls"]}
        for name in ("fp64: gradient = slope of the loss", "groups: each by its own numbers", "dropout keyed by the row"):
            self.assertEqual((found[name]["pass"], found[name]["skipped"]), (True, False), found[name])


if __name__ == "__main__":
    toys.harness.main()
