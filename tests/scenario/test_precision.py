"""What is wide stays wide: accumulator, master parameters, reduction, counts (cases 30, 31; F1–F3)."""

import numpy

import harness
import toys
from toys import gpt, tape, tokens

TYPES = ("fp32", "bf16", "fp16", "fp64")


def flat(out):
    return numpy.concatenate([out.tensors[name].ravel() for name in sorted(out.tensors)]).astype(numpy.float64)


def bf16(values):
    """Rounded to nearest even, in 32 bits."""
    bits = numpy.asarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(numpy.float32)


class Precision(toys.Training):
    def test_the_accumulator_is_wide(self):
        """30-1: 512 ones average to 1 (a bf16 sum sticks at 256); 4096 of them in fp16 as well (sticks at 2048)."""
        for compute, k in (("bf16", 512), ("fp16", 4096), ("fp32", 512)):
            for ranks in (1, 2):
                scale = 1 if compute == "fp16" else None
                job = tape(batch=ranks * k, compute=compute, scale=scale, batch_={"weighting": "sum"})
                self.assertEqual(self.train(job, ranks * k * [1], ranks).weight[0], -ranks * k)
                out = self.train(tape(batch=ranks * k, compute=compute, scale=scale), ranks * k * [1], ranks)
                self.assertEqual((out.weight[0], out.steps[0]["grad_norm"]), (-1, 1))

    def test_masters_move_by_less_than_the_compute_type_can(self):
        """30-4: a hundred updates of −0.0005 from 1: 0.95; a weight without master would stay at 1."""
        for compute in TYPES:
            for ranks in (1, 2):
                job = tape([1, 1], batch=2, steps=100, lr=0.0005, compute=compute, scale=1 if compute == "fp16" else None)
                out = self.train(job, 2 * [(1, 1, 1)], ranks)
                self.assert_near(out.weight, [0.95, 0.95], 3e-6)
                self.assertEqual(out.weight.dtype, numpy.float64 if compute == "fp64" else numpy.float32)

    def test_the_forward_pass_sees_the_rounded_weights(self):
        """The loss of tape is g·w: after 100 updates it is that of the compute type's copy of 0.95."""
        for compute, copy in (("bf16", 0.94921875), ("fp16", 0.9501953125), ("fp32", 0.95)):
            out = self.train(tape([1], steps=101, lr=0.0005, compute=compute, scale=1 if compute == "fp16" else None), [1])
            self.assert_near([out.steps[100]["loss"]], [copy], 1e-9 if compute != "fp32" else 3e-6)

    def test_gradients_are_rounded_to_the_compute_type_once_a_micro_batch(self):
        """g = 1 + 2⁻¹⁰ and others, alone: what bf16 keeps of each."""
        values = [1 + 2**-10, 3.14159, -0.001, 70000, 1e-30]
        out = self.train(tape([0] * 5, compute="bf16"), [(1, *values)])
        numpy.testing.assert_array_equal(-out.weight, bf16(values))
        out = self.train(tape([0] * 5), [(1, *values)])
        numpy.testing.assert_array_equal(-out.weight, numpy.float32(values))

    def test_the_reduction_adds_in_the_wide_type(self):
        """Neither 2049 (fp16) nor 257 (bf16) is a number of the compute type."""
        for compute, parts in (("fp16", [2048, 1]), ("bf16", [256, 1]), ("fp32", [2**23, 1]), ("fp64", [2**40, 1])):
            job = tape(batch=2, compute=compute, scale=1 if compute == "fp16" else None, batch_={"weighting": "sum"})
            self.assertEqual(self.train(job, parts, 2).weight[0], -sum(parts))

    def test_a_model_that_is_not_finite_is_no_result(self):
        """−3e38 − 3e38 is no fp32 number, and −1e308 − 1e308 no fp64 one: 76, the tensor named, no model; the log is whole."""
        for compute, large in (("fp32", 3e38), ("bf16", 3e38), ("fp64", 1e308)):
            for ranks in (1, 2):
                job = tape([0, -large], batch=ranks, compute=compute, lr=large)
                out = self.train(job, ranks * [(1, 0, 1)], ranks, expect=76)
                self.assertEqual((out.verdicts(), out.result["exit"], out.result["optimizer_steps"]), ("A", 76, 1))
                reason = f"rank {ranks - 1}: run{self.count}/final/model.safetensors: not written: tensor weight is not finite"
                self.assertEqual(out.result["reason"], reason + " (element 1 of 2)")
                self.assertEqual(out.lines, [f"gaccd: {out.result['reason']}"])
                self.assertIsNone(out.tensors)

    def test_counts_are_exact_beyond_fp32(self):
        """31-4: 16777216 + 1."""
        for rows in ([(2**24, 1), (1, 1)], [(2**40, 2), (0.5, 2)]):
            for ranks in (1, 2):
                out = self.train(tape(batch=2, compute="fp64"), rows, ranks)
                self.assertEqual(out.steps[0]["weight"], rows[0][0] + rows[1][0])
                self.assert_near(out.weight, [-rows[0][1]], 1e-12)

    def test_every_type_takes_the_step_of_fp32_to_its_rounding(self):
        """30-6: one SGD step of a language model: direction and length against fp64, in all types and splits."""

        def step(compute, micro, ranks):
            scale = 1024 if compute == "fp16" else None
            return flat(
                self.train(gpt(batch=8, micro=micro, steps=1, width=16, compute=compute, scale=scale, lr=0.1), data, ranks)
            )

        data = tokens(8 * 8 + 1)
        start = flat(self.train(gpt(batch=8, micro=8, steps=1, width=16, compute="fp64", lr=0), data))
        reference = step("fp64", 8, 1) - start
        length = numpy.linalg.norm(reference)
        for compute, bound in (("fp64", 1e-12), ("fp32", 1e-5), ("fp16", 5e-3), ("bf16", 3e-2)):
            for micro, ranks in ((8, 1), (1, 1), (2, 2), (1, 4)):
                with self.subTest(compute=compute, micro=micro, ranks=ranks):
                    found = step(compute, micro, ranks) - start
                    self.assertLess(numpy.linalg.norm(found - reference) / length, bound)
                    self.assert_near(numpy.linalg.norm(found) / length, 1, bound)

    def test_training_in_each_type_learns_the_same(self):
        """60 steps of a text that repeats itself: all types end below a third of ln 65, and near each other."""
        text = bytes(range(10, 20)) * 40
        losses = {}
        for compute in TYPES:
            job = gpt(batch=8, micro=2, steps=60, width=16, compute=compute, lr=0.01, optimizer="adamw")
            out = self.train(job, text, 2)
            losses[compute] = out.column("loss")[-1]
            self.assertLess(losses[compute], 4.17 / 3)
        self.assert_near(losses["fp32"], losses["fp64"], 1e-3)
        for compute in ("bf16", "fp16"):
            self.assertLess(abs(losses[compute] - losses["fp32"]), 0.1)


if __name__ == "__main__":
    harness.main()
