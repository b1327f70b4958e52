"""A gradient that is not finite, anywhere: everybody skips, nothing moves, the culprit is named (cases 11, 12; B3, B6, B8, C4)."""

import harness
import toys
from toys import tape

INF, NAN = float("inf"), float("nan")


class Skipping(toys.Training):
    def test_a_skip_moves_neither_moments_nor_counts_nor_decay(self):
        """11-1: attempt 1 overflows, attempt 2 has g = ½: 0.89; 0.9156 with t counted, 0.8801 with decay on the skip."""
        optimizer = {"optimizer_": {"weight_decay": 0.1}, "optimizer": "adamw", "lr": 0.1}
        for compute, scale in (("fp16", 8), ("bf16", None), ("fp32", None), ("fp64", None)):
            for ranks in (1, 2):
                out = self.train(tape([1], batch=2, compute=compute, scale=scale, **optimizer), [INF, 1, 0.5, 0.5], ranks)
                self.assertEqual(out.verdicts(), "SA")
                self.assert_near(out.weight, [0.890000002], 1e-7)

    def test_a_skip_keeps_momentum(self):
        """d = 1 and 1 + ½, with a skip between them or not."""
        for rows in ([1, 1], [1, INF, 1], [INF, NAN, 1, INF, 1]):
            out = self.train(
                tape(compute="bf16", optimizer_={"momentum": 0.5}, precision_={"nonfinite_stop_after": 9}), rows
            )
            self.assertEqual(out.weight[0], -2.5)

    def test_ranks_never_disagree(self):
        """12-1: one rank of several has one bad number; all skip, halve, and go on alike with the next data."""
        for ranks in (2, 3, 4):
            for culprit in (0, ranks - 1):
                for bad in (INF, -INF, NAN):
                    rows = [bad if rank == culprit else 1 for rank in range(ranks)] + ranks * [2]
                    out = self.train(
                        tape([0, 0, 0], batch=ranks, compute="fp16", scale=16), [(1, 1, row, 1) for row in rows], ranks
                    )
                    self.assertEqual((out.verdicts(), out.column("loss_scale")), ("SA", [16, 8]))
                    self.assert_close(out.weight, [-1, -2, -1], 1e-3)
                    self.assertEqual(out.steps[0]["nonfinite"]["rank"], culprit)

    def test_data_of_a_skip_are_consumed(self):
        """B6: the step after the skip reads the next rows; the counters say so."""
        out = self.train(tape(batch=2, compute="fp16", scale=2), [INF, 1, 3, 5, 7, 9], 2)
        self.assertEqual((out.column("grad_norm"), out.column("tokens_seen")), ([None, 4, 8], [2, 4, 6]))
        for key, counts in (
            ("step", [1, 2, 3]),
            ("optimizer_steps", [0, 1, 2]),
            ("skipped_steps", [1, 1, 1]),
            ("scheduler_steps", [0, 1, 2]),
            ("empty_steps", [0, 0, 0]),
        ):
            self.assertEqual(out.column(key), counts)
        self.assertEqual(out.column("reason"), ["overflow", None, None])
        self.assertEqual([step["collectives"]["all_gather"] for step in out.steps], [0, 1, 1])

    def test_gradients_are_cleared_on_a_skip(self):
        """E2: nothing finite of the skipped window is left for the next one: (2 + 4)/2, not more."""
        for ranks in (1, 2):
            out = self.train(tape(batch=4, micro=1, compute="fp16", scale=4), [100, INF, 100, 100, 2, 4, 2, 4], ranks)
            self.assertEqual(out.weight[0], -3)

    def test_steps_are_applied_steps(self):
        """The job is as long as it says: skipped attempts come on top."""
        out = self.train(tape(steps=4, compute="fp16", scale=2**10), [1, INF, 1])
        self.assertEqual((out.verdicts(), out.result["optimizer_steps"], out.result["skipped_steps"]), ("ASAASA", 4, 2))

    def test_without_a_scale_it_is_loud_and_ends_with_76(self):
        """11-5, C4: NaN in every step."""
        for compute in ("bf16", "fp32", "fp64"):
            for limit, ranks in ((1, 1), (2, 2), (3, 1)):
                job = tape(
                    steps=9,
                    batch=2,
                    compute=compute,
                    precision_={"nonfinite_stop_after": limit},
                    schedule={"type": "linear"},
                )
                out = self.train(job, [1, NAN], ranks, expect=76)
                self.assertEqual(out.verdicts(), (limit - 1) * "S" + "F")
                self.assertEqual(out.column("lr"), limit * [1])
                self.assertEqual(out.column("skipped_steps"), list(range(1, limit + 1)))
                self.assertEqual([event["event"] for event in out.events], limit * ["nonfinite"])
                self.assertEqual(out.lines, [f"gaccd: rank 0: {out.result['reason']}"])
                self.assertIn(f"rank {ranks - 1}, tensor weight, micro-batch 1, step {limit}", out.result["reason"])
                self.assertEqual((out.result["exit"], out.result["optimizer_steps"]), (76, 0))

    def test_a_finite_step_starts_the_count_anew(self):
        out = self.train(tape(compute="fp32"), [NAN, INF, 1, NAN, INF, 1])
        self.assertEqual(out.verdicts(), "SSASSA")
        self.train(tape(compute="fp32"), [1, NAN, INF, NAN, 1], expect=76)

    def test_an_empty_step_does_not_start_it_anew(self):
        """It is neither success nor overflow."""
        out = self.train(tape(compute="fp32"), [NAN, NAN, (0, 1), NAN, 1], expect=76)
        self.assertEqual(out.verdicts(), "SSEF")

    def test_the_culprit_is_named_with_what_it_read(self):
        """B8: rank, tensor, micro-batch of the step, index and file offset of every sequence of it."""
        for ranks, micro, bad in ((1, 1, 5), (1, 4, 2), (2, 2, 6), (2, 2, 1), (4, 1, 7), (2, 3, 7)):
            rows = [INF if i == bad else 1 for i in range(8)]
            out = self.train(tape([0], batch=8, micro=micro, compute="fp32"), rows, ranks)
            blame = out.steps[0]["nonfinite"]
            micro_batches = -(-8 // micro)
            owners = [rank for rank in range(ranks) for _ in range(micro_batches // ranks + (rank < micro_batches % ranks))]
            self.assertEqual(
                (blame["rank"], blame["tensor"], blame["micro_batch"]), (owners[bad // micro], "weight", bad // micro)
            )
            lines = toys.csv_text(tape([0]), rows).splitlines(keepends=True)
            offsets = [sum(map(len, lines[: 1 + i])) for i in range(8)]
            first = bad // micro * micro
            self.assertEqual(
                blame["sequences"],
                [{"index": i, "file": "data", "offset": offsets[i]} for i in range(first, min(first + micro, 8))],
            )

    def test_of_several_culprits_the_lowest_rank_is_named(self):
        out = self.train(tape(batch=4, compute="fp32"), [1, 1, INF, NAN], 4)
        self.assertEqual(out.steps[0]["nonfinite"]["rank"], 2)

    def test_a_sum_that_overflows_names_nobody_it_cannot_name(self):
        """2e38 twice in one rank: the tensor, no micro-batch; on two ranks: nobody, and the log says so."""
        for ranks, blame in ((1, {"rank": 0, "tensor": "weight", "micro_batch": None, "sequences": []}), (2, None)):
            out = self.train(tape(batch=2, compute="fp32", batch_={"weighting": "sum"}), [2e38, 2e38], ranks)
            self.assertEqual((out.verdicts(), out.steps[0]["nonfinite"]), ("S", blame))
            self.assertEqual("sum over ranks overflowed" in out.events[0]["text"], blame is None)

    def test_a_language_model_names_the_tensor(self):
        """fp16 at S = 2¹²⁷: the very first backward overflows; the last tensor of the forward pass is not the first of the table."""
        job = toys.gpt(batch=4, compute="fp16", scale={"initial": 2.0**127, "minimum": 2.0**126, "stop_after": 2})
        out = self.train(job, toys.tokens(8 * 20 + 1), 2, expect=76)
        for step in out.steps:
            self.assertEqual((step["nonfinite"]["rank"], step["nonfinite"]["micro_batch"]), (0, 0))
            self.assertEqual(step["nonfinite"]["tensor"], "wte.weight")
            self.assertEqual(step["nonfinite"]["sequences"][0]["offset"], 8 * step["nonfinite"]["sequences"][0]["index"])

    def test_too_many_skips_are_told(self):
        """B8: the eleventh of 200 attempts."""
        rows = [INF if i % 3 == 0 else 1 for i in range(60)]
        out = self.train(tape(compute="fp16", scale={"initial": 1, "interval": 2}), rows)
        self.assertIn(("skip_rate", 31), [(event["event"], event["step"]) for event in out.events])


if __name__ == "__main__":
    harness.main()
