"""Random jobs on tape against a trainer of a hundred lines: every number of every step, whatever is combined with what."""

import math
import random

import numpy

import harness
import toys
from test_optimizer import Adamw, Sgd

INF, NAN = float("inf"), float("nan")
COUNTS = ("step", "optimizer_steps", "skipped_steps", "empty_steps", "scheduler_steps", "tokens_seen", "micro_batches")


class Scale:
    """The profiles' rules as deploy/docs/job-file.md and their programs have them; None where there is no scale."""

    def __init__(self, keys):
        self.keys, self.profile = keys, keys["profile"]
        self.s, self.since, self.hysteresis, self.at_minimum = keys["initial"], 0, keys.get("hysteresis", 1), 0

    def overflowed(self):
        """Whether the job is to end."""
        minimum = self.keys["minimum"]
        self.at_minimum = self.at_minimum + 1 if self.s == minimum else 0
        ends = self.at_minimum >= self.keys["stop_after"]
        falls = True
        if self.profile == "deepspeed":
            falls = self.hysteresis == 1
            self.hysteresis = max(self.hysteresis - 1, 1)
            ends = ends or falls and self.s == minimum
        elif self.profile == "megatron":
            self.hysteresis -= 1
            falls = self.hysteresis <= 0
        if falls:
            self.s = max(self.s / 2, minimum)
        self.since = 0
        return ends

    def was_finite(self):
        self.at_minimum = 0
        self.since += 1
        counted = self.since - self.profile.startswith("deepspeed")  # that program does not count the step itself
        if counted > 0 and counted % self.keys["interval"] == 0:
            self.s *= 2
            self.hysteresis = self.keys.get("hysteresis", 1)


def rate(keys, lr, i):
    warmup, total, minimum = keys["warmup"], keys["total"], keys["minimum"]
    if i < warmup:
        return lr * (i + 1) / (warmup + 1)
    p = min((i - warmup) / (total - warmup), 1)
    return minimum + (lr - minimum) * {"linear": 1 - p, "cosine": (1 + math.cos(math.pi * p)) / 2}[keys["type"]]


def gradient_of(micro_batches, weighting, s, half):
    """The sum of the micro-batches' gradients, each rounded to the compute type while it is scaled."""
    weight = sum(row[0] for part in micro_batches for row in part)
    full = sum(any(row[0] for row in part) for part in micro_batches)
    total = 0
    for part in micro_batches:
        n = sum(row[0] for row in part)
        divisor = {"token": weight, "microbatch": n * full, "sum": 1}[weighting]
        if n:
            one = sum(s / divisor * row[0] * numpy.array(row[1:], float) for row in part if row[0])
            total = total + (one.astype(numpy.float16).astype(float) if half else one)
    return weight, full, total


def train(job, rows):
    """What the job's records and its final weights should be, and whether it ends by its numerics."""
    half = job["precision"]["compute"] == "fp16"
    scale = Scale(job["precision"]["loss_scale"]) if half else None
    batch, spec, in_a_row = job["batch"], job["optimizer"], 0
    w = numpy.array(job["model"]["init"]["values"]["weight"], float)
    counts = dict.fromkeys(COUNTS, 0)
    optimizer = (
        Adamw(0, spec["weight_decay"], eps=spec["eps"])
        if spec["type"] == "adamw"
        else Sgd(0, spec["weight_decay"], spec["momentum"])
    )
    records = []
    for micro_batches in job["job"]["epochs"] * toys.cut(rows, batch["global"], batch["micro"]):
        count = sum(map(len, micro_batches))
        if batch["tail"] == "drop" and count < batch["global"]:
            continue
        s = scale.s if half else 1
        with numpy.errstate(over="ignore", invalid="ignore"):
            weight, full, total = gradient_of(micro_batches, batch["weighting"], s, half)
        counts["step"] += 1
        counts["tokens_seen"] += count
        counts["micro_batches"] = full
        optimizer.lr = rate(job["schedule"], spec["lr"], counts["optimizer_steps"])
        record = {"lr": optimizer.lr, "weight": weight, "grad_norm": None, "loss_scale": s if half else None}
        record["ends"] = False
        if not full:
            record["verdict"] = "empty"
            counts["empty_steps"] += 1
        elif not numpy.isfinite(total).all():
            record["verdict"] = "skip"
            counts["skipped_steps"] += 1
            in_a_row += 1
            record["ends"] = scale.overflowed() if half else in_a_row == job["precision"]["nonfinite_stop_after"]
        else:
            record["verdict"], in_a_row = "apply", 0
            counts["optimizer_steps"] += 1
            counts["scheduler_steps"] += 1
            g = total / s
            record["grad_norm"] = numpy.linalg.norm(g)
            w = optimizer.step(w, g * min(1, spec["clip_norm"] / (record["grad_norm"] + 1e-6)))
            if half:
                scale.was_finite()
        record["loss_scale_next"] = scale.s if half else None
        records.append({**record, **counts})
        if record["ends"]:
            break
    return records, w


