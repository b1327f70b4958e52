"""Recomputed activations change no bit (H4): neither a loss, a norm, a skip nor a parameter; only memory and time."""
import json
import os
import re

import harness
import toys

CONTEXT, WIDTH, LAYERS, HEADS, MICRO = 8, 16, 3, 2, 3
TEXT = toys.tokens(60 * CONTEXT + 1)
TYPES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


def gpt(recompute, dropout=0.5, bias=True, **keys):
    keys = {"batch": 7, "micro": MICRO, "steps": 6, "lr": 1e-2, "optimizer": "adamw", **keys}
    job = toys.gpt(context=CONTEXT, width=WIDTH, layers=LAYERS, data_={"order": "shuffled"}, **keys,
                   model_={"heads": HEADS, "dropout": dropout, "bias": bias, "init_std": 0.2})
    job["recompute"] = recompute
    return job


def kept_bytes(compute):
    """Of a block beside its output, for b sequences: two LayerNorms, qkv, what attention gives, the log-sum-exps, the residual
    stream in the middle, and the mlp before its activation."""
    size, wide = TYPES[compute], max(4, TYPES[compute])
    rows = MICRO * CONTEXT
    return rows * ((1 + 3 + 1 + 1 + 1 + 4) * WIDTH * size + 4 * wide + HEADS * wide)


class Recompute(toys.Training):
    def check_same_model(self, one, other):
        self.assertEqual({name: values.tobytes() for name, values in one.tensors.items()},
                         {name: values.tobytes() for name, values in other.tensors.items()})

    def check_same(self, ranks=1, **keys):
        kept = self.train(gpt("none", **keys), TEXT, ranks)
        again = self.train(gpt("block", **keys), TEXT, ranks)
        self.assertEqual(again.without_seconds()[1:], kept.without_seconds()[1:])
        self.check_same_model(again, kept)
        return kept, again

    def test_no_bit_changes_in_any_type(self):
        """27-1: dropout 0.5, uneven micro-batches and ranks; all but one block's activations are no longer there."""
        for compute in TYPES:
            for ranks in (1, 2):
                with self.subTest(compute=compute, ranks=ranks):
                    keys = {"scale": {"initial": 2**24, "interval": 2}} if compute == "fp16" else {}
                    kept, again = self.check_same(ranks, compute=compute, **keys)
                    if compute == "fp16":
                        self.assertIn("S", kept.verdicts())
                    saved = kept.header["memory"]["activations"] - again.header["memory"]["activations"]
                    expected = (LAYERS - 1) * kept_bytes(compute)
                    self.assertLess(abs(saved - expected), 64 * 12 * LAYERS)  # every array begins at a multiple of 64 bytes

    def test_without_bias_and_dropout_too(self):
        self.check_same(dropout=0, bias=False, compute="bf16", evaluation={"every": 2}, data={"validation": 0.2})

    def test_a_job_may_begin_to_recompute_where_it_goes_on(self):
        whole = self.train(gpt("none"), TEXT)
        self.train(gpt("none", checkpoint={"every": 3}), TEXT, arguments=("--set", "job.steps=3"))
        job = gpt("block", checkpoint={"every": 3})
        job["data"]["train"] = "data"
        done = self.run_job(job, ranks=0, output="run2")
        self.assertEqual(done.status, 0, done.err)
        out = toys.Outcome(done, os.path.join(self.directory, "run2"))
        again = self.log("header", output="run2")[1]
        self.assertEqual([change["key"] for change in again["changes"]], ["job.steps", "recompute"])
        self.check_same_model(out, whole)

    def verify(self, job):
        """The check's line, and what is said of each planted fault of recomputation."""
        job["data"]["train"] = "data"
        self.write("data", TEXT)
        self.write("job.yaml", json.dumps(job))
        done = self.call(harness.GACCD, "verify", "job.yaml", "--output", "verified", limit=120)
        self.assertEqual(done.status, 0, done.out)
        lines = done.out.splitlines()
        (check,) = [line for line in lines if line.startswith("recompute: changes no bit")]
        return check, dict(re.split(r"  +", line, 1) for line in lines if line.startswith("recomputed "))

    def test_verify_shows_it(self):
        """On the job's own model and type; that a block is recomputed from anything else it notices."""
        for compute in ("bf16", "fp16"):
            check, planted = self.verify(gpt("block", compute=compute))
            self.assertRegex(check, r" 0 +0 +pass$")
            self.assertEqual(planted, {"recomputed without dropout": "recompute: changes no bit",
                                       "recomputed from the next block's input": "recompute: changes no bit"})

    def test_verify_says_why_not(self):
        _, planted = self.verify(gpt("block", dropout=0, compute="fp32"))
        self.assertRegex(planted["recomputed without dropout"], "^skipped: nothing is dropped")
        self.assertEqual(planted["recomputed from the next block's input"], "recompute: changes no bit")
        check, planted = self.verify(gpt("none", compute="fp32"))
        self.assertIn("skipped: the job keeps its activations", check)
        self.assertEqual(set(planted.values()), {"skipped: the job keeps its activations"})

    def test_models_without_blocks_refuse_it(self):
        self.write("data", "x0,y0\n1,1\n")
        job = toys.lin1(steps=1)
        job["data"]["train"] = "data"
        job["recompute"] = "block"
        done = self.run_job(job, ranks=0)
        self.assertEqual(done.status, 78, done.err)
        self.assertIn("recompute", done.err)


if __name__ == "__main__":
    harness.main()
