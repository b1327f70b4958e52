"""The loss scale: one state machine for all ranks, applied to the loss, taken away once (cases 10, 06-4, 31-1; B1–B9)."""

import harness
import toys
from toys import tape

INF, NAN = float("inf"), float("nan")
FINITE, OVERFLOW = 0.5, INF

# attempts, initial scale, interval, hysteresis, profile, the scale after each attempt
TRAJECTORIES = """
FFFFFFF 256 2 2 torch           256 512 512 1024 1024 2048 2048
FFFFFFF 256 2 2 apex            256 512 512 1024 1024 2048 2048
FFFFFFF 256 2 2 megatron        256 512 512 1024 1024 2048 2048
FFFFFFF 256 2 2 deepspeed       256 256 512 512 1024 1024 2048
FFFFFFF 256 2 2 consecutive     256 256 512 512 1024 1024 2048
FFFFFFF 256 2 2 deepspeed-fused 256 256 512 512 1024 1024 2048
OOFFFO  256 2 1 torch           128 64 64 128 128 64
OOFFFO  256 2 1 megatron        128 64 64 128 128 64
OOFFFO  256 2 1 deepspeed       128 64 64 64 128 64
OOFFFO  256 2 1 consecutive     128 64 64 64 128 64
OOFFFO  256 2 1 deepspeed-fused 128 64 64 64 128 64
OFOFOF  256 3 2 torch           128 128 64 64 32 32
OFOFOF  256 3 2 deepspeed-fused 128 128 64 64 32 32
OFOFOF  256 3 2 megatron        256 256 128 128 64 64
OFOFOF  256 3 2 deepspeed       256 256 128 128 64 64
OFOFOF  256 3 2 consecutive     256 256 256 256 256 256
OFFFFOO 256 3 2 torch           128 128 128 256 256 128 64
OFFFFOO 256 3 2 deepspeed-fused 128 128 128 128 256 128 64
OFFFFOO 256 3 2 megatron        256 256 256 512 512 512 256
OFFFFOO 256 3 2 deepspeed       256 256 256 256 512 512 256
OFFFFOO 256 3 2 consecutive     256 256 256 256 512 512 256
OOOOOO  4   2 1 torch           2 1 .5 .25 .125 .0625
OOOOOO  4   2 1 megatron        2 1 1 1 1 1
OOOOOO  4   2 1 deepspeed-fused 2 1 1 1 1 1
OOOOOO  4   2 1 deepspeed       2 1 stop
OOOOOO  4   2 1 consecutive     2 1 stop
"""


def history(letters, ranks=1):
    """One row a rank and attempt; the last rank alone overflows in an attempt O."""
    return [row for letter in letters for row in (ranks - 1) * [FINITE] + [OVERFLOW if letter == "O" else FINITE]]


