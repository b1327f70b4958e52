"""One reduce-scatter and one all-gather a step, whatever K is, of the bytes that the algebra asks for (case 14; D1–D4)."""

import harness
import toys
from toys import gpt, tape, tokens

SIZES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp64": 8}


class Collectives(toys.Training):
    def test_their_number_does_not_depend_on_k(self):
        """14-1, D1, D2: ten steps are ten of each; 80 or 160 if every micro-batch reduced."""
        for ranks in (1, 2, 4):
            for k in (1, 8, 16):
                out = self.train(tape(batch=ranks * k, steps=10), ranks * k * [1], ranks)
                self.assertEqual(out.column("accumulate"), 10 * [ranks * [k]])
                self.assertEqual(out.column("collectives"), 10 * [{"reduce_scatter": 1, "all_gather": 1, "control": 0}])
                self.assertEqual(len({str(one) for one in out.column("bytes")}), 1)

    def test_bytes_are_those_of_the_algebra(self):
        """D3: P·4·(N−1)/N for gradients (fp64: ·8), P·(compute type)·(N−1)/N for parameters, up to one element's padding a rank."""
        for parameters in (7, 1200):
            for compute, size in SIZES.items():
                for ranks in (1, 3, 4):
                    out = self.train(
                        tape(parameters * [0], batch=ranks, compute=compute), ranks * [(1, *(parameters * [0]))], ranks
                    )
                    for key, bytes_each in (("reduce_scatter", 8 if compute == "fp64" else 4), ("all_gather", size)):
                        exact = parameters * bytes_each * (ranks - 1) / ranks
                        found = out.steps[0]["bytes"][key]
                        if parameters % ranks == 0:
                            self.assertEqual(found, exact)
                        self.assertLessEqual(abs(found - exact), ranks * bytes_each)

    def test_a_model_pays_for_every_parameter_once(self):
        for compute, size in (("fp32", 4), ("bf16", 2)):
            for micro in (1, 4):
                out = self.train(gpt(batch=8, micro=micro, compute=compute), tokens(8 * 16 + 1), 2)
                parameters = out.header["parameters"]
                self.assertEqual(parameters, sum(tensor.size for tensor in out.tensors.values()))
                self.assertEqual(parameters % 2, 0)
                self.assertEqual(
                    out.column("bytes"), 2 * [{"reduce_scatter": parameters * 4 // 2, "all_gather": parameters * size // 2}]
                )

    def test_gradients_can_travel_as_bf16(self):
        """precision.reduce. In bf16 1 + 2^-9 is 1, and 1 + 3·2^-9 is 1 + 2^-7; each rank owns one of two weights and has its
        own part of that one unrounded. sum weighting, lr 1: the weights become −Σg."""
        low, high = 1 + 2**-9, 1 + 3 * 2**-9
        job = tape([0, 0], batch=2, batch_={"weighting": "sum"}, precision_={"reduce": "bf16"})
        out = self.train(job, [(1, low, low), (1, high, high)], 2)
        self.assertEqual(out.weight.tolist(), [-(low + 1 + 2**-7), -(1 + high)])
        self.assertEqual(out.column("bytes"), [{"reduce_scatter": 2, "all_gather": 4}])
        self.assertEqual(out.column("collectives"), [{"reduce_scatter": 1, "all_gather": 1, "control": 0}])
        alone = self.train(job, [(1, low, low), (1, high, high)])
        self.assertEqual(alone.weight.tolist(), 2 * [-(low + high)])  # nothing travels

    def test_a_skip_and_an_empty_step_gather_nothing(self):
        for first, verdicts in (((1, float("inf"), 1), "SA"), ((0, 1, 1), "EA")):
            rows = 2 * [first] + 2 * [(1, 1, 1)]
            out = self.train(tape([0, 0], batch=2, compute="fp16", scale=2), rows, 2)
            self.assertEqual(out.verdicts(), verdicts)
            self.assertEqual(
                [step["collectives"] for step in out.steps],
                [{"reduce_scatter": 1, "all_gather": gathers, "control": 0} for gathers in (0, 1)],
            )
            self.assertEqual([step["bytes"]["all_gather"] for step in out.steps], [0, 2])

    def test_fewer_parameters_than_ranks(self):
        """D4: some ranks own nothing, and take part all the same."""
        for optimizer in ("sgd", "adamw"):
            for parameters in (1, 3, 5):
                job = tape(parameters * [1], batch=4, steps=3, lr=0.25, optimizer=optimizer, compute="fp64")
                rows = [(1, *(i - row for i in range(parameters))) for row in range(4)]
                alone, together = (self.train(job, rows, ranks) for ranks in (1, 4))
                self.assert_near(together.weight, alone.weight, 1e-12)

    def test_evaluation_calls_no_collective(self):
        job = tape(batch=2, steps=2, evaluation={"every": 1}, data={"validation": "data"})
        out = self.train(job, 2 * [1], 2)
        self.assertEqual(len(out.evaluations), 2)
        self.assertEqual(out.column("collectives"), 2 * [{"reduce_scatter": 1, "all_gather": 1, "control": 0}])


if __name__ == "__main__":
    harness.main()
