"""Norms between layers (H1, H2): BatchNorm over micro-batches, over ranks, over the whole window, or by its running statistics,
against a few lines of numpy; what moves the running ones, and what does not; GroupNorm, which no split changes."""
import json
import os

import numpy

import harness
import toys

INPUTS, HIDDEN, CLASSES, EPS = 3, (6, 4), 3, 1e-5
RNG = numpy.random.default_rng(7)
# Sorted by class, as data often is: micro-batches have other means than the whole.
ROWS = [(1, *(RNG.normal(size=INPUTS) + 2 * (i % 20 // 7)).tolist(), i % 20 // 7) for i in range(60)]
MASKED = [(0 if i % 11 == 3 else 1 + i % 2, *row[1:]) for i, row in enumerate(ROWS)]


def start():
    rng = numpy.random.default_rng(3)
    values, last = {}, INPUTS
    for i, width in enumerate((*HIDDEN, CLASSES)):
        values[f"layers.{i}.weight"] = rng.normal(size=(width, last)) / 2
        values[f"layers.{i}.bias"] = rng.normal(size=width) / 2
        if i < len(HIDDEN):
            values[f"norms.{i}.weight"] = 1 + rng.normal(size=width) / 4
            values[f"norms.{i}.bias"] = rng.normal(size=width) / 4
        last = width
    return values


def mlp(norm="batch", model=None, **keys):
    values = {name: value.ravel().tolist() for name, value in start().items()}
    spec = {"type": "mlp", "inputs": INPUTS, "hidden": list(HIDDEN), "outputs": CLASSES, "norm": norm, "activation": "tanh",
            "loss": "cross_entropy", "init": {"values": values}, **(model or {})}
    return toys.job_of(spec, **{"batch": 20, "micro": 4, "steps": 3, "lr": 0.5, **keys})


class Network:
    """The same in numpy, fp64: forward and backward of one set of rows, whose statistics are the rows' own or given."""

    def __init__(self):
        self.values = start()
        self.running = {f"norms.{i}.running_{name}": numpy.full(width, float(name == "var"))
                        for i, width in enumerate(HIDDEN) for name in ("mean", "var")}

    def set(self, rows, total, running=False):
        """Gradients of Σ w·ℓ / total, and what enters each norm."""
        rows = [row for row in rows if row[0]]
        weight = numpy.array([row[0] for row in rows])[:, None] / total
        h = numpy.array([row[1:-1] for row in rows])
        saved, entered, gradient = [], [], {}
        for i in range(len(HIDDEN)):
            x = h @ self.values[f"layers.{i}.weight"].T + self.values[f"layers.{i}.bias"]
            mean, var = x.mean(0), x.var(0)
            if running:
                mean, var = self.running[f"norms.{i}.running_mean"], self.running[f"norms.{i}.running_var"]
            rstd = 1 / numpy.sqrt(var + EPS)
            n = (x - mean) * rstd
            a = numpy.tanh(n * self.values[f"norms.{i}.weight"] + self.values[f"norms.{i}.bias"])
            saved.append((h, n, rstd, a))
            entered.append(x)
            h = a
        last = len(HIDDEN)
        z = h @ self.values[f"layers.{last}.weight"].T + self.values[f"layers.{last}.bias"]
        p = numpy.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        d = (p - numpy.eye(CLASSES)[[row[-1] for row in rows]]) * weight
        gradient[f"layers.{last}.weight"], gradient[f"layers.{last}.bias"] = d.T @ h, d.sum(0)
        d = d @ self.values[f"layers.{last}.weight"]
        for i in reversed(range(last)):
            h, n, rstd, a = saved[i]
            d = d * (1 - a * a)
            gradient[f"norms.{i}.weight"], gradient[f"norms.{i}.bias"] = (d * n).sum(0), d.sum(0)
            d = d * self.values[f"norms.{i}.weight"] * rstd
            if not running:
                d = d - d.mean(0) - n * (d * n).mean(0)
            gradient[f"layers.{i}.weight"], gradient[f"layers.{i}.bias"] = d.T @ h, d.sum(0)
            d = d @ self.values[f"layers.{i}.weight"]
        return gradient, entered

    def step(self, sets, lr=0.5, momentum=0.1, running=False):
        total = sum(row[0] for rows in sets for row in rows)
        done = [self.set(rows, total, running) for rows in sets]
        for name in self.values:
            self.values[name] = self.values[name] - lr * sum(gradient[name] for gradient, _ in done)
        for i in range(len(HIDDEN) if not running else 0):
            x = numpy.concatenate([entered[i] for _, entered in done])
            for name, new in (("mean", x.mean(0)), ("var", x.var(0, ddof=1))):
                key = f"norms.{i}.running_{name}"
                self.running[key] = (1 - momentum) * self.running[key] + momentum * new


def train(rows, sets_of, steps=3, batch=20, **keys):
    network = Network()
    for i in range(steps):
        network.step(sets_of(rows[i * batch : (i + 1) * batch]), **keys)
    return {**network.values, **network.running}


def micro_batches(rows, micro=4):
    return [rows[i : i + micro] for i in range(0, len(rows), micro)]


def whole(rows):
    return [rows]


class Norms(toys.Training):
    def check(self, out, wanted, tolerance=2e-6):
        self.assertEqual(set(out.tensors), set(wanted))
        for name, values in wanted.items():
            numpy.testing.assert_allclose(out.tensors[name], values, rtol=tolerance, atol=tolerance, err_msg=name)

    def furthest(self, out, wanted):
        return max(abs(out.tensors[name] - values).max() for name, values in wanted.items())

    def test_a_window_is_one_big_batch_however_it_is_split(self):
        wanted = train(MASKED, whole)
        for ranks, micro in ((1, 20), (2, 7), (4, 1), (4, 4)):
            with self.subTest(ranks=ranks, micro=micro):
                self.check(self.train(mlp(model={"norm_stats": "window"}, micro=micro), MASKED, ranks), wanted)
        out = self.train(mlp(model={"norm_stats": "window"}, compute="fp64"), MASKED, 2)
        self.check(out, wanted, 1e-13)

    def test_a_micro_batch_is_a_set_of_its_own_whoever_has_it(self):
        wanted = train(MASKED, micro_batches)
        for ranks in (1, 4):
            self.check(self.train(mlp(), MASKED, ranks), wanted)
        out = self.train(mlp(), ROWS)
        self.check(out, train(ROWS, micro_batches))
        self.assertGreater(self.furthest(out, train(ROWS, whole)), 0.1)  # which a window of the same micro-batches is

    def test_sync_takes_the_micro_batches_that_the_ranks_are_at(self):
        """Five micro-batches on two ranks: 0 and 3, 1 and 4, and 2 alone."""
        def sets(rows):
            parts = micro_batches(rows)
            return [parts[0] + parts[3], parts[1] + parts[4], parts[2]]

        out = self.train(mlp(model={"norm_stats": "sync"}), MASKED, 2)
        self.check(out, train(MASKED, sets))
        # two norms, forward and back, three times
        self.assertEqual([step["collectives"]["statistics"] for step in out.steps], 3 * [2 * 2 * 3])
        self.assertIn("windows communicate", out.err)

    def test_a_masked_micro_batch_keeps_nobody_waiting(self):
        rows = [(0 if 4 <= i % 20 < 8 else row[0], *row[1:]) for i, row in enumerate(ROWS)]
        for stats, sets in (("sync", lambda parts: [parts[0] + parts[3], parts[4], parts[2]]),
                            ("micro", lambda parts: [parts[0], *parts[2:]]), ("window", lambda parts: [sum(parts, [])])):
            with self.subTest(stats=stats):
                wanted = train(rows, lambda part, sets=sets: sets(micro_batches(part)))
                self.check(self.train(mlp(model={"norm_stats": stats}), rows, 2), wanted)

    def test_a_set_that_masks_leave_one_row_is_told_once(self):
        rows = [(0 if 5 <= i % 20 < 8 or i < 20 and not i % 4 else 1, *row[1:]) for i, row in enumerate(ROWS)]  # row 4 from step 2 on
        for stats, ranks, at in (("micro", 1, [2]), ("micro", 2, [2]), ("window", 2, [])):
            with self.subTest(stats=stats, ranks=ranks):
                out = self.train(mlp(model={"norm_stats": stats}), rows, ranks)
                self.assertEqual([event["step"] for event in out.events if event["event"] == "single_row"], at)

    def test_frozen_statistics_do_not_move(self):
        out = self.train(mlp(model={"norm_stats": "frozen"}), MASKED, 2)
        self.check(out, train(MASKED, whole, running=True))
        self.assertEqual([step["collectives"]["statistics"] for step in out.steps], [0, 0, 0])

    def test_half_precision_windows_follow_fp32(self):
        wanted = train(ROWS, whole)
        for compute, scale, ranks in (("bf16", None, 4), ("fp16", 1024, 2)):
            with self.subTest(compute=compute):
                job = mlp(model={"norm_stats": "window"}, compute=compute, scale=scale)
                self.check(self.train(job, ROWS, ranks), wanted, 0.05)

    def test_groupnorm_gives_the_equivalence_back(self):
        one = self.train(mlp("group", {"norm_groups": 2}, micro=20, compute="fp64"), ROWS)
        other = self.train(mlp("group", {"norm_groups": 2}, micro=3, compute="fp64"), ROWS, 4)
        for name, values in one.tensors.items():
            self.assert_near(other.tensors[name], values, 1e-12)

    def test_the_log_says_what_moves_and_what_it_costs(self):
        plain = self.train(mlp("layer"), ROWS, 2).steps[0]["collectives"]
        self.assertNotIn("statistics", plain)
        for stats, calls in (("micro", 2), ("window", 4)):  # two norms: once behind the window; forward and back in it
            out = self.train(mlp(model={"norm_stats": stats, "norm_momentum": 0.25}), ROWS, 2)
            self.assertEqual(out.header["batch_norm"], {"stats": stats, "momentum": 0.25})
            for step in out.steps:
                self.assertEqual(step["collectives"], {**plain, "statistics": calls})
            self.check(out, train(ROWS, whole if stats == "window" else micro_batches, momentum=0.25))
        self.assertGreater(out.header["memory"]["window"], 3 * 4 * sum(HIDDEN) * 4)  # K of b rows that enter norms

    def test_a_skip_leaves_them_and_so_does_an_evaluation(self):
        """11-4: what overflowed is nowhere in them."""
        for stats, ranks in (("micro", 1), ("window", 2), ("sync", 1)):
            with self.subTest(stats=stats, ranks=ranks):
                job = mlp(model={"norm_stats": stats}, compute="fp16", scale=2.0**20, steps=1, evaluation={"every": 1},
                          data_={"validation": 1 / 3})
                out = self.train(job, ROWS, ranks)
                self.assertRegex(out.verdicts(), "^S+A$")
                skipped = 20 * (len(out.steps) - 1) % 40
                wanted = train(ROWS[skipped : skipped + 20], whole if stats == "window" else micro_batches, steps=1)
                self.check(out, wanted, 0.02)
                self.assertTrue(numpy.isfinite(out.evaluations[0]["loss"]))

    def test_a_poisoned_batch_leaves_no_trace(self):
        """11-4: activations of the second batch overflow, the others' do not."""
        rows = [(row[0], *(1e30 * x for x in row[1:-1]), row[-1]) if 20 <= i < 40 else row for i, row in enumerate(ROWS)]
        for stats in ("micro", "window"):
            out = self.train(mlp(model={"norm_stats": stats}, compute="fp16", scale=64, steps=2), rows, 2)
            self.assertEqual(out.verdicts(), "ASA")
            network = Network()
            for part in (rows[:20], rows[40:]):
                network.step([part] if stats == "window" else micro_batches(part))
            self.check(out, {**network.values, **network.running}, 0.02)

    def test_a_resumed_job_has_the_same_bits(self):
        job = mlp(steps=3, checkpoint={"every": 2}, optimizer="adamw", lr=1e-2)
        unbroken = self.train(job, MASKED, 2)
        self.train(job, MASKED, 2, arguments=("--set", "job.steps=2"))
        job["data"]["train"] = "data"
        done = self.run_job(job, ranks=2, output=f"run{self.count}")
        self.assertEqual(done.status, 0, done.err)
        again = toys.Outcome(done, os.path.join(self.directory, f"run{self.count}"))
        for name, values in unbroken.tensors.items():
            self.assertEqual(again.tensors[name].tobytes(), values.tobytes(), name)

    def test_an_evaluation_goes_by_the_running_ones(self):
        """Validation loss by hand; and whether there is one changes no bit."""
        job = mlp(steps=2, data_={"validation": 1 / 3})
        plain = self.train(job, ROWS)
        job["evaluation"] = {"every": 1}
        out = self.train(job, ROWS)
        for name, values in plain.tensors.items():
            self.assertEqual(out.tensors[name].tobytes(), values.tobytes(), name)
        network = Network()
        network.values = {name: out.tensors[name].astype(float) for name in network.values}
        network.running = {name: out.tensors[name].astype(float) for name in network.running}
        h = numpy.array([row[1:-1] for row in ROWS[40:]])
        for i in range(len(HIDDEN)):
            x = h @ network.values[f"layers.{i}.weight"].T + network.values[f"layers.{i}.bias"]
            n = (x - network.running[f"norms.{i}.running_mean"]) / numpy.sqrt(network.running[f"norms.{i}.running_var"] + EPS)
            h = numpy.tanh(n * network.values[f"norms.{i}.weight"] + network.values[f"norms.{i}.bias"])
        z = h @ network.values["layers.2.weight"].T + network.values["layers.2.bias"]
        p = numpy.exp(z) / numpy.exp(z).sum(1, keepdims=True)
        loss = -numpy.log(p[range(20), [row[-1] for row in ROWS[40:]]]).mean()
        self.assert_near(out.evaluations[-1]["loss"], loss, 1e-5)

    def test_small_sets_are_doubted_and_senseless_ones_refused(self):
        out = self.train(mlp(), ROWS)
        self.assertRegex(out.err, "batch.micro 4 rows each.*model.norm group")
        self.assertEqual("", self.train(mlp(model={"norm_stats": "window"}), ROWS).err)
        self.train(mlp(model={"norm_stats": "sync"}, micro=1), ROWS, 2)  # two rows to a set
        window, sync, ramp = {"norm_stats": "window"}, {"norm_stats": "sync"}, {"batch_": {"ramp": {"from": 1, "steps": 2}}}
        for model, norm, keys, said in (({}, "batch", {"micro": 1}, "batch.micro: 1 row has no variance: model.norm_stats: micro wants more, window does"),
                                        (sync, "batch", {"micro": 1}, "batch.micro: 1 row has no variance: model.norm_stats: sync wants more, window does"),
                                        (window, "batch", {"batch": 1, "micro": 1}, "batch.global: 1 row has no variance"),
                                        (sync, "batch", {"batch": 1, "micro": 1}, "batch.global: 1 row has no variance"),
                                        (window, "batch", ramp, "batch.ramp.from: 1 row has no variance"),
                                        ({"norm_groups": 4}, "group", {}, "4 does not divide the 6 of model.hidden"),
                                        ({}, "group", {}, "model.norm_groups")):
            job = mlp(norm, model, **keys)
            job["data"]["train"] = "data"
            done = self.run_job(job, ranks=0, output="refused")
            self.assertEqual(done.status, 78)
            self.assertIn(said, done.err)

    def test_rows_that_follow_each_other_by_class_are_doubted_as_they_lie(self):
        """Sorted, or each file sorted for itself; not by a job alone, nor where the order or the statistics help."""
        by_class = sorted(ROWS, key=lambda row: row[-1])
        told = "rows of a class follow each other"
        for rows in (by_class, by_class[::2] + by_class[1::2]):
            for stats in ("micro", "sync"):
                self.assertRegex(self.train(mlp(model={"norm_stats": stats}), rows, 2).err, f"rank 0: model.norm batch: .*{told}.*model.norm group")
        mixed = [ROWS[i * 7 % 60] for i in range(60)]
        for rows, changes in ((mixed, {}), (by_class, {"data_": {"order": "shuffled"}}), (by_class, {"model": {"norm_stats": "window"}})):
            self.assertNotIn(told, self.train(mlp(**changes), rows).err)

    def test_doubts_about_a_job_stand_in_its_log_as_on_stderr(self):
        """Of the command line, of the job and of its data; at every start, behind its header and with the attempt that it goes on from."""
        job = mlp(checkpoint={"every": 1})
        job["data"]["train"] = "data"
        self.write("data", toys.csv_text(job, sorted(ROWS, key=lambda row: row[-1])))
        for epochs in (1, 2):
            done = self.run_job(job, arguments=["--set", f"job.epochs={epochs}"])
            self.assertEqual(done.status, 0, done.err)
            said = [line.removeprefix("gaccd: ").removeprefix("rank 0: ") for line in done.own_lines()]
            self.assertEqual([text.split()[0] for text in said], ["--set", "model.norm", "model.norm"])
            log = self.log()
            begin = max(i for i, record in enumerate(log) if record["type"] == "header")
            behind = log[begin - 1]["step"] if begin else 0
            self.assertEqual([(record["type"], record.get("event"), record["step"], record.get("text")) for record in log[begin + 1 : begin + 5]],
                             [("event", "notice", behind, text) for text in said] + [("step", None, behind + 1, None)])

    def test_verify_says_which_of_them_depend_on_the_split(self):
        said = {}
        for norm, model in (("batch", {}), ("batch", {"norm_stats": "window"}), ("group", {"norm_groups": 1})):
            job = mlp(norm, model)
            job["data"]["train"] = "data"
            self.write("data", toys.csv_text(job, MASKED))
            self.write("job.yaml", json.dumps(job))
            done = self.call(harness.GACCD, "verify", "job.yaml", "--output", "verified", limit=120)
            self.assertEqual(done.status, 0, done.out)
            said[model.get("norm_stats", norm)] = {line[:40].strip(): line[40:] for line in done.out.splitlines()}
        self.assertIn("model.norm group or layer, or model.norm_stats window", said["batch"]["fp32: accumulated = whole"])
        for stats in ("window", "group"):
            self.assertIn("pass", said[stats]["fp32: accumulated = whole"])
        self.assertIn("pass", said["window"]["norm: running statistics move once"])

    def test_running_statistics_belong_to_no_optimizer(self):
        job = mlp(optimizer="adamw", optimizer_={"weight_decay": 0.1, "groups": [{"match": "norms.*", "lr": 0.1}]})
        out = self.train(job, ROWS)
        self.assertEqual(out.header["parameters"] - out.header["trained"], 2 * sum(HIDDEN))
        job["optimizer"]["groups"][0]["match"] = "*.running_mean"
        job["data"]["train"] = "data"
        self.assertEqual(self.run_job(job, ranks=0, output="refused").status, 78)


if __name__ == "__main__":
    harness.main()
