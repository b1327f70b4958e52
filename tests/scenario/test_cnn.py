"""cnn against a few lines of numpy: convolutions, norms, pooling and linear layers, however the global batch is split."""
import json

import numpy

import harness
import toys

SIZE, CHANNELS, HIDDEN, CLASSES, EPS = (2, 6, 8), (4, 2), 5, 3, 1e-5
RNG = numpy.random.default_rng(5)
ROWS = [(0 if i % 9 == 4 else 1, *RNG.normal(size=SIZE).ravel().tolist(), int(RNG.integers(CLASSES))) for i in range(42)]


def start():
    rng = numpy.random.default_rng(2)
    shapes = {"layers.0.weight": (4, 2, 3, 3), "layers.1.weight": (2, 4, 3, 3), "layers.2.weight": (HIDDEN, 2 * 1 * 2),
              "layers.3.weight": (CLASSES, HIDDEN)}
    values = {name: rng.normal(size=shape) / 2 for name, shape in shapes.items()}
    values.update({f"layers.{i}.bias": rng.normal(size=n) / 2 for i, n in enumerate((*CHANNELS, HIDDEN, CLASSES))})
    for i, n in enumerate((*CHANNELS, HIDDEN)):
        values.update({f"norms.{i}.weight": 1 + rng.normal(size=n) / 4, f"norms.{i}.bias": rng.normal(size=n) / 4})
    return values


def cnn(norm="batch", model=None, **keys):
    values = {name: value.ravel().tolist() for name, value in start().items() if norm != "none" or "norms" not in name}
    spec = {"type": "cnn", "image": list(SIZE), "channels": list(CHANNELS), "hidden": [HIDDEN], "outputs": CLASSES, "norm": norm,
            "activation": "tanh", "loss": "cross_entropy", "init": {"values": values}, **(model or {})}
    if spec["init"] is None:
        del spec["init"]
    return toys.job_of(spec, **{"batch": 21, "micro": 4, "steps": 2, "lr": 0.2, **keys})


# ---- layers: each gives its output and what takes the gradient back, adding those of tensors to `into` ----


def convolution(x, values, i, into):
    w, pad = values[f"layers.{i}.weight"], numpy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    height, width = x.shape[2:]
    places = [(a, b, pad[:, :, a : a + height, b : b + width]) for a in range(3) for b in range(3)]
    y = sum(numpy.einsum("oc,nchw->nohw", w[:, :, a, b], part) for a, b, part in places)

    def back(dy):
        dw, dpad = numpy.zeros_like(w), numpy.zeros_like(pad)
        for a, b, part in places:
            dw[:, :, a, b] = numpy.einsum("nohw,nchw->oc", dy, part)
            dpad[:, :, a : a + height, b : b + width] += numpy.einsum("oc,nohw->nchw", w[:, :, a, b], dy)
        into[f"layers.{i}.weight"], into[f"layers.{i}.bias"] = dw, dy.sum((0, 2, 3))
        return dpad[:, :, 1:-1, 1:-1]

    return y + values[f"layers.{i}.bias"][:, None, None], back


def linear(x, values, i, into):
    def back(dy):
        into[f"layers.{i}.weight"], into[f"layers.{i}.bias"] = dy.T @ x, dy.sum(0)
        return dy @ values[f"layers.{i}.weight"]

    return x @ values[f"layers.{i}.weight"].T + values[f"layers.{i}.bias"], back


def batch_norm(x, values, i, into, entered):
    axes = (0, *range(2, x.ndim))
    shape = (-1, *([1] * (x.ndim - 2)))
    w, b = values[f"norms.{i}.weight"].reshape(shape), values[f"norms.{i}.bias"].reshape(shape)
    rstd = 1 / numpy.sqrt(x.var(axes, keepdims=True) + EPS)
    n = (x - x.mean(axes, keepdims=True)) * rstd
    entered[i] = numpy.moveaxis(x, 1, -1).reshape(-1, x.shape[1])

    def back(dy):
        into[f"norms.{i}.weight"], into[f"norms.{i}.bias"] = (dy * n).sum(axes), dy.sum(axes)
        d = dy * w
        return rstd * (d - d.mean(axes, keepdims=True) - n * (d * n).mean(axes, keepdims=True))

    return n * w + b, back


