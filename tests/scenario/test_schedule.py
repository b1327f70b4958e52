"""The learning rate follows applied steps, and nothing else (cases 08, 09; I1, I2)."""

import math

import harness
import toys
from toys import tape

INF = float("inf")


class Schedule(toys.Training):
    def test_a_skip_does_not_move_it(self):
        """08-1: warm-up by quarters, the second attempt overflows: w = 10 − ¼ − ½ − ¾ − 1."""
        for compute, scale in (("fp16", 8), ("bf16", None), ("fp32", None)):
            for ranks in (1, 2):
                rows = [1 if attempt != 1 else INF for attempt in range(5) for _ in range(ranks)]
                out = self.train(tape([10], batch=ranks, compute=compute, scale=scale, schedule={"warmup": 3}), rows, ranks)
                self.assertEqual(out.column("lr"), [0.25, 0.5, 0.5, 0.75, 1])
                self.assertEqual(out.column("scheduler_steps"), [1, 1, 2, 3, 4])
                self.assertEqual(out.weight[0], 7.5)

    def test_micro_batches_do_not_move_it(self):
        """I1: 2·K micro-batches of K = 4 are two steps."""
        for ranks, micro in ((1, 1), (2, 1), (1, 4)):
            out = self.train(tape(batch=4, micro=micro, schedule={"type": "linear", "total": 4}), 8 * [1], ranks)
            self.assertEqual((out.column("lr"), out.result["scheduler_steps"]), ([1, 0.75], 2))

    def test_ranks_do_not_move_it(self):
        """08-4: linear from 1 to 0 over 8 updates, for any N."""
        for ranks in (1, 2, 4):
            out = self.train(tape(batch=4, steps=8, schedule={"type": "linear"}), 4 * [1], ranks)
            self.assertEqual(out.column("lr"), [1 - i / 8 for i in range(8)])
            self.assert_near(out.weight, [-4.5])

    def test_the_first_update_is_warmed_up(self):
        """08-5: a tenth."""
        out = self.train(tape([1], schedule={"warmup": 9}), [1])
        self.assert_near(out.weight, [0.9])

    def test_cosine_reaches_the_minimum_and_stays_there(self):
        """09-1, 09-3: 15 updates of a schedule of 10."""
        wanted = [
            3.33333e-4,
            6.66667e-4,
            1e-3,
            9.65746e-4,
            8.68198e-4,
            7.22208e-4,
            5.5e-4,
            3.77792e-4,
            2.31802e-4,
            1.34254e-4,
        ] + 5 * [1e-4]
        out = self.train(
            tape(steps=15, lr=1e-3, schedule={"type": "cosine", "warmup": 2, "total": 10, "minimum": 1e-4}), [1]
        )
        self.assert_close(out.column("lr"), wanted, 3e-6)
        self.assert_near(out.weight, [-sum(wanted)], 1e-8)

    def test_other_shapes(self):
        table = (
            ({"type": "constant"}, [1, 1, 1, 1, 1, 1]),
            ({"type": "constant", "warmup": 2}, [1 / 3, 2 / 3, 1, 1, 1, 1]),
            ({"type": "linear", "total": 4, "minimum": 0.2}, [1, 0.8, 0.6, 0.4, 0.2, 0.2]),
            ({"type": "linear", "warmup": 1, "total": 5}, [0.5, 1, 0.75, 0.5, 0.25, 0]),
            ({"type": "wsd", "decay": 4}, [1, 1, 1, 0.75, 0.5, 0.25]),
            ({"type": "wsd", "warmup": 1, "total": 5, "decay": 2, "minimum": 0.5}, [0.5, 1, 1, 1, 0.75, 0.5]),
            ({"type": "cosine"}, [0.5 * (1 + math.cos(math.pi * i / 6)) for i in range(6)]),
        )
        for schedule, wanted in table:
            with self.subTest(schedule=schedule):
                self.assert_close(self.train(tape(steps=6, schedule=schedule), [1]).column("lr"), wanted, 1e-12)

    def test_the_schedule_is_as_long_as_the_job(self):
        """Skips come on top of the steps, so that the last applied step is the last of the schedule."""
        for job, rows in (({"steps": 4}, [1]), ({"epochs": 2}, [1, 1])):
            out = self.train(tape(**job, schedule={"type": "linear"}), rows)
            self.assertEqual(out.column("lr"), [1, 0.75, 0.5, 0.25])
        out = self.train(tape(steps=4, compute="bf16", schedule={"type": "linear"}), [1, INF, 1])
        self.assertEqual((out.verdicts(), out.column("lr")), ("ASAASA", [1, 0.75, 0.75, 0.5, 0.25, 0.25]))

    def test_a_group_follows_with_its_own_rate(self):
        """The minimum scales with the group's lr: half of everything."""
        model = {"type": "linear", "inputs": 1, "init": {"values": {"weight": [0], "bias": [0]}}}
        job = toys.job_of(
            model,
            steps=3,
            lr=0.2,
            optimizer_={"groups": [{"match": "bias", "lr": 0.1}]},
            schedule={"type": "linear", "total": 2, "minimum": 0.1},
        )
        w = b = 0.0
        for lr in (0.2, 0.15, 0.1):
            error = w + b - 1
            w, b = w - lr * error, b - lr / 2 * error
        out = self.train(job, [(1, 1, 1)])
        self.assert_near([out.tensors["weight"].item(), out.tensors["bias"].item()], [w, b])


if __name__ == "__main__":
    harness.main()