class LossScale(toys.Training):
    def follow(self, letters, scale, ranks=1, expect=0, **keys):
        return self.train(
            tape(batch=ranks, compute="fp16", scale=scale, lr=0.01, **keys), history(letters, ranks), ranks, expect
        )

    def check(self, compute, keys):
        return self.call(
            harness.GACCD,
            "check",
            self.write(
                "bad.yaml",
                f"""
job: {{steps: 1}}
model: {{type: tape, size: 1}}
data: {{format: csv, train: x}}
batch: {{global: 1, micro: 1}}
optimizer: {{lr: 1}}
precision:
  compute: {compute}
  loss_scale: {{{keys}}}
""",
            ),
        )

    def test_an_overflow_halves_at_once_and_zeroes_the_tracker(self):
        """10-1: S used 8 8 16 8 8 16; after the sixth step 16, tracker 1."""
        for ranks in (1, 2, 4):
            out = self.follow("FFOFFF", {"initial": 8, "interval": 2}, ranks)
            self.assertEqual(out.column("loss_scale"), [8, 8, 16, 8, 8, 16])
            self.assertEqual(out.column("growth_tracker"), [1, 0, 0, 1, 0, 1])
            self.assertEqual(out.steps[-1]["loss_scale_next"], 16)
            self.assertEqual(out.verdicts(), "AASAAA")

    def test_one_overflow_in_one_micro_batch_of_one_rank_halves_once(self):
        """B3: K = 4 on each of N ranks: neither 2⁻⁴ nor 2⁻ᴺ; several in one step halve once as well."""
        for ranks, where in ((1, [2]), (2, [5]), (2, [0, 1, 6]), (4, [15]), (4, range(16))):
            rows = [OVERFLOW if i in where else 1 for i in range(4 * ranks)] + 4 * ranks * [1]
            out = self.train(tape(batch=4 * ranks, compute="fp16", scale=1024), rows, ranks)
            self.assertEqual((out.verdicts(), out.column("loss_scale"), out.weight[0]), ("SA", [1024, 512], -1))
            self.assertEqual((out.steps[1]["skipped_steps"], out.steps[0]["nonfinite"]["rank"]), (1, where[0] // 4))

    def test_profiles_keep_the_trajectories_of_their_programs(self):
        """The scale after each step of those programs themselves (loss_scale_test has more of them, and random histories)."""
        for row in TRAJECTORIES.strip().splitlines():
            letters, initial, interval, hysteresis, name, *trajectory = row.split()
            with self.subTest(letters=letters, profile=name):
                scale = {"profile": name, "initial": int(initial), "interval": int(interval)}
                if name == "consecutive":
                    scale.update(profile="deepspeed", consecutive_hysteresis=True)
                if scale["profile"] in ("deepspeed", "megatron"):
                    scale["hysteresis"] = int(hysteresis)
                stops = trajectory[-1] == "stop"
                wanted = [float(word) for word in trajectory if word != "stop"]
                out = self.follow(letters, scale, expect=76 if stops else 0)
                self.assertEqual(out.column("loss_scale_next")[: len(wanted)], wanted)
                self.assertEqual(len(out.steps), len(wanted) + stops)

    def test_the_scenarios_that_pytorch_documents(self):
        """Of its own tests of GradScaler, with our numbers (tests/peer/frameworks_steps.py runs them through GradScaler).

        An overflow in iteration 2 of 0…3, growth after every finite step: 128 → 256 → 512 → 256 → 512 = 128·2³·½.
        Two micro-batches to a step, each of half the loss: four of them are two steps: 128 → 256 → 512 = 128·2²; the mean of
        0.5 and 0.25 is applied: w = −0.375 twice.
        Growth by 16 at 1e38, with 3.4e38 the largest fp32: it stays at 1e38.
        Gradients that fp16 holds up to 65504, scale 4: 5·4 = 20 is finite: 4; 20000·4 = 80000 is not: 2; 5·2 = 10: 2;
        40000·2 = 80000: 1; w = −5 − 5.
        """
        for rows, batch, scale, scales, verdicts, weight in (
            ([0.5, 0.5, INF, 0.5], 1, {"initial": 128, "interval": 1}, [256, 512, 256, 512], "AASA", -1.5),
            ([0.5, 0.25, 0.5, 0.25], 2, {"initial": 128, "interval": 1}, [256, 512], "AA", -0.75),
            ([0, 0], 1, {"initial": 1e38, "growth": 16, "interval": 1}, 2 * [1e38], "AA", 0),
            ([5, 20000, 5, 40000], 1, {"initial": 4}, [4, 2, 2, 1], "ASAS", -10),
        ):
            for ranks in range(1, batch + 1):
                out = self.train(tape(batch=batch, compute="fp16", scale=scale), rows, ranks)
                self.assert_close(out.column("loss_scale_next"), scales, 1e-7)
                self.assertEqual((out.verdicts(), out.weight[0]), (verdicts, weight))

    def test_permanent_overflow_ends_at_the_floor_with_76(self):
        """10-3: 16 8 4 2 1 1 1 …, then an end that names step and tensor."""
        for ranks in (1, 2):
            out = self.follow(12 * "O", {"initial": 16, "minimum": 1, "stop_after": 3}, ranks, expect=76)
            self.assertEqual(out.column("loss_scale"), [16, 8, 4, 2, 1, 1, 1])
            self.assertEqual(
                (out.verdicts(), out.result["status"], out.result["exit"], out.result["optimizer_steps"]),
                ("SSSSSSF", "failed", 76, 0),
            )
            self.assertRegex(
                out.result["reason"],
                f"step 7: .*loss scale 1\\b.*rank {ranks - 1}, tensor weight, micro-batch {ranks - 1}, step 7",
            )
            self.assertEqual(out.lines, [f"gaccd: rank 0: {out.result['reason']}"])
            self.assertIsNone(out.tensors)
            self.assertIn("scale_at_minimum", [event["event"] for event in out.events])

    def test_tiny_gradients_do_not_drive_the_scale_to_infinity(self):
        """10-5, B9: 65536·2¹¹² is not an fp32 number."""
        out = self.follow(150 * "F", {"initial": 65536, "interval": 1}, steps=150)  # g = ½·S overflows fp16 …
        self.assertLess(max(out.column("loss_scale")), 2.0**18)
        rows = 150 * [0]  # … and g = 0 never does
        out = self.train(tape([2], compute="fp16", scale={"initial": 65536, "interval": 1}), rows)
        self.assertEqual(out.verdicts(), 150 * "A")
        self.assertEqual(out.column("loss_scale"), [2.0 ** min(16 + i, 127) for i in range(150)])
        self.assertEqual((out.weight[0], max(out.column("grad_norm"))), (2, 0))
        for initial, growth in ((2.0**127, 2), (3e38, 1.5), (1e38, 1e10)):
            out = self.train(tape(compute="fp16", scale={"initial": initial, "interval": 1, "growth": growth}), [0, 0])
            self.assert_close(out.column("loss_scale_next"), 2 * [initial])

    def test_scale_and_average_are_separate_factors(self):
        """B4: K = 3, S = 8, g = 1, 2, 3: accumulated 16, unscaled 2; 6 without 1/K, 0.667 with it twice."""
        for ranks, micro in ((1, 1), (1, 3), (3, 1), (2, 1)):
            out = self.train(tape(batch=3, micro=micro, compute="fp16", scale=8), [1, 2, 3], ranks)
            self.assert_close(
                [out.steps[0]["grad_norm_scaled"], out.steps[0]["grad_norm"], -out.weight[0]], [16, 2, 2], 1e-3
            )

    def test_the_sum_is_unscaled_once(self):
        """06-4: S = 8, K = 2, g = 4 then 2: 3; 1.25 if every micro-batch unscaled what is there."""
        for ranks in (1, 2):
            for k, rows in ((2, [4, 2]), (4, [4, 2, 1, 5]), (8, [4, 2, 4, 2, 1, 5, 1, 5])):
                self.assertEqual(self.train(tape(batch=k, compute="fp16", scale=8), rows, ranks).weight[0], -3)

    def test_norms_differ_by_exactly_the_scale(self):
        """C2, for scales that are powers of two."""
        for scale in (2.0**-10, 1, 8, 1024, 2.0**15):
            out = self.train(
                tape([0, 0], batch=2, compute="fp16", scale=scale), [(1, 0.3, -0.7), (1, 0.1, 0.2), (1, 0.9, 0.4)], 2
            )
            for step in out.steps:
                self.assertEqual(step["grad_norm_scaled"] / step["grad_norm"], scale)

    def test_a_growth_step_applies_the_whole_gradient(self):
        """The S that unscales is the S of the window, not the one after the growth."""
        out = self.train(tape(batch=2, compute="fp16", scale={"initial": 8, "interval": 1}), 8 * [1], 2)
        self.assertEqual((out.column("loss_scale"), out.weight[0]), ([8, 16, 32, 64], -4))

    def test_a_scaled_gradient_beyond_fp16_overflows_and_nothing_else_does(self):
        """20000·S is inf from S = 4 on; the same rows in bf16 and fp32 have no scale and no skip."""
        for scale, verdicts in ((2, "A"), (3, "A"), (4, "S"), (65536, "S")):
            out = self.train(tape(compute="fp16", scale=scale), [20000])
            self.assertEqual(
                (out.verdicts(), out.column("loss_scale_next")), (verdicts, [scale if verdicts == "A" else scale / 2])
            )
        for compute in ("bf16", "fp32", "fp64"):
            out = self.train(tape(compute=compute), [20000])
            self.assert_close(out.weight, [-20000], 2**-8)
            self.assertEqual([out.steps[0][key] for key in ("loss_scale", "loss_scale_next", "growth_tracker")], 3 * [None])

    def test_the_sum_over_ranks_may_exceed_fp16(self):
        """31-1: four ranks of 30000 each: the mean is 30000, and even the sum is no overflow."""
        for weighting, weight in (("token", -30000), ("sum", -120000)):
            out = self.train(tape(batch=4, compute="fp16", scale=1, batch_={"weighting": weighting}), 4 * [30000], 4)
            self.assert_close(out.weight, [weight], 1e-3)
            self.assertEqual(out.verdicts(), "A")

    def test_a_static_scale_never_moves(self):
        static = {"mode": "static", "initial": 64}
        for ranks in (1, 2):
            out = self.follow("FOFFOF", static, ranks)
            self.assertEqual((out.column("loss_scale_next"), out.verdicts()), (6 * [64], "ASAASA"))
            out = self.follow("OOFOOOFF", {**static, "stop_after": 3}, ranks, expect=76)
            self.assertEqual(out.verdicts(), "SSASSF")

    def test_factors_are_the_jobs(self):
        """B2: nothing is hard-coded, and the documented default is used when a key is missing."""
        out = self.follow("FOFF", {"initial": 100, "growth": 3, "backoff": 0.25, "interval": 1, "maximum": 250})
        self.assertEqual(out.column("loss_scale_next"), [250, 62.5, 187.5, 250])
        out = self.train(tape(compute="fp16"), [0, INF, 0])
        self.assertEqual(out.column("loss_scale"), [65536, 65536, 32768])
        self.assertEqual(self.call(harness.GACCD, "check", "job.yaml").out.count("interval: 2000"), 1)

    def test_other_precisions_have_no_scale(self):
        """B7: both in one file is refused with its line; --set drops the section, and says so."""
        job = tape([1], compute="fp16", scale=8)
        for compute in ("bf16", "fp32", "fp64"):
            out = self.train(job, [1], arguments=["--set", f"precision.compute={compute}"])
            self.assertEqual((out.steps[0]["loss_scale"], out.weight[0]), (None, 0))
            self.assertEqual(out.lines, ["gaccd: --set precision.compute drops precision.loss_scale of job.yaml"])
            done = self.check(compute, "initial: 8")
            self.assertEqual(done.status, 78)
            self.assertRegex(done.err, r"bad.yaml:9:3: precision\.loss_scale: .*" + compute)

    def test_scales_that_cannot_work_are_refused_by_key(self):
        """10-7"""
        for key, value in (
            ("initial", 0),
            ("initial", -1),
            ("initial", ".nan"),
            ("initial", ".inf"),
            ("initial", "auto"),
            ("initial", 1e-40),
            ("growth", 0.5),
            ("growth", 1),
            ("backoff", 2),
            ("backoff", 0),
            ("backoff", 1),
            ("interval", 0),
            ("interval", 2.5),
            ("hysteresis", 2),
            ("minimum", -1),
            ("profile", "nvidia"),
            ("mode", "auto"),
            ("stop_after", 0),
        ):
            done = self.check("fp16", f"{key}: {value}")
            self.assertEqual(done.status, 78, (key, value, done.out))
            self.assertRegex(done.err, rf"bad.yaml:9:\d+: precision\.loss_scale\.{key}")


if __name__ == "__main__":
    harness.main()
