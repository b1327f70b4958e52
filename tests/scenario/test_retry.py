"""on_overflow: retry. A window that overflowed is run again at the lower scale: no data are lost, and what is applied is what a run
at the scales finally used applies."""
import json

import harness
import toys
from toys import tape

INF = float("inf")
BEYOND = 2.0**17  # of fp16, at every S from 1 on, though finite


def retry(initial, **keys):
    return {"initial": initial, "on_overflow": "retry", **keys}


class Retry(toys.Training):
    def test_the_window_is_run_again_at_half_the_scale(self):
        """fp16 holds 65504. 3·65536 and 3·32768 overflow, 3·16384 does not: the first step is applied at the third try, and
        5·16384 = 81920 makes the second one do so at its second. w = −3 − 5 − 1. Two ranks share W = 2: rows of twice as much."""
        for ranks in (1, 2):
            rows = [ranks * g for g in (3, 5, 1) for _ in range(ranks)]
            out = self.train(tape(batch=ranks, compute="fp16", scale=retry(65536)), rows, ranks)
            self.assertEqual((out.verdicts(), out.column("retries"), out.weight[0]), ("AAA", [2, 1, 0], -9 * ranks))
            self.assertEqual((out.column("loss_scale"), out.column("loss_scale_next")), ([16384, 8192, 8192], [16384, 8192, 8192]))
            self.assertEqual(out.column("growth_tracker"), [1, 1, 2])
            self.assertEqual((out.column("step"), out.column("tokens_seen")), ([1, 2, 3], [ranks, 2 * ranks, 3 * ranks]))
            self.assertEqual((out.result["optimizer_steps"], out.result["skipped_steps"]), (3, 0))
            self.assertEqual([step["collectives"]["reduce_scatter"] for step in out.steps], [3, 2, 1])
            self.assertEqual([step["collectives"]["all_gather"] for step in out.steps], [1, 1, 1])

    def test_what_stays_infinite_is_skipped_behind_the_limit(self):
        """16 → 8 → 4 → 2 in three retries, and 1 by the skip; the next window is tried anew."""
        out = self.train(tape(compute="fp16", scale=retry(16, retries=3)), [BEYOND, 1])
        self.assertEqual((out.verdicts(), out.column("retries")), ("SA", [3, 0]))
        self.assertEqual((out.column("loss_scale"), out.column("loss_scale_next")), ([2, 1], [1, 1]))
        self.assertEqual(out.steps[0]["nonfinite"]["tensor"], "weight")

    def test_what_no_scale_changes_is_not_tried_again(self):
        """A loss that is not finite: of the data, or because the forward pass leaves fp16. S falls once, as by any skip."""
        out = self.train(tape(compute="fp16", scale=retry(16)), [INF, 1])
        self.assertEqual((out.verdicts(), out.column("retries"), out.column("loss_scale_next")), ("SA", [0, 0], [8, 8]))
        job = toys.job_of({"type": "mlp", "inputs": 1, "hidden": [2], "outputs": 1, "loss": "mse"}, compute="fp16", scale=retry(16))
        out = self.train(job, [(1, 70000, 0), (1, 1, 0)])
        self.assertEqual((out.verdicts(), out.column("retries"), out.column("loss_scale_next")), ("SA", [0, 0], [8, 8]))

    def test_a_gradient_that_the_scale_does_not_keep_is_told(self):
        """fp16 has nothing between 0 and 2⁻²⁴: 2⁻²⁰ at S = 1 is there, 2⁻³⁰ is not."""
        out = self.train(tape(compute="fp16", scale=1), [2**-20, 2**-30, 2**-30])
        self.assertEqual((out.verdicts(), out.column("grad_norm")), ("AAA", [2**-20, 0, 0]))
        self.assertEqual([event["step"] for event in out.events if event["event"] == "gradient_vanished"], [2])

    def test_a_scale_that_does_not_fall_is_no_reason_to_try_again(self):
        """At its minimum, and while hysteresis holds it; there the overflow is counted once."""
        out = self.train(tape(compute="fp16", scale=retry(4, minimum=2)), [BEYOND, BEYOND, 1])
        self.assertEqual((out.verdicts(), out.column("retries"), out.column("loss_scale")), ("SSA", [1, 0, 0], [2, 2, 2]))
        out = self.train(tape(compute="fp16", scale=retry(4, profile="megatron", hysteresis=2)), [BEYOND, BEYOND, 1])
        self.assertEqual((out.verdicts(), out.column("retries")), ("SSA", [0, 2, 0]))
        self.assertEqual((out.column("loss_scale"), out.column("loss_scale_next")), ([4, 1, 1], [4, 1, 1]))

    def test_an_end_by_numerics_comes_as_without_it(self):
        out = self.train(tape(compute="fp16", scale=retry(4, minimum=1, stop_after=2)), 5 * [BEYOND], expect=76)
        self.assertEqual((out.verdicts(), out.column("retries"), out.column("loss_scale")), ("SF", [2, 0], [1, 1]))

    def test_dropout_and_ragged_shares_are_those_of_a_run_at_the_final_scale(self):
        """A gpt in fp16 with dropout: the start overflows until S fits. Log and weights are those of a run that begins there."""
        for ranks, batch, micro in ((1, 5, 2), (2, 5, 2), (4, 7, 1)):
            keys = {"batch": batch, "micro": micro, "steps": 4, "optimizer": "adamw", "lr": 0.01, "compute": "fp16",
                    "model_": {"dropout": 0.1}}
            data = toys.tokens(2000)
            first = self.train(toys.gpt(scale=retry(2.0**24, retries=24), **keys), data, ranks)
            self.assertGreater(first.steps[0]["retries"], 0)
            self.assertEqual(first.verdicts(), "AAAA")
            second = self.train(toys.gpt(scale=first.steps[0]["loss_scale"], **keys), data, ranks)
            self.assertEqual(second.verdicts(), "AAAA")
            for name, tensor in first.tensors.items():
                self.assertEqual(tensor.tobytes(), second.tensors[name].tobytes(), name)
            for one, other in zip(first.steps, second.steps):
                for key in ("step", "loss", "loss_scale", "growth_tracker", "grad_norm", "clip_coefficient", "tokens_seen", "lr"):
                    self.assertEqual(one[key], other[key])

    def test_a_checkpoint_behind_which_a_window_is_run_again_is_one(self):
        """At every step S grows to 65536, with which 1.5 overflows. The trial that fails is no end of a window."""
        for every, asynchronous in ((1, True), (2, True), (3, True), (2, False)):
            keys = {"steps": 12, "compute": "fp16", "scale": retry(32768, interval=1), "checkpoint": {"every": every, "async": asynchronous}}
            out = self.train(tape(**keys), [1.5])
            self.assertEqual((out.verdicts(), out.column("retries"), out.weight[0]), (12 * "A", [0] + 11 * [1], -18))
            names = [record["name"] for record in map(json.loads, out.log_text.splitlines()) if record["type"] == "checkpoint"]
            self.assertEqual(names, [f"step-{step:08}" for step in range(every, 13, every)])

    def test_only_a_scale_that_moves_can(self):
        for keys in ({"compute": "bf16", "scale": {"on_overflow": "retry"}},
                     {"compute": "fp16", "scale": {"mode": "static", "initial": 8, "on_overflow": "retry"}}):
            out = self.run_job(tape(**keys), ranks=0)
            self.assertEqual(out.status, 78, out.err)
            self.assertIn("loss_scale", out.own_lines()[0])


if __name__ == "__main__":
    harness.main()