def tanh(x):
    y = numpy.tanh(x)
    return y, lambda dy: dy * (1 - y * y)


def pool(x, kind):
    height, width = x.shape[2] // 2, x.shape[3] // 2
    cut = x[:, :, : 2 * height, : 2 * width]
    parts = cut.reshape(*x.shape[:2], height, 2, width, 2).transpose(0, 1, 2, 4, 3, 5).reshape(*x.shape[:2], height, width, 4)
    best = parts.argmax(-1)

    def back(dy):
        share = numpy.eye(4)[best] if kind == "max" else numpy.full((*best.shape, 4), 0.25)
        d = (share * dy[..., None]).reshape(*x.shape[:2], height, width, 2, 2).transpose(0, 1, 2, 4, 3, 5)
        whole = numpy.zeros_like(x)
        whole[:, :, : 2 * height, : 2 * width] = d.reshape(cut.shape)
        return whole

    return (parts.max(-1) if kind == "max" else parts.mean(-1)), back


def gradients(values, rows, total, kind, normed):
    """Of Σ w·ℓ / total over one set of rows; what entered each norm."""
    rows = [row for row in rows if row[0]]
    into, entered, backs = {}, {}, []

    def through(result):
        backs.append(result[1])
        return result[0]

    def norm(x, i):
        return through(batch_norm(x, values, i, into, entered)) if normed else x

    x = numpy.array([row[1:-1] for row in rows]).reshape(-1, *SIZE)
    for i in range(2):
        x = through(convolution(x, values, i, into))
        x = norm(x, i)
        x = through(pool(through(tanh(x)), kind))
    shape = x.shape
    backs.append(lambda d: d.reshape(shape))
    x = through(linear(x.reshape(len(rows), -1), values, 2, into))
    x = through(tanh(norm(x, 2)))
    z = through(linear(x, values, 3, into))
    p = numpy.exp(z) / numpy.exp(z).sum(1, keepdims=True)
    d = (p - numpy.eye(CLASSES)[[row[-1] for row in rows]]) * numpy.array([row[0] for row in rows])[:, None] / total
    for back in reversed(backs):
        d = back(d)
    return into, entered


def train(sets_of, kind="max", steps=2, batch=21, lr=0.2, normed=True):
    values, running = {name: value for name, value in start().items() if normed or "norms" not in name}, {}
    for i, n in enumerate((*CHANNELS, HIDDEN) if normed else ()):
        running[f"norms.{i}.running_mean"], running[f"norms.{i}.running_var"] = numpy.zeros(n), numpy.ones(n)
    for step in range(steps):
        rows = ROWS[step * batch : (step + 1) * batch]
        done = [gradients(values, part, sum(row[0] for row in rows), kind, normed) for part in sets_of(rows)]
        values = {name: value - lr * sum(into[name] for into, _ in done) for name, value in values.items()}
        for i in range(3 if normed else 0):
            x = numpy.concatenate([entered[i] for _, entered in done])
            for name, new in (("mean", x.mean(0)), ("var", x.var(0, ddof=1))):
                running[f"norms.{i}.running_{name}"] = 0.9 * running[f"norms.{i}.running_{name}"] + 0.1 * new
    return {**values, **running}


