"""Jobs small enough to work out by hand, what they leave behind, and plain numpy for what is too long for a hand.

TAPE    gradients from a file: a row (weight v, g0, g1, …) has the loss v·g·w and so the gradient g, whatever w is
LIN1    ŷ = w·x, loss ½(ŷ−y)²: at w = 0 the gradient is −x·y
BIAS2   two classes with nothing but a bias (0, ln 3): the losses are ln 4 for class 0 and ln 4/3 for class 1, and ∂/∂b₀ is −¾, +¼
ZERO-LM gpt whose head is zero: every token's loss is ln V
"""

import copy
import json
import math
import os
import struct

import numpy

import harness

TYPES = {"F64": numpy.float64, "F32": numpy.float32}
LN3 = math.log(3)


def read_safetensors(path):
    """{name: array}; every byte behind the header belongs to exactly one tensor."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    assert length % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert entry["data_offsets"][0] == end, f"{name} leaves a gap"
        end = entry["data_offsets"][1]
        values = numpy.frombuffer(data[entry["data_offsets"][0] : end], TYPES[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    assert end == len(data)
    return tensors


class Outcome:
    """What a job left."""

    def __init__(self, done, directory):
        self.status, self.err, self.lines = done.status, done.err, done.own_lines()
        records = harness.read_log(directory)
        self.header = next((record for record in records if record["type"] == "header"), None)
        self.steps, self.events, self.evaluations, self.ends = (
            [record for record in records if record["type"] == kind] for kind in ("step", "event", "eval", "end")
        )
        with open(os.path.join(directory, "log.jsonl")) as file:
            self.log_text = file.read()
        with open(os.path.join(directory, "result.json")) as file:
            self.result = json.load(file)
        model = os.path.join(directory, "final", "model.safetensors")
        self.tensors = read_safetensors(model) if os.path.exists(model) else None

    @property
    def weight(self):
        return self.tensors["weight"].ravel()

    def column(self, key):
        return [step[key] for step in self.steps]

    def verdicts(self):
        return "".join(
            {"apply": "A", "skip": "S", "empty": "E", "fail": "F"}[verdict] for verdict in self.column("verdict")
        )

    def without_seconds(self):
        """The log as it is in every run of the same job."""
        records = [json.loads(line) for line in self.log_text.splitlines()]
        for record in records:
            record.pop("seconds", None)
        return [json.dumps(record) for record in records]


class Training(harness.Scenario):
    """Tests that train small jobs and read what comes out."""

    def setUp(self):
        super().setUp()
        self.environment["OMPI_MCA_odls_base_sigkill_timeout"] = "0"  # a failed job's mpirun need not wait for anybody
        self.count = 0

    def train(self, job, data, ranks=1, expect=0, arguments=()):
        """data: rows of a csv, or the bytes of a token file. One rank does without mpirun."""
        self.count += 1
        job = copy.deepcopy(job)
        self.write("data", data if isinstance(data, bytes) else csv_text(job, data))
        job["data"].setdefault("train", "data")
        output = f"run{self.count}"
        done = self.run_job(job, ranks=0 if ranks == 1 else ranks, output=output, arguments=arguments, limit=60 * harness.PATIENCE)
        self.assertEqual(done.status, expect, done.err)
        return Outcome(done, os.path.join(self.directory, output))

    def assert_near(self, found, wanted, tolerance=1e-6):
        numpy.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance, equal_nan=False)

    def assert_close(self, found, wanted, ratio=1e-6):
        numpy.testing.assert_allclose(found, wanted, rtol=ratio, atol=0, equal_nan=False)


def job_of(
    model, *, steps=None, epochs=None, batch=1, micro=1, lr=1, optimizer="sgd", compute="fp32", scale=None, **sections
):
    """A job in few words. Keyword sections replace or complete whole sections: batch_=, optimizer_=, schedule=…"""
    job = {
        "job": {"name": "toy", **({"steps": steps} if steps else {"epochs": epochs or 1})},
        "model": model,
        "data": {"format": "csv", "order": "sequential"},
        "batch": {"global": batch, "micro": micro},
        "precision": {"compute": compute},
        "optimizer": {"type": optimizer, "lr": lr},
    }
    if scale is not None:
        job["precision"]["loss_scale"] = {"initial": scale} if isinstance(scale, (int, float)) else scale
    for name, keys in sections.items():
        section = job.setdefault(name.rstrip("_"), {})
        section.update(keys)
    return job


def tape(start=(0,), **keys):
    """start: the weights before the first step, as many as the rows have gradients."""
    return job_of({"type": "tape", "size": len(start), "init": {"values": {"weight": list(start)}}}, **keys)


def lin1(start=0, **keys):
    model = {"type": "linear", "inputs": 1, "bias": False, "init": {"values": {"weight": [start]}}}
    return job_of(model, **keys)


def bias2(**keys):
    values = {"layers.0.weight": [0, 0], "layers.0.bias": [0, LN3]}
    model = {"type": "mlp", "inputs": 1, "hidden": [], "outputs": 2, "loss": "cross_entropy", "init": {"values": values}}
    return job_of(model, **keys)


def gpt(vocab=65, context=8, width=8, layers=1, heads=2, model_=None, **keys):
    model = {
        "type": "gpt",
        "layers": layers,
        "heads": heads,
        "width": width,
        "context": context,
        "vocab": vocab,
        **(model_ or {}),
    }
    job = job_of(model, **keys)
    job["data"].update(format="bytes")
    return job


def zero_lm(vocab=65, width=8, **keys):
    """The head alone gets a gradient: everything before it multiplies by zero."""
    values = {"lm_head.weight": [0] * (vocab * width)}
    return gpt(vocab, width=width, model_={"tie": False, "init": {"values": values}}, **keys)


def tokens(count, vocab=65, seed=1):
    return bytes(numpy.random.default_rng(seed).integers(0, vocab, count, dtype=numpy.uint8))


def csv_text(job, rows):
    """Rows as (weight, column, …); a bare number is one column of weight 1."""
    model = job["model"]
    if model["type"] == "tape":
        columns = [f"g{i}" for i in range(model["size"])]
    else:
        outputs = 1 if model["type"] == "linear" or model.get("loss") == "cross_entropy" else model["outputs"]
        inputs = model["inputs"] if "inputs" in model else math.prod(model["image"])
        columns = [f"x{i}" for i in range(inputs)] + [f"y{i}" for i in range(outputs)]
    lines = [",".join(["weight", *columns])]
    for row in rows:
        row = (1, row) if isinstance(row, (int, float)) else row
        assert len(row) == 1 + len(columns)
        lines.append(",".join(repr(value) for value in row))
    return "\n".join(lines) + "\n"


def cut(rows, batch, micro):
    """Global batches of one epoch, each a list of micro-batches."""
    batches = [rows[i : i + batch] for i in range(0, len(rows), batch)]
    return [[one[i : i + micro] for i in range(0, len(one), micro)] for one in batches]


def average(micro_batches, weighting="token"):
    """The gradient (and, with w for g, the loss) of one global batch of tape, by definition; None: it is empty."""
    sums = [
        (sum(row[0] for row in part), sum(row[0] * numpy.array(row[1:], float) for row in part if row[0]))
        for part in micro_batches
    ]
    sums = [(weight, total) for weight, total in sums if weight]
    if not sums:
        return None
    if weighting == "microbatch":
        return sum(total / weight for weight, total in sums) / len(sums)
    total = sum(total for _, total in sums)
    return total / sum(weight for weight, _ in sums) if weighting == "token" else total
