"""Updates from given gradients, against numbers worked out by hand and plain numpy (cases 15, 18-6; G1, G2, D4)."""

import numpy

import harness
import toys
from toys import gpt, job_of, tape, tokens

ADAMW = {"optimizer": "adamw"}


class Adamw:
    """Loshchilov and Hutter, Algorithm 2; bias correction by applied steps."""

    def __init__(self, lr, decay=0, betas=(0.9, 0.999), eps=1e-8):
        self.lr, self.decay, self.betas, self.eps, self.t, self.m, self.v = lr, decay, betas, eps, 0, 0, 0

    def step(self, w, g):
        self.t += 1
        b1, b2 = self.betas
        self.m, self.v = b1 * self.m + (1 - b1) * g, b2 * self.v + (1 - b2) * g * g
        w = w - self.lr * self.decay * w
        return w - self.lr * (self.m / (1 - b1**self.t)) / (numpy.sqrt(self.v / (1 - b2**self.t)) + self.eps)


class Sgd:
    """torch.optim.SGD: momentum without dampening, L2 in the gradient."""

    def __init__(self, lr, decay=0, momentum=0):
        self.lr, self.decay, self.momentum, self.d = lr, decay, momentum, None

    def step(self, w, g):
        g = g + self.decay * w
        self.d = g if self.d is None else self.momentum * self.d + g
        return w - self.lr * self.d