def random_job(chance):
    """(job, rows, ranks)"""
    size, count, batch = chance.choice((1, 2, 5)), chance.randint(3, 24), chance.randint(1, 9)
    micro, half = chance.randint(1, batch), chance.random() < 0.5
    bad = chance.choice((0, 0.04, 0.3))

    def element():
        return chance.choice((INF, -INF, NAN)) if chance.random() < bad / size else round(chance.gauss(0, 1), 3)

    weights = chance.choice(((1,), (0, 1), (0, 0.25, 1, 3)))
    rows = [(chance.choice(weights), *(element() for _ in range(size))) for _ in range(count)]
    rows[0] = (1, *rows[0][1:])  # no epoch is empty
    scale = {
        "profile": chance.choice(("torch", "megatron", "deepspeed", "deepspeed-fused")),
        "initial": 2.0 ** chance.randint(0, 14),
        "interval": chance.randint(1, 3),
        "stop_after": chance.randint(1, 4),
    }
    scale["minimum"] = scale["initial"] / chance.choice((1, 4))
    if scale["profile"] in ("megatron", "deepspeed"):
        scale["hysteresis"] = chance.randint(1, 3)
    warmup = chance.randint(0, 2)
    adamw = chance.random() < 0.5
    job = toys.tape(
        [round(chance.gauss(0, 1), 2) for _ in range(size)],
        epochs=chance.randint(1, 3),
        batch=batch,
        micro=micro,
        lr=chance.choice((0.1, 0.01)),
        optimizer="adamw" if adamw else "sgd",
        compute="fp16" if half else "fp64",
        scale=scale if half else None,
        batch_={"weighting": chance.choice(("token", "microbatch", "sum")), "tail": chance.choice(("flush", "drop"))},
        optimizer_={"clip_norm": chance.choice((0.1, 1, 1e9)), "weight_decay": chance.choice((0, 0.1))},
        schedule={
            "type": chance.choice(("linear", "cosine")),
            "warmup": warmup,
            "total": warmup + chance.randint(1, 8),
            "minimum": chance.choice((0, 0.001)),
        },
        precision_={} if half else {"nonfinite_stop_after": chance.randint(1, 4)},
    )
    job["optimizer"].update({"eps": 1e-2} if adamw else {"momentum": chance.choice((0, 0.9))})
    return job, rows, chance.choice([n for n in (1, 2, 3) if n <= -(-batch // micro)])


class RandomJobs(toys.Training):
    def check(self, seed, ranks=None):
        job, rows, most = random_job(random.Random(seed))
        wanted, w = train(job, rows)
        if not wanted:  # tail: drop left nothing
            self.train(job, rows, ranks or most, expect=65)
            return
        ends = wanted[-1]["ends"]
        out = self.train(job, rows, ranks or most, expect=76 if ends else 0)
        tolerance = 5e-3 if job["precision"]["compute"] == "fp16" else 1e-11
        self.assertEqual(len(out.steps), len(wanted))
        for step, record in zip(out.steps, wanted):
            verdict = "fail" if record["ends"] else record["verdict"]
            self.assertEqual((step["verdict"], {key: step[key] for key in COUNTS}), (verdict, {k: record[k] for k in COUNTS}))
            self.assertEqual((step["loss_scale"], step["loss_scale_next"]), (record["loss_scale"], record["loss_scale_next"]))
            self.assert_near([step["lr"], step["weight"]], [record["lr"], record["weight"]], 1e-13)
            self.assertEqual(step["grad_norm"] is None, record["grad_norm"] is None)
            if record["grad_norm"] is not None:
                self.assert_near(step["grad_norm"], record["grad_norm"], tolerance * (1 + record["grad_norm"]))
        if not ends:
            self.assert_near(out.weight, w, 4 * tolerance)

    def test_on_one_rank(self):
        for seed in range(80):
            with self.subTest(seed=seed):
                self.check(seed, 1)

    def test_on_several_ranks(self):
        for seed in range(1000, 1016):
            with self.subTest(seed=seed):
                self.check(seed)


if __name__ == "__main__":
    harness.main()
