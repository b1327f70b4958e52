"""Ranks whose model and optimizer are plain PyTorch, beside one of gaccd's: K, S, lr, clipping and the verdict are gaccd's, and
the parameters come out as those of gaccd's ranks alone."""
import os
import sys

try:
    import torch  # noqa: F401
except ImportError:
    print("skipped: no python3-torch")
    sys.exit(77)

import numpy

import harness
import loop
import test_worker
import toys

MLP = {"type": "mlp", "inputs": 4, "hidden": [16], "outputs": 2, "activation": "tanh", "loss": "mse", "init": {"file": "initial"}}
GPT = {"type": "gpt", "layers": 2, "heads": 2, "width": 24, "context": 8, "vocab": 61, "init": {"file": "initial"}}
ADAMW = {"type": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip_norm": 0.5}


def rows_of(count, seed=4):
    random = numpy.random.default_rng(seed)
    weights = random.choice([0, 0.5, 1, 2], count)
    return [(weight, *row) for weight, row in zip(weights.tolist(), random.normal(size=(count, 6)).tolist())]


class Torch(test_worker.Mixed):
    def setUp(self):
        super().setUp()
        self.environment["OMP_NUM_THREADS"] = "1"
        self.rows = rows_of(40)

    def job(self, model, **sections):
        spec = {key: value for key, value in model.items() if key != "init"}
        loop.write_safetensors(os.path.join(self.directory, "initial"), loop.draw(spec))
        job = toys.job_of(model, optimizer_=ADAMW, **sections)
        job["data"].setdefault("train", "data.csv")
        return job

    def distance(self, alone, mixed):
        """Of the parameters, as a part of how far training has moved them."""
        initial = toys.read_safetensors(os.path.join(self.directory, "initial"))
        ends = [loop.flat(tensors, 24) for tensors in (alone.tensors, mixed.tensors, initial)]
        return numpy.linalg.norm(ends[0] - ends[1]) / numpy.linalg.norm(ends[0] - ends[2])

    def test_an_mlp_on_three_ranks_trains_as_gaccd_alone(self):
        job = self.job(MLP, steps=10, batch=15, micro=2, data_={"order": "shuffled"}, schedule={"type": "cosine", "minimum": 0.001})
        alone, mixed = self.both(job, ["gaccd", "torch", "torch"])
        self.assertLess(self.distance(alone, mixed), 1e-5)
        for column in ("lr", "accumulate", "verdict", "collectives"):
            self.assertEqual(mixed.column(column), alone.column(column))
        for column in ("loss", "grad_norm", "clip_coefficient"):
            self.assert_close(mixed.column(column), alone.column(column), 1e-5)

    def test_a_language_model_on_two_ranks_trains_as_gaccd_alone(self):
        job = self.job(GPT, steps=6, batch=12, micro=3, data_={"format": "bytes", "train": "text", "order": "shuffled"})
        self.write("text", toys.tokens(40 * 8 + 1, 61))
        alone, mixed = self.both(job, ["gaccd", "torch"])
        self.assertLess(self.distance(alone, mixed), 1e-5)
        self.assert_close(mixed.column("loss"), alone.column("loss"), 1e-5)

    def test_an_overflow_of_one_rank_skips_on_all_and_halves_the_scale(self):
        """In the order of the file, batches of 12: row 21 is in the second, among those of the last rank."""
        self.rows[21] = (1, 0.5, 0.5, 0.5, 0.5, 1e36, 1)
        job = self.job(MLP, steps=2, batch=12, micro=2, compute="fp16", scale=65536, data_={"order": "sequential"})
        alone, mixed = self.both(job, ["gaccd", "torch", "torch"])
        self.assertEqual((mixed.verdicts(), alone.verdicts()), ("ASA", "ASA"))
        self.assertEqual(mixed.column("loss_scale"), [65536, 65536, 32768])
        self.assertEqual([step["nonfinite"]["rank"] for step in mixed.steps if step["nonfinite"]], [2])
        self.assertLess(self.distance(alone, mixed), 0.001)


if __name__ == "__main__":
    harness.main()
