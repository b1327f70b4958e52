"""The gradient of a step is averaged once, over what the global batch really holds, however it is split (cases 01–05; A2–A8)."""

import numpy

import harness
import toys
from toys import LN3, average, bias2, cut, gpt, lin1, tape, tokens, zero_lm

NAN, INF = float("nan"), float("inf")
MASKED = (0, NAN)


class Averaging(toys.Training):
    def test_token_mean_of_classes_is_over_all_targets_of_the_step(self):
        """01-1: targets 0 0 0 | 1: loss (3·ln 4 + ln 4/3)/4, gradient (−3·¾ + ¼)/4 = −½; the mean of means would be −¼."""
        wide, narrow = (1, 0, 0), (1, 0, 1)
        masked = (0, 0, 0)
        for rows, micro, ranks in (
            ([wide, wide, wide, narrow], 3, 1),
            ([wide, wide, wide, narrow], 3, 2),
            ([wide, wide, wide, narrow], 4, 1),
            ([wide, wide, wide, narrow], 1, 4),
            ([narrow, wide, wide, wide], 2, 2),
            ([wide, wide, wide, narrow, masked, masked], 3, 2),
            ([masked, wide, wide, wide, narrow, masked], 1, 2),
        ):
            with self.subTest(rows=rows, micro=micro, ranks=ranks):
                out = self.train(bias2(batch=len(rows), micro=micro), rows, ranks)
                self.assert_near(out.steps[0]["loss"], 1.111641)
                self.assert_near(out.tensors["layers.0.bias"], [0.5, LN3 - 0.5])
                self.assertEqual(out.steps[0]["weight"], 4)

    def test_counts_are_summed_over_ranks_before_dividing(self):
        """01-2: rank 0 sums 3 over 3 targets, rank 1 sums 5 over 1: 8/4, not the mean of 1 and 5."""
        rows = [1, 1, 1, 5]
        for ranks, micro in ((2, 3), (1, 3), (2, 2), (4, 1)):
            out = self.train(tape([1], batch=4, micro=micro), rows, ranks)
            self.assertEqual((out.steps[0]["loss"], out.steps[0]["grad_norm"], out.weight[0]), (2, 2, -1))

    def test_each_weighting_keeps_its_promise(self):
        """A3, A6: micro-batch A holds the target 2, B three targets −1."""
        masked = (0, 1, 1e30)
        rows = [(1, 1, 2), masked, masked] + 3 * [(1, 1, -1)]
        for weighting, loss, gradient, weight in (
            ("token", 0.875, 0.25, -0.025),
            ("microbatch", 1.25, -0.5, 0.05),
            ("sum", 3.5, 1, -0.1),
        ):
            for ranks in (1, 2):
                with self.subTest(weighting=weighting, ranks=ranks):
                    out = self.train(lin1(batch=6, micro=3, lr=0.1, batch_={"weighting": weighting}), rows, ranks)
                    step = out.steps[0]
                    self.assertEqual((step["loss"], step["grad_norm"], step["micro_batches"]), (loss, abs(gradient), 2))
                    self.assert_near(out.weight, [weight], 1e-8)
        out = self.train(lin1(batch=6, micro=6, lr=0.1), rows)  # one big batch is the same as token
        self.assertEqual((out.steps[0]["loss"], out.steps[0]["grad_norm"]), (0.875, 0.25))

    def test_fractional_weights_weigh_targets(self):
        """A5: (½·2 + 1½·(−2) + 2·4)/4 = 1.5 by token; by micro-batches of two ((1 − 3)/2 + 8/2)/2 = 1.5, of one (2 − 2 + 4)/3."""
        rows = [(0.5, 1, 2), (1.5, 1, -2), (2, 1, 4), (0, 1, 1e30)]
        for weighting, micro, mean in (
            ("token", 1, 1.5),
            ("token", 2, 1.5),
            ("token", 4, 1.5),
            ("microbatch", 2, 1.5),
            ("microbatch", 1, 4 / 3),
            ("sum", 2, 6),
        ):
            for ranks in (1, 2)[: 4 // micro]:
                out = self.train(lin1(batch=4, micro=micro, batch_={"weighting": weighting}), rows, ranks)
                self.assert_near(out.weight, [mean], 1e-6)
                self.assertEqual(out.steps[0]["weight"], 4)

    def test_only_the_ratio_of_weights_counts(self):
        """A3, A5: S·w/W, Σ w·ℓ/W and the validation loss are what they are for weights 1, 3 and 4, be the unit double's least
        number, whose 1/W is none, or so large that Σ w·g is none."""
        rows = [(1, 2, -4), (3, 6, 0), (4, 1, 2), (0, NAN, NAN)]
        for weighting, gradient, ranks in (("token", [3, 0.5], 1), ("token", [3, 0.5], 2), ("microbatch", [3, -2 / 3], 2)):
            for compute, scale in (("fp64", None), ("fp32", None), ("fp16", 4096)):
                for unit in (5e-324, 1e-310, 1e307):
                    with self.subTest(weighting=weighting, ranks=ranks, compute=compute, unit=unit):
                        data = [(weight * unit, *g) for weight, *g in rows]
                        self.write("validation", toys.csv_text(tape([0, 0]), data))
                        job = tape([4, 0.25], batch=4, compute=compute, scale=scale, batch_={"weighting": weighting})
                        job["data"]["validation"] = ["validation"]
                        job["evaluation"] = {"every": 1}
                        out = self.train(job, data, ranks)
                        w = numpy.array([4, 0.25])
                        step = out.steps[0]
                        self.assertEqual((out.verdicts(), step["weight"]), ("A", 8 * unit))
                        self.assert_close(out.weight - w, -numpy.array(gradient), 1e-3 if compute == "fp16" else 1e-6)
                        self.assert_close(step["loss"], gradient @ w, 1e-12)
                        self.assert_close(out.evaluations[0]["loss"], [3, 0.5] @ out.weight.astype(float), 1e-3)
        for unit in (1, 5e-324, 1e307):  # targets −4, 0 and 1 of x = 2, 6 and 1
            out = self.train(lin1(batch=3, micro=3), [(unit, 2, -4), (3 * unit, 6, 0), (4 * unit, 1, 1)])
            self.assertEqual((out.steps[0]["loss"], out.weight[0]), (1.25, -0.5))
        out = self.train(tape(batch=3, batch_={"weighting": "microbatch"}), [(7e307, 3), (1, 6), (1e-300, 9)])
        self.assertEqual(out.weight[0], -6)  # M'·n = 2.1e308

    def test_loss_and_gradient_do_not_grow_with_k(self):
        """01-8: a head of zeros gives ln 65 for every token; 32 rows split in any way have one gradient."""
        norms = []
        for ranks in (1, 2):
            for micro in (32 // ranks, 4 // ranks, 1):
                out = self.train(zero_lm(batch=32, micro=micro), tokens(8 * 32 + 1), ranks)
                self.assert_near(out.steps[0]["loss"], 4.174387)
                norms.append(out.steps[0]["grad_norm"])
        self.assertGreater(norms[0], 0.01)
        self.assert_close(norms, norms[0], 1e-6)

    def test_any_split_gives_the_definition(self):
        """A2, A3, A5–A7: ragged weights and masks, short tails, empty micro-batches, ranks without one, against numpy in fp64."""
        random = numpy.random.default_rng(7)
        rows = [(float(random.choice([0, 0.25, 1, 3])), *random.normal(size=2).tolist()) for _ in range(43)]
        rows[8:16] = [(0, NAN, INF)] * 8  # some micro-batches are empty
        for ranks, batch, micro, weighting in (
            (1, 8, 8, "token"),
            (1, 16, 1, "token"),
            (2, 8, 2, "token"),
            (2, 10, 3, "token"),
            (3, 16, 5, "token"),
            (4, 16, 4, "token"),
            (2, 12, 3, "microbatch"),
            (1, 12, 3, "microbatch"),
            (3, 12, 2, "sum"),
            (1, 43, 7, "sum"),
        ):
            with self.subTest(ranks=ranks, batch=batch, micro=micro, weighting=weighting):
                job = tape([0.5, -0.5], batch=batch, micro=micro, compute="fp64", lr=0.1, batch_={"weighting": weighting})
                out = self.train(job, rows, ranks)
                w = numpy.array([0.5, -0.5])
                for step, micro_batches in zip(out.steps, cut(rows, batch, micro), strict=True):
                    gradient = average(micro_batches, weighting)
                    if gradient is None:
                        self.assertEqual(step["verdict"], "empty")
                        continue
                    self.assertEqual(step["verdict"], "apply")
                    self.assertEqual(step["weight"], sum(row[0] for part in micro_batches for row in part))
                    self.assert_near(step["loss"], gradient @ w, 1e-12)
                    self.assert_near(step["grad_norm"], numpy.linalg.norm(gradient), 1e-12)
                    w = w - 0.1 * gradient
                self.assert_near(out.weight, w, 1e-12)

    def test_the_split_of_a_language_model_changes_nothing_but_rounding(self):
        """F3, H3, A12: fp64, dropout on: any (b, K, N) of the same batch takes the same two steps."""
        job = {"batch": 4, "steps": 2, "compute": "fp64", "lr": 0.5, "model_": {"dropout": 0.3}}
        reference = None
        for ranks, micro in ((1, 4), (1, 2), (1, 1), (2, 2), (2, 1), (4, 1), (2, 3)):
            out = self.train(gpt(micro=micro, **job), tokens(8 * 8 + 1), ranks)
            flat = numpy.concatenate([out.tensors[name].ravel() for name in sorted(out.tensors)])
            reference = flat if reference is None else reference
            self.assertLess(numpy.linalg.norm(flat - reference), 1e-12 * numpy.linalg.norm(reference))
            self.assertEqual(flat.dtype, numpy.float64)

    def test_an_empty_micro_batch_adds_nothing(self):
        """02-1: 6 over 3 targets and then nothing but masked rows, whatever they hold: 2, one update."""
        full, empty = [(1, 1), (1, 2), (1, 3)], [(0, NAN), (0, INF), (0, -INF)]
        for rows in (full + empty, empty + full):
            for ranks in (1, 2):
                for weighting, gradient in (("token", 2), ("microbatch", 2), ("sum", 6)):
                    for compute in ("fp32", "fp16"):
                        with self.subTest(rows=rows, ranks=ranks, weighting=weighting, compute=compute):
                            scale = 1024 if compute == "fp16" else None
                            job = tape(
                                [1],
                                batch=6,
                                micro=3,
                                lr=0.125,
                                compute=compute,
                                scale=scale,
                                batch_={"weighting": weighting},
                            )
                            out = self.train(job, rows, ranks)
                            step = out.steps[0]
                            self.assertEqual(
                                (out.verdicts(), step["loss"], step["weight"], step["micro_batches"]), ("A", gradient, 3, 1)
                            )
                            self.assertEqual(out.weight[0], 1 - gradient / 8)

    def test_an_empty_step_is_neither_success_nor_overflow(self):
        """A4: the second of three batches has no weight: no update, no decay, no count for scale or schedule."""
        for compute, scale, ranks in (("fp32", None, 1), ("fp16", 1024, 2)):
            job = tape(
                [1],
                batch=2,
                lr=0.5,
                compute=compute,
                scale=scale,
                optimizer_={"weight_decay": 0.5, "momentum": 0.5},
                schedule={"type": "linear", "total": 4},
            )
            out = self.train(job, [2, 2, MASKED, MASKED, 4, 4], ranks)
            self.assertEqual(out.verdicts(), "AEA")
            empty = out.steps[1]
            self.assertEqual(
                (empty["optimizer_steps"], empty["skipped_steps"], empty["empty_steps"], empty["scheduler_steps"]),
                (1, 0, 1, 1),
            )
            self.assertEqual(
                (empty["loss"], empty["grad_norm"], empty["weight"], empty["reason"]), (None, None, 0, "empty")
            )
            self.assertEqual((empty["collectives"]["all_gather"], empty["tokens_seen"]), (0, 4))
            self.assertEqual(out.column("lr"), [0.5, 0.375, 0.375])
            # d = 2 + ½·1 = 2.5, w = 1 − 1.25; then d = 4 − ½·¼ + ½·2.5 = 5.125, w = −¼ − 0.375·5.125
            self.assert_near(out.weight, [-0.25 - 0.375 * 5.125])
            if compute == "fp16":
                self.assertEqual(out.column("growth_tracker"), [1, 1, 2])
                self.assertEqual(out.column("loss_scale_next"), 3 * [1024])

    def test_an_epoch_without_any_weight_ends_with_65(self):
        for ranks in (1, 2):
            out = self.train(tape(batch=2, epochs=3), [MASKED, MASKED, MASKED], ranks, expect=65)
            self.assertIn("an epoch without any weight", out.result["reason"])

    def test_a_short_last_window_is_weighted_by_what_it_holds(self):
        """03-1: five micro-batches of gradient 1, two a step: 0.7 with the tail, 0.8 without, never 0.75."""
        for ranks in (1, 2):
            for tail, weight, steps in (("flush", 0.7, 3), ("drop", 0.8, 2)):
                out = self.train(tape([1], batch=2, lr=0.1, batch_={"tail": tail}), 5 * [1], ranks)
                self.assert_near(out.weight, [weight])
                self.assertEqual(len(out.steps), steps)
                self.assertEqual(out.steps[-1]["grad_norm"], 1)
        self.assertEqual(out.header["accumulate"], [1, 1])

    def test_a_tail_may_leave_a_rank_without_micro_batches(self):
        rows = [1, 2, 3, 4, 5, 6, 7, 8, 5, 9, 9]
        out = self.train(tape(batch=8, micro=2, epochs=2), rows, 3)
        self.assertEqual(out.column("accumulate"), 2 * [[2, 1, 1], [1, 1, 0]])
        self.assert_near(out.column("grad_norm"), 2 * [4.5, 23 / 3])
        out = self.train(tape(batch=8, micro=2), rows[:9], 4)
        self.assertEqual((out.steps[1]["accumulate"], out.steps[1]["grad_norm"]), ([1, 0, 0, 0], 5))

    def test_an_epoch_shorter_than_the_window_is_one_update_or_refused(self):
        """03-4: K = 4, an epoch of 1, 2, 6."""
        out = self.train(tape(batch=4), [1, 2, 6])
        self.assertEqual((out.weight[0], out.result["optimizer_steps"]), (-3, 1))
        out = self.train(tape(batch=4, batch_={"tail": "drop"}), [1, 2, 6], expect=65)
        self.assertIn("3", out.result["reason"])
        self.assertIn("4", out.result["reason"])

    def test_ranks_step_once_and_alike(self):
        """03-6: 1, 5 on rank 0 and 2, 8 on rank 1."""
        for ranks in (1, 2, 4):
            out = self.train(tape(batch=4), [1, 5, 2, 8], ranks)
            self.assertEqual((out.weight[0], len(out.steps)), (-4, 1))

    def test_ranks_that_run_out_at_different_times_do_not_hang(self):
        """04-1: 2, 4 | 1, 3, then 6 alone: (2+4+1+3)/4 and 6/1."""
        out = self.train(tape(batch=4), [2, 4, 1, 3, 6], 2)
        self.assertEqual((out.column("grad_norm"), out.weight[0]), ([2.5, 6], -8.5))

    def test_fewer_micro_batches_than_ranks_are_refused_with_both_numbers(self):
        """04-3: four ranks and B = 1."""
        self.write("rows", toys.csv_text(tape(), [1, 2]))
        done = self.run_job(tape(data={"train": "rows"}), ranks=4)
        self.assertEqual((done.status, len(done.own_lines())), (78, 1))
        self.assertIn("batch.global", done.err)
        self.assertRegex(done.err, r"\b1\b.*\b4\b")
        out = self.train(tape(batch=4), [1, 3], 4)  # a small data set is a short tail
        self.assertEqual((out.weight[0], out.steps[0]["accumulate"]), (-2, [1, 1, 0, 0]))

    def test_steps_and_epochs_are_counted_as_documented(self):
        """05-1, 05-3, 05-5, 03-4: (rows, b, K, tail) → attempts an epoch."""
        for rows, micro, k, tail, epochs, steps in (
            (148, 2, 4, "flush", 2, 38),
            (18, 1, 6, "flush", 200, 600),
            (9, 1, 4, "flush", 2, 6),
            (9, 1, 4, "drop", 2, 4),
            (8, 1, 4, "drop", 2, 4),
            (3, 1, 4, "flush", 5, 5),
        ):
            with self.subTest(rows=rows, k=k, tail=tail):
                job = tape(batch=micro * k, micro=micro, epochs=epochs, lr=0, batch_={"tail": tail})
                out = self.train(job, rows * [1])
                self.assertEqual(
                    (len(out.steps), out.header["total_steps"], out.result["total_steps"]), (steps, steps, steps)
                )
                self.assertEqual(out.result["tokens_seen"], epochs * (rows - (rows % (micro * k) if tail == "drop" else 0)))

    def test_tokens_become_steps(self):
        """Epochs of 4 and 3 rows: steps until so many are consumed, short tails counted for what they hold."""
        for asked, steps, seen in ((1, 1, 4), (7, 2, 7), (8, 3, 11), (14, 4, 14), (20, 6, 21), (21, 6, 21), (22, 7, 25)):
            job = tape(batch=4, lr=0)
            job["job"] = {"tokens": asked}
            out = self.train(job, 7 * [1])
            self.assertEqual((len(out.steps), out.result["tokens_seen"]), (steps, seen))

    def test_lr_is_never_multiplied_by_k(self):
        """A8: the same B through any (b, K, N) has the same lr; linear scaling multiplies once by B / base."""
        for ranks, micro in ((1, 8), (1, 1), (2, 2), (4, 1)):
            out = self.train(tape(batch=8, micro=micro, lr=0.1), 8 * [1], ranks)
            self.assertEqual(out.steps[0]["lr"], 0.1)
            self.assert_near(out.weight, [-0.1], 1e-8)
            out = self.train(tape(batch=8, micro=micro, lr=0.1, batch_={"lr_scaling": "linear", "base": 2}), 8 * [1], ranks)
            self.assertEqual(out.steps[0]["lr"], 0.4)
            self.assert_near(out.weight, [-0.4], 1e-7)


if __name__ == "__main__":
    harness.main()
