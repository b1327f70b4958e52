"""What the log says is what happened (cases 25, 26; A1, B8, D2, J1–J3)."""

import json
import os

import harness
import toys
from toys import gpt, lin1, tape, tokens, zero_lm

INF, NAN = float("inf"), float("nan")
NUMBER, COUNT, TEXT, NOTHING = (int, float), int, str, type(None)
STEP = {
    "type": TEXT,
    "step": COUNT,
    "optimizer_steps": COUNT,
    "skipped_steps": COUNT,
    "empty_steps": COUNT,
    "scheduler_steps": COUNT,
    "verdict": TEXT,
    "reason": (TEXT, NOTHING),
    "retries": COUNT,
    "nonfinite": (dict, NOTHING),
    "loss": (float, NOTHING),
    "weight": NUMBER,
    "micro_batches": COUNT,
    "tokens": COUNT,
    "tokens_seen": COUNT,
    "lr": NUMBER,
    "loss_scale": (float, NOTHING),
    "loss_scale_next": (float, NOTHING),
    "growth_tracker": (COUNT, NOTHING),
    "grad_norm_scaled": (float, NOTHING),
    "grad_norm": (float, NOTHING),
    "grad_norm_clipped": (float, NOTHING),
    "clip_coefficient": (float, NOTHING),
    "collectives": dict,
    "bytes": dict,
    "accumulate": list,
    "seconds": dict,
}
SECONDS = ["step", "data", "compute", "reduce", "decision", "update", "gather", "since_last_step"]