class Optimizer(toys.Training):
    def test_decay_is_decoupled(self):
        """15-4: w = 2, g = +0.3 then −0.3: 1.866463; 1.850557 if the decay were a part of the gradient."""
        for compute in ("fp32", "fp64", "bf16"):
            for ranks in (1, 2):
                job = tape([2], batch=2, lr=0.1, compute=compute, optimizer_={"weight_decay": 0.1}, **ADAMW)
                self.assert_near(
                    self.train(job, [0.3, 0.3, -0.3, -0.3], ranks).weight, [1.866463], 2e-4 if compute == "bf16" else 2e-6
                )

    def test_bias_correction_counts_applied_steps(self):
        """18-6: g = 1, −2, 0.5, 1."""
        rows = [1, -2, 0.5, 1]
        for count, wanted in ((3, 0.9950279), (4, 0.9937274)):
            self.assert_near(self.train(tape([1], lr=0.01, **ADAMW), rows[:count]).weight, [wanted], 1e-6)
        rows.insert(2, float("inf"))
        self.assert_near(self.train(tape([1], lr=0.01, **ADAMW), rows).weight, [0.9937274], 1e-6)

    def test_any_gradients_follow_the_algorithm(self):
        """Random gradients in fp64, shards of every kind, K of several; the product against numpy."""
        random = numpy.random.default_rng(11)
        rows = random.normal(size=(48, 5))
        start = random.normal(size=5)
        for keys, peer in (
            ({"optimizer": "adamw", "lr": 0.02}, Adamw(0.02)),
            (
                {"optimizer": "adamw", "lr": 0.02, "optimizer_": {"weight_decay": 0.3, "betas": [0.8, 0.95], "eps": 1e-3}},
                Adamw(0.02, 0.3, (0.8, 0.95), 1e-3),
            ),
            ({"optimizer": "adamw", "lr": 0.02, "optimizer_": {"betas": [0, 0.5]}}, Adamw(0.02, betas=(0, 0.5))),
            ({"lr": 0.05}, Sgd(0.05)),
            ({"lr": 0.05, "optimizer_": {"momentum": 0.9, "weight_decay": 0.2}}, Sgd(0.05, 0.2, 0.9)),
        ):
            w = start
            for batch in rows.reshape(8, 6, 5):
                w = peer.step(w, batch.mean(axis=0))
            for ranks, micro in ((1, 6), (2, 1), (3, 2), (4, 1)):
                out = self.train(
                    tape(start.tolist(), batch=6, micro=micro, compute="fp64", **keys),
                    [(1, *row) for row in rows.tolist()],
                    ranks,
                )
                self.assert_near(out.weight, w, 1e-12)

    def test_matrices_decay_and_vectors_do_not(self):
        """15-1: all values 1, all gradients 0, lr·λ = 0.05. x = 0, so that LayerNorm sees equal values and the output is 3."""
        model = {"type": "mlp", "inputs": 1, "hidden": [2], "outputs": 1, "norm": "layer"}
        start = self.train(job_of(model, lr=0), [(1, 0, 3)]).tensors
        self.assertEqual(sorted(tensor.ndim for tensor in start.values()), [1, 1, 1, 1, 2, 2])
        values = {name: tensor.size * [1] for name, tensor in start.items()}
        for groups, decayed in (
            ([], lambda name, tensor: tensor.ndim > 1),
            (
                [{"match": "*.bias", "weight_decay": 0.5}, {"match": "*.1.*", "weight_decay": 0}],
                lambda name, tensor: name.endswith("bias") or tensor.ndim > 1 and "1" not in name.split("."),
            ),
            ([{"match": "*", "weight_decay": 0.5}], lambda name, tensor: True),
        ):
            for optimizer, ranks in (("adamw", 1), ("adamw", 2), ("sgd", 2)):
                job = job_of(
                    {**model, "init": {"values": values}},
                    batch=2,
                    lr=0.1,
                    optimizer=optimizer,
                    optimizer_={"weight_decay": 0.5, "groups": groups},
                )
                out = self.train(job, 2 * [(1, 0, 3)], ranks)
                self.assertEqual(out.steps[0]["grad_norm"], 0)
                for name, tensor in out.tensors.items():
                    self.assert_near(tensor, numpy.full(tensor.shape, 0.95 if decayed(name, tensor) else 1), 1e-7)

    def test_decay_comes_once_a_step(self):
        """G2: not once a micro-batch, and not on ranks times over."""
        for ranks, micro in ((1, 8), (1, 1), (2, 1), (4, 2)):
            out = self.train(
                tape([1], batch=8, micro=micro, lr=0.1, optimizer_={"weight_decay": 0.5}, **ADAMW), 16 * [0], ranks
            )
            self.assert_near(out.weight, [0.95**2])

    def test_the_first_group_that_matches_wins(self):
        model = {"type": "linear", "inputs": 2, "init": {"values": {"weight": [0, 0], "bias": [0]}}}
        groups = [{"match": "we*", "lr": 0.1}, {"match": "*", "lr": 0.01}]
        for ranks in (1, 2):
            out = self.train(job_of(model, batch=2, lr=5, optimizer_={"groups": groups}), 2 * [(1, 1, 2, 1)], ranks)
            self.assert_near([*out.tensors["weight"].ravel(), out.tensors["bias"].item()], [0.1, 0.2, 0.01])
        done = self.refuse({"groups": [{"match": "wight"}]})
        self.assertIn("wight", done.err)

    def refuse(self, keys):
        model = {"type": "linear", "inputs": 2}
        self.write("rows", toys.csv_text({"model": model}, [(1, 1, 2, 1)]))
        done = self.run_job(job_of(model, data={"train": "rows"}, optimizer_=keys), ranks=0)
        self.assertEqual((done.status, len(done.own_lines())), (78, 1))
        return done

    def test_ranks_hold_the_shards_of_one_optimizer(self):
        """D4: a language model in fp64 on 1, 2, 3 ranks, AdamW, clip, decay, groups: the same weights after 6 steps."""
        job = gpt(
            batch=6,
            micro=2,
            steps=6,
            compute="fp64",
            lr=0.01,
            optimizer="adamw",
            model_={"bias": False, "dropout": 0.1},
            optimizer_={
                "weight_decay": 0.1,
                "clip_norm": 0.5,
                "groups": [{"match": "wpe.*", "lr": 0.1, "weight_decay": 0.2}],
            },
        )
        reference = self.train(job, tokens(8 * 30 + 1)).tensors
        for ranks in (2, 3):
            found = self.train(job, tokens(8 * 30 + 1), ranks).tensors
            for name, tensor in reference.items():
                self.assert_near(found[name], tensor, 1e-12)


if __name__ == "__main__":
    harness.main()
