"""One norm of the whole unscaled gradient, one clip a step (cases 06, 07, 13; C1–C4)."""

import numpy

import harness
import toys
from toys import tape

INF, NAN = float("inf"), float("nan")


def clipped(limit, **keys):
    return {"optimizer_": {"clip_norm": limit}, **keys}


class Clipping(toys.Training):
    def test_the_limit_is_for_the_unscaled_gradient(self):
        """06-1: S = 1024, g = (3, 4), clip 1: (−0.6, −0.8); in scaled space it would be a thousandth of that."""
        for scale in (1, 8, 1024, 8192):
            for ranks in (1, 2):
                out = self.train(
                    tape([0, 0], batch=2, compute="fp16", scale=scale, **clipped(1)), [(1, 1, 2), (1, 5, 6)], ranks
                )
                step = out.steps[0]
                self.assert_near(out.weight, [-0.6, -0.8])
                self.assertEqual((step["grad_norm"], step["grad_norm_scaled"]), (5, 5 * scale))
                self.assert_near([step["grad_norm_clipped"], step["clip_coefficient"]], [1, 0.2])

    def test_what_was_accumulated_is_clipped_once(self):
        """C3: S = 8, accumulated 16, limit 1: an update of 1, not of 1/8; K micro-batches, not each of them."""
        for k, ranks in ((1, 1), (2, 1), (2, 2), (8, 2)):
            out = self.train(tape(batch=k, compute="fp16", scale=8, **clipped(1)), k * [2], ranks)
            self.assert_near(out.weight, [-1])
        out = self.train(tape(batch=2, **clipped(1)), [10, -9])  # each alone would be clipped to ±1
        self.assert_near(out.weight, [-0.5])

    def test_a_norm_below_the_limit_is_left_alone(self):
        """min(1, limit / (norm + 1e-6)), so exactly at the limit it binds by a millionth."""
        for limit, coefficient in (
            (6, 1),
            (5.00001, 1),
            (5, 5 / 5.000001),
            (2.5, 2.5 / 5.000001),
            (None, 1),
            (1e-3, 1e-3 / 5.000001),
        ):
            out = self.train(tape([0, 0], **clipped(limit)), [(1, 3, 4)])
            self.assertEqual(out.steps[0]["clip_coefficient"], coefficient)
            self.assertEqual(out.steps[0]["grad_norm_clipped"], 5 * coefficient)
            self.assert_near(out.weight, [-3 * coefficient, -4 * coefficient])

    def test_the_norm_is_over_all_shards(self):
        """13-1, 13-8: every rank holds some of it; 3 and 4 are 5, 16 and 1 are √257, in every type."""
        for gradient, norm in (((3, 4), 5), ((16, 1), 257**0.5), ((1, 2, 2, 4, 0, 0, 10), 125**0.5)):
            for compute in ("fp32", "bf16", "fp16", "fp64"):
                scale = 1 if compute == "fp16" else None
                for ranks in (1, 2, 4):
                    job = tape(len(gradient) * [0], batch=4, compute=compute, scale=scale, **clipped(1))
                    out = self.train(job, 4 * [(1, *gradient)], ranks)
                    self.assert_near(out.steps[0]["grad_norm"], norm)
                    self.assert_near(out.weight, -numpy.array(gradient) / norm, 2e-6)

    def test_the_squares_of_the_norm_may_exceed_fp32(self):
        """06-6: 9e38 is no fp32 number, 5e19 is."""
        for compute in ("fp32", "bf16", "fp64"):
            out = self.train(tape([0, 0], batch=2, **clipped(1), compute=compute), 2 * [(1, 3e19, 4e19)], 2)
            self.assertEqual(out.verdicts(), "A")
            self.assert_near(out.weight, [-0.6, -0.8], 1e-2 if compute == "bf16" else 1e-6)
        # and with a scale: S·g near the end of fp16, on enough elements
        out = self.train(tape(1000 * [0], compute="fp16", scale=32768, **clipped(1)), [(1, *(1000 * [1.5]))])
        self.assertEqual(out.verdicts(), "A")
        self.assert_near(out.weight, 1000 * [-(1000**-0.5)])

    def test_one_norm_covers_all_groups_and_tensors(self):
        """C1: a group with its own lr is clipped with the others. g = 3 for the weight, −4 for the bias."""
        model = {"type": "linear", "inputs": 1, "init": {"values": {"weight": [0], "bias": [0]}}}
        for ranks in (1, 2):
            job = toys.job_of(model, batch=2, optimizer_={"clip_norm": 1, "groups": [{"match": "bias", "lr": 0.1}]})
            out = self.train(job, 2 * [(1, -0.75, 4)], ranks)  # ∂ = (ŷ−y)·x = 3, ŷ−y = −4
            self.assertEqual(out.steps[0]["grad_norm"], 5)
            self.assert_near([out.tensors["weight"].item(), out.tensors["bias"].item()], [-0.6, 0.08])

    def test_a_tied_tensor_counts_once(self):
        """13-3: untied, table and head are two tensors with gradients of their own; tied, the gradient is their sum in one."""
        shape = {"vocab": 7, "context": 4, "width": 4, "heads": 1, "batch": 2, "lr": 1, "compute": "fp64"}
        data = toys.tokens(9, 7)
        start = numpy.random.default_rng(3).normal(0, 0.3, 28).round(3).tolist()
        values = {"wte.weight": start}
        tied = self.train(toys.gpt(model_={"init": {"values": values}}, **shape), data)
        apart = self.train(
            toys.gpt(model_={"tie": False, "init": {"values": {**values, "lm_head.weight": start}}}, **shape), data
        )
        table, head = (apart.tensors[name].ravel() - start for name in ("wte.weight", "lm_head.weight"))
        self.assert_near(tied.tensors["wte.weight"].ravel() - start, table + head, 1e-12)
        cross = 2 * float(table @ head)
        self.assertGreater(abs(cross), 1e-4)
        self.assert_near(tied.steps[0]["grad_norm"] ** 2, apart.steps[0]["grad_norm"] ** 2 + cross, 1e-12)
        self.assertNotIn("lm_head.weight", tied.tensors)

    def test_a_gradient_that_is_not_finite_never_meets_the_clip(self):
        """07-1: g = (1, inf): inf·0 would be NaN in the weights."""
        for bad in (INF, -INF, NAN):
            for compute in ("fp32", "bf16", "fp64"):
                for ranks in (1, 2):
                    out = self.train(
                        tape([0.5, 0.25], batch=2, compute=compute, **clipped(1)),
                        [(1, 0, 0), (1, 1, bad), (1, 0, 2), (1, 0, 2)],
                        ranks,
                    )
                    self.assertEqual(out.verdicts(), "SA")
                    self.assert_near(out.weight, [0.5, -0.75])

    def test_a_skip_has_no_norm(self):
        """07-6: neither the step's before nor what happens to lie there."""
        for compute, scale in (("fp16", 8), ("bf16", None)):
            out = self.train(tape(batch=2, compute=compute, scale=scale, **clipped(1)), [3, 3, INF, 3, 4, 4], 2)
            self.assertEqual(out.verdicts(), "ASA")
            for key in ("grad_norm", "grad_norm_scaled", "grad_norm_clipped", "clip_coefficient"):
                self.assertIsNone(out.steps[1][key])
            self.assertEqual([out.steps[0]["grad_norm"], out.steps[2]["grad_norm"]], [3, 4])

    def test_limits_that_make_no_sense_are_refused(self):
        """07-3"""
        for limit in (-1, 0, ".nan", ".inf", '"1"', "on"):
            text = (
                "job: {steps: 1}\nmodel: {type: tape, size: 1}\ndata: {format: csv, train: x}\nbatch: {global: 1, micro: 1}\n"
                f"optimizer: {{lr: 1, clip_norm: {limit}}}\n"
            )
            done = self.call(harness.GACCD, "check", self.write("bad.yaml", text))
            self.assertEqual(done.status, 78)
            self.assertRegex(done.err, r"bad.yaml:5:\d+: optimizer.clip_norm")

    def test_a_limit_that_always_or_never_binds_is_told(self):
        """B8"""
        for limit, event in ((1, "clip_always"), (100, "clip_never")):
            out = self.train(tape(steps=201, lr=0, **clipped(limit)), [3, 4])
            self.assertEqual([(one["event"], one["step"]) for one in out.events], [(event, 200)])


if __name__ == "__main__":
    harness.main()