class Cnn(toys.Training):
    def check(self, out, wanted, tolerance=5e-6):
        self.assertEqual(set(out.tensors), set(wanted))
        for name, values in wanted.items():
            numpy.testing.assert_allclose(out.tensors[name], values, rtol=tolerance, atol=tolerance, err_msg=name)

    def test_without_norms_any_split_in_any_type_is_the_big_batch(self):
        for kind in ("max", "average"):
            wanted = train(lambda rows: [rows], kind, normed=False)
            for compute, scale, tolerance in (("fp32", None, 5e-6), ("bf16", None, 0.02), ("fp16", 1024, 0.002)):
                for ranks, micro in ((1, 21), (1, 4), (2, 4), (4, 3)):
                    with self.subTest(kind=kind, compute=compute, ranks=ranks, micro=micro):
                        job = cnn("none", {"pool": kind}, micro=micro, compute=compute, scale=scale)
                        self.check(self.train(job, ROWS, ranks), wanted, tolerance)

    def test_a_window_is_one_big_batch(self):
        wanted = train(lambda rows: [rows])
        for ranks, micro in ((1, 21), (2, 4), (4, 3)):
            with self.subTest(ranks=ranks, micro=micro):
                self.check(self.train(cnn(model={"norm_stats": "window"}, micro=micro), ROWS, ranks), wanted)
        self.check(self.train(cnn(model={"norm_stats": "window"}, compute="fp64"), ROWS, 2), wanted, 1e-12)

    def test_micro_batches_are_sets_of_their_own(self):
        wanted = train(lambda rows: [rows[i : i + 7] for i in range(0, 21, 7)], "average")
        self.check(self.train(cnn(model={"pool": "average"}, micro=7), ROWS, 2), wanted)

    def test_half_precision_follows(self):
        wanted = train(lambda rows: [rows], "average")
        for compute, scale, ranks in (("bf16", None, 2), ("fp16", 1024, 4)):
            with self.subTest(compute=compute):
                model = {"norm_stats": "window", "pool": "average"}
                self.check(self.train(cnn(model=model, compute=compute, scale=scale), ROWS, ranks), wanted, 0.05)

    def test_groupnorm_and_none_do_not_depend_on_the_split(self):
        """28-4"""
        for norm, model in (("group", {"norm_groups": 1}), ("none", {"pool": "none", "kernel": 3})):
            if norm == "none":
                model["init"] = None
            one = self.train(cnn(norm, model, micro=21, compute="fp64"), ROWS)
            other = self.train(cnn(norm, model, micro=2, compute="fp64"), ROWS, 4)
            for name, values in one.tensors.items():
                self.assert_near(other.tensors[name], values, 1e-13)

    def test_biases_before_a_batchnorm_are_no_fault(self):
        """Their gradients are 0 but for rounding, whose sign AdamW follows: verify calls that no difference."""
        rng = numpy.random.default_rng(1)
        rows = [(1, *row, i % 4) for i, row in enumerate(rng.normal(size=(40, 64)).round(3).tolist())]
        images = {"image": [1, 8, 8], "channels": [4, 8], "hidden": [16], "outputs": 4, "activation": "relu", "norm_stats": "window"}
        job = cnn(model={**images, "init": None}, batch=16, micro=2, steps=20, optimizer="adamw", lr=0.01, job_={"seed": 6}, data_={"order": "shuffled"})
        job["data"]["train"] = self.write("rows.csv", toys.csv_text(job, rows))
        self.write("job.yaml", json.dumps(job))
        done = self.call(harness.GACCD, "verify", "job.yaml", "--output", "verified", "--sequences", "9", limit=120)
        self.assertEqual(done.status, 0, done.out)
        self.assertRegex(done.out, r"one AdamW step +0 .*pass")

    def test_what_makes_no_sense_is_refused(self):
        for model, said in (({"image": [2, 6]}, "channels, height and width are wanted"), ({"kernel": 4}, "4 is even"),
                            ({"channels": [4, 2, 2, 2]}, "leaves nothing"), ({"channels": []}, "of 0 convolutions"),
                            ({"norm": "layer"}, "model.norm: layer is for model.type mlp; here it is one of none, group, batch"),
                            ({"norm": "layer", "norm_groups": 2}, "model.norm: layer is for model.type mlp"),
                            ({"norm": "group", "norm_groups": 4}, "model.channels")):
            job = cnn(model={**model, "init": None})
            job["data"]["train"] = "data"
            self.write("data", "x0,y0\n1,0\n")
            done = self.run_job(job, ranks=0, output="refused")
            self.assertEqual(done.status, 78)
            self.assertIn(said, done.err)
        for micro, status, said in ((1, 78, "window does not, nor does model.norm: group\n"), (2, 65, "model.norm group, or model.norm_stats window")):
            job = cnn(micro=micro)
            job["data"]["train"] = "data"
            done = self.run_job(job, ranks=0, output="refused")
            self.assertEqual((done.status, said in done.err), (status, True), done.err)


if __name__ == "__main__":
    harness.main()