class Log(toys.Training):
    def test_the_loss_is_the_mean_of_the_whole_step(self):
        """25-1, J1: micro losses 4, 2, 1, 1: 2, not the last one, not a K-th of it."""
        for ranks in (1, 2, 4):
            out = self.train(tape([1], batch=4), [4, 2, 1, 1], ranks)
            self.assertEqual(out.steps[0]["loss"], 2)
        for ranks in (1, 2):  # weights, masks, and another w in the second step: (1·2 + 3·6)/4·w
            out = self.train(tape([1], batch=4, lr=0.125), 2 * [(1, 2), (0, NAN), (3, 6), (0, INF)], ranks)
            self.assertEqual(out.column("loss"), [5, 5 * (1 - 5 / 8)])

    def test_the_loss_does_not_grow_with_k(self):
        """25-3: ln 50257, in every type and split."""
        tiny = {"vocab": 50257, "context": 4, "width": 2, "heads": 1, "model_": {"init_std": 0}, "batch": 8, "lr": 0}
        for compute in ("fp32", "bf16", "fp16"):
            for ranks, micro in ((1, 8), (1, 2), (2, 1)):
                job = gpt(micro=micro, compute=compute, **tiny)
                job["data"]["format"] = "u16"
                out = self.train(job, 66 * b"\x10\x20", ranks)
                self.assert_near(out.column("loss"), len(out.steps) * [10.824905], 1e-5)

    def test_a_nan_is_seen(self):
        """25-6: the loss of a step that is not finite is null and counted; its neighbours are as without it."""
        out = self.train(tape([1], batch=2, compute="bf16", lr=0.5), [2, 2, NAN, 2, 4, 4], 2)
        self.assertEqual(out.column("loss"), [2, None, 0])
        self.assertEqual([step.get("loss_nonfinite") for step in out.steps], [None, 1, None])

    def test_a_loss_may_overflow_where_gradients_do_not(self):
        """½·(1e25)² is no fp32 number, 1e25 is: the step applies."""
        for ranks in (1, 2):
            out = self.train(lin1(batch=2, lr=1e-25), 2 * [(1, 1, 1e25)], ranks)
            step = out.steps[0]
            self.assertEqual(step["verdict"], "apply")
            self.assertTrue(step["loss"] is None and step["loss_nonfinite"] == 1 or abs(step["loss"] / 5e49 - 1) < 1e-6)
            self.assert_near(out.weight, [1], 1e-6)

    def test_every_line_is_strict_json(self):
        """26-3: inf, nan and huge numbers in losses and norms; harness.read_log refuses NaN and Infinity."""
        rows = [INF, 1, NAN, 3e38, -INF, 1e-45]
        for compute, scale in (("fp16", {"initial": 2.0**127, "minimum": 2.0**120, "stop_after": 99}), ("fp32", None)):
            job = tape(
                [1e30],
                compute=compute,
                scale=scale,
                precision_={"nonfinite_stop_after": 9},
                evaluation={"every": 1},
                data={"validation": "data"},
            )
            out = self.train(job, rows)
            for line in out.log_text.splitlines():
                record = json.loads(line, parse_constant=self.fail)
                self.assertEqual(len(line.splitlines()), 1)
                for key, value in record.items():
                    if key.endswith("_nonfinite"):
                        self.assertIsNone(record[key.removesuffix("_nonfinite")])
                        self.assertEqual(value, 1)

    def test_step_records_are_complete(self):
        """B8: every field, in every verdict, of its type, in the documented order."""
        for compute, scale in (("fp16", 8), ("fp32", None)):
            job = tape(
                [1],
                batch=2,
                micro=1,
                compute=compute,
                scale=scale,
                optimizer_={"clip_norm": 0.5},
                precision_={"nonfinite_stop_after": 9},
            )
            out = self.train(job, [1, 2, INF, 1, (0, 1), (0, 1)], 2)
            self.assertEqual(out.verdicts(), "ASE")
            for step in out.steps:
                self.assertEqual([key for key in step if not key.endswith("_nonfinite")], list(STEP))
                for key, types in STEP.items():
                    self.assertIsInstance(step[key], types, key)
                    self.assertNotIsInstance(step[key], bool)
                self.assertEqual(list(step["seconds"]), SECONDS)
                self.assertTrue(all(isinstance(value, float) and value >= 0 for value in step["seconds"].values()))
                self.assertEqual(step["accumulate"], [1, 1])
                for key in ("loss_scale", "loss_scale_next", "growth_tracker"):
                    self.assertEqual(step[key] is None, compute == "fp32")
            applied = out.steps[0]
            self.assertEqual((applied["weight"], applied["micro_batches"], applied["tokens"]), (2, 2, 2))
            self.assertEqual((applied["reason"], applied["nonfinite"]), (None, None))

    def test_counters_count_attempts_and_steps(self):
        """26-1: K = 8, ten steps: 1 … 10, whatever K."""
        out = self.train(tape(batch=8, steps=10), 8 * [1], 2)
        self.assertEqual(out.column("step"), list(range(1, 11)))
        self.assertEqual(out.column("optimizer_steps"), list(range(1, 11)))
        self.assertEqual((out.result["step"], out.result["optimizer_steps"]), (10, 10))

    def test_evaluation_comes_every_so_many_applied_steps(self):
        """26-5: K = 4, 6 steps, every 2: after 2, 4 and 6; an overflow postpones it."""
        job = {"evaluation": {"every": 2}, "data": {"validation": "more"}}
        self.write("more", toys.csv_text(tape(), [3, (3, 7)]))
        for ranks in (1, 2):
            out = self.train(tape([1], batch=4, steps=6, lr=0.125, **job), 4 * [1], ranks)
            self.assertEqual([(one["step"], one["optimizer_steps"]) for one in out.evaluations], [(2, 2), (4, 4), (6, 6)])
            self.assertEqual(
                [one["loss"] for one in out.evaluations], [6 * w for w in (0.75, 0.5, 0.25)]
            )  # (3 + 3·7)/4 = 6
            self.assertEqual([(one["weight"], one["sequences"]) for one in out.evaluations], 3 * [(4, 2)])
        out = self.train(tape([1], steps=4, compute="bf16", **job), [1, INF, 1])
        self.assertEqual([(one["step"], one["optimizer_steps"]) for one in out.evaluations], [(3, 2), (6, 4)])

    def test_evaluation_drops_nothing(self):
        """H3: dropout is for training: with weights that stay, a job with it has the validation loss of one without."""
        losses = []
        for p in (0, 0.5):
            job = gpt(width=16, model_={"dropout": p}, steps=1, lr=0, evaluation={"every": 1}, data={"validation": "data"})
            out = self.train(job, tokens(8 * 10 + 1))
            losses.append((out.steps[0]["loss"], out.evaluations[0]["loss"]))
        self.assertNotEqual(losses[0][0], losses[1][0])
        self.assertEqual(losses[0][1], losses[1][1])

    def test_the_header_states_the_batch_once(self):
        """A1: B, b, K of every rank, N, tokens a step."""
        out = self.train(gpt(batch=10, micro=2, lr=0), tokens(8 * 10 + 1), 3)
        header = out.header
        self.assertEqual(
            (
                header["effective_batch"],
                header["micro_batch"],
                header["accumulate"],
                header["ranks"],
                header["tokens_per_step"],
            ),
            (10, 2, [2, 2, 1], 3, 80),
        )
        self.assertEqual([line for line in out.log_text.splitlines() if '"batch_size"' in line or '"batch":' in line], [])
        self.assertEqual(
            (header["parameters"], header["train_sequences"], header["total_steps"]),
            (sum(tensor.size for tensor in out.tensors.values()), 10, 1),
        )
        self.assertRegex(header["job_digest"], "^[0-9a-f]{64}$")
        self.assertEqual(header["job_digest"], out.result["job_digest"])
        done = self.call(harness.GACCD, "check", "job.yaml", "-n", "3")
        for words in (
            "B 10 sequences",
            "80 tokens per step",
            "b 2 sequences",
            "M 5 micro-batches",
            "K 2 micro-batches a step on ranks 0 to 1",
            "K 1 micro-batches a step on rank 2",
        ):
            self.assertIn(words, done.out)

    def test_the_header_and_check_tell_the_memory(self):
        """L2: of gpt in fp16: compute type 2 bytes, all else 4; rank 0 owns the larger part; AdamW has two moments."""
        job = gpt(batch=4, micro=2, precision={"compute": "fp16"})
        out = self.train(job, tokens(8 * 4 + 1), 2)
        memory, parameters = out.header["memory"], out.header["parameters"]
        own = 4 * ((parameters + 1) // 2)
        optimizer = job["optimizer"]["type"]
        self.assertEqual(memory["parameters"], 2 * parameters)
        self.assertEqual(memory["gradients"], 4 * parameters)
        self.assertEqual(memory["shard"], 2 * own)
        self.assertEqual(memory["moments"], 2 * own if optimizer == "adamw" else 0)
        self.assertEqual(memory["data"], 2 * (8 + 8 + 4 + 2 * 8 * 4))  # index, weight, seed, tokens and targets
        done = self.call(harness.GACCD, "check", "job.yaml", "-n", "2")
        for bytes_, what in zip(memory.values(), ("parameters", "gradients", "gradient shard", "moments", "activations", "a micro")):
            self.assertRegex(done.out, rf"# +{bytes_ / 1024:.1f} KiB {what}" if bytes_ >= 1024 else rf"# +{bytes_} bytes {what}")

    def test_the_same_job_gives_the_same_log(self):
        """Bit by bit, but for seconds: dropout, shuffle, clip, AdamW, evaluation, skips of a scale that is too large."""
        job = gpt(
            batch=8,
            micro=2,
            steps=12,
            compute="fp16",
            scale={"initial": 2.0**24, "interval": 4},
            lr=0.01,
            optimizer="adamw",
            model_={"dropout": 0.2},
            optimizer_={"clip_norm": 0.5, "weight_decay": 0.1},
            evaluation={"every": 4},
        )
        job["data"].update(order="shuffled", validation=0.2)
        for ranks in (1, 2, 3):
            first, second = (self.train(job, tokens(8 * 40 + 1), ranks) for _ in range(2))
            self.assertEqual(first.without_seconds(), second.without_seconds())
            self.assertEqual(first.verdicts(), second.verdicts())
            for name, tensor in first.tensors.items():
                self.assertEqual(tensor.tobytes(), second.tensors[name].tobytes())
        self.assertIn("S", first.verdicts())
        self.assertEqual(len(first.evaluations), 3)

    def test_times_are_of_the_whole_step_and_between_steps(self):
        """J2, J3: parts fit in the whole; the time between steps is recorded for each."""
        out = self.train(gpt(batch=16, micro=2, steps=6, width=32, layers=2, context=32), tokens(32 * 16 + 1), 2)
        for step in out.steps:
            seconds = step["seconds"]
            self.assertGreater(seconds["compute"], 0)
            self.assertGreater(seconds["since_last_step"], 0)
            self.assertLessEqual(
                max(seconds[part] for part in ("data", "compute", "reduce", "decision", "update", "gather")),
                seconds["step"],
            )
        whole = sum(step["seconds"]["since_last_step"] for step in out.steps)
        self.assertLess(whole, out.result["seconds"])
        self.assertGreater(whole, sum(step["seconds"]["compute"] for step in out.steps) / 2)

    def test_the_end_is_the_result(self):
        for rows, ranks, status in (([1, 2], 1, 0), ([1, 2], 2, 0), (6 * [NAN], 2, 76)):
            out = self.train(tape([1], batch=2), rows, ranks, expect=status)
            end = dict(out.ends[-1], type=None)
            self.assertEqual(
                {**out.result, "type": None, "seconds": 0, "job_digest": 0}, {**end, "seconds": 0, "job_digest": 0}
            )
            self.assertEqual((out.result["exit"], out.result["status"]), (status, "failed" if status else "done"))

    def test_a_scale_that_saw_teeth_is_told(self):
        """B8: it grows on every finite step and falls on each overflow, four times as often."""
        rows = (4 * [INF] + [1]) * 10
        out = self.train(
            tape(compute="fp16", scale={"initial": 2.0**60, "interval": 1}), [row if row == INF else 0 for row in rows]
        )
        self.assertIn("scale_saw_tooth", [event["event"] for event in out.events])

    def test_the_final_model_is_what_the_transformers_library_reads(self):
        out = self.train(zero_lm(batch=2, steps=1), tokens(17))
        self.assertEqual(out.tensors["h.0.attn.c_attn.weight"].shape, (8, 24))
        self.assertEqual(out.tensors["lm_head.weight"].shape, (65, 8))
        with open(os.path.join(self.directory, "run1", "final", "config.json")) as file:
            config = json.load(file)
        self.assertEqual(
            (config["model_type"], config["n_embd"], config["vocab_size"], config["n_positions"]), ("gpt2", 8, 65, 8)
        )


if __name__ == "__main__":
    harness.main()
