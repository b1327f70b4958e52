"""The usual PyTorch training loop, for the jobs that gaccd runs: modules and optimizers are the framework's own, micro-batches
are accumulated by backward() into .grad, one clip_grad_norm_ and one step() per optimizer step.

It takes gaccd's definitions where no framework has one: the order of the data (order.py) and the names of tensors in files.
"""
import contextlib
import fnmatch
import json
import struct

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import gpt2
from order import global_batches, sequences


NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Mlp(nn.Module):
    """mlp and, with no hidden layer, linear."""

    ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "none": nn.Identity}

    def __init__(self, spec):
        super().__init__()
        widths = [spec["inputs"], *spec.get("hidden", []), spec.get("outputs", 1)]
        self.layers = nn.ModuleList(nn.Linear(*pair, bias=spec.get("bias", True)) for pair in zip(widths, widths[1:]))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths[1:-1] if spec.get("norm") == "layer")
        self.activation = self.ACTIVATIONS[spec.get("activation", "relu")]()
        self.loss = spec.get("loss", "half_mse" if spec["type"] == "linear" else "mse")

    def forward(self, x):
        for i, layer in enumerate(self.layers[:-1]):
            x = layer(x)
            if self.norms:
                x = self.norms[i](x.to(self.norms[i].weight.dtype))  # autocast of this version does not
            x = self.activation(x)
        return self.layers[-1](x)

    def losses(self, x, y):
        """One a row."""
        predicted = self(x)
        if self.loss == "cross_entropy":
            return F.cross_entropy(predicted, y[:, 0], reduction="none")
        squares = F.mse_loss(predicted, y.to(predicted.dtype), reduction="none")
        return squares.mean(dim=1) if self.loss == "mse" else squares.sum(dim=1) / 2

    def named_as_stored(self):
        for name, parameter in self.named_parameters():
            yield name if len(self.layers) > 1 else name.replace("layers.0.", ""), parameter, False

    load = gpt2.GPT.load


class Rows:
    """The rows of a csv: a weight, inputs, outputs."""

    def __init__(self, rows, inputs, classes):
        self.weight, self.x, self.y = (torch.tensor(part, dtype=torch.float64) for part in (
            [row[0] for row in rows], [row[1:1 + inputs] for row in rows], [row[1 + inputs:] for row in rows]))
        self.y = self.y.long() if classes else self.y
        self.count = len(rows)

    def weight_of(self, rows):
        return self.weight[rows].sum().item()

    def loss_sum(self, model, rows):
        kind = next(model.parameters()).dtype
        kept = [row for row in rows if self.weight[row] != 0]
        return (model.losses(self.x[kept].to(kind), self.y[kept]) * self.weight[kept].to(kind)).sum()


class Tokens:
    """Sequences of a file of bytes; every target weighs 1."""

    def __init__(self, data, context):
        self.x, self.y = map(torch.from_numpy, sequences(numpy.frombuffer(data, numpy.uint8).astype(numpy.int64), context))
        self.count = len(self.x)

    def weight_of(self, rows):
        return self.y[rows].numel()

    def loss_sum(self, model, rows):
        return model(self.x[rows], self.y[rows]) * self.y[rows].numel()


def make_model(spec):
    if spec["type"] != "gpt":
        return Mlp(spec)
    shape = {key: spec[key] for key in ("layers", "heads", "width", "context", "vocab")}
    return gpt2.GPT(dict(shape, bias=spec.get("bias", True), tie=spec.get("tie", True), dropout=0.0,
                         approximate="none" if spec.get("activation") == "gelu" else "tanh"))


def make_data(job, data):
    model = job["model"]
    return Tokens(data, model["context"]) if model["type"] == "gpt" else Rows(data, model["inputs"], model.get("loss") == "cross_entropy")


def make_optimizer(named, matrices, keys):
    """Parameter groups as people write them: by name pattern first, then matrices (a set of names) apart from vectors."""
    decay = keys.get("weight_decay", 0.0)
    groups = []
    for name, parameter in named:
        own = next((group for group in keys.get("groups", []) if fnmatch.fnmatch(name, group["match"])), {})
        groups.append({"params": [parameter], "lr": own.get("lr", keys["lr"]),
                       "weight_decay": own.get("weight_decay", decay if name in matrices else 0.0)})
    if keys["type"] == "adamw":
        return torch.optim.AdamW(groups, lr=keys["lr"], betas=keys.get("betas", (0.9, 0.999)), eps=keys.get("eps", 1e-8))
    return torch.optim.SGD(groups, lr=keys["lr"], momentum=keys.get("momentum", 0.0))


def make_scheduler(optimizer, keys, lr):
    """The framework's own shapes, where it has the job's."""
    total, minimum = keys.get("total"), keys.get("minimum", 0.0)
    if keys["type"] == "constant":
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    if keys["type"] == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total, eta_min=minimum)
    return torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=minimum / lr, total_iters=total)


def stored(model):
    """{name in files: array}, as gaccd writes them."""
    return {name: (parameter.t() if transposed else parameter).detach().double().numpy().copy()
            for name, parameter, transposed in model.named_as_stored()}


def flat(tensors, width=0):
    """All values in the order of names. Without the biases of a gpt's keys: softmax does not see what is added to all scores
    of a row, their gradient is 0 but for rounding, and AdamW makes steps of ±lr out of that."""
    parts = []
    for name, values in sorted(tensors.items()):
        values = values.ravel()
        parts.append(numpy.delete(values, slice(width, 2 * width)) if name.endswith("c_attn.bias") else values)
    return numpy.concatenate(parts)


def divisor_of(weighting, data, rows, micro_batches, part):
    """What the summed loss of micro-batch `part` of the global batch `rows` is divided by."""
    if weighting == "microbatch":
        return data.weight_of(part) * sum(data.weight_of(one) > 0 for one in micro_batches)
    return data.weight_of(rows) if weighting == "token" else 1


def train(job, data, initial, steps, compute="fp32", kind=torch.float32, mode=None, scaler=None):
    """Losses, gradient norms and learning rates, one a step, and the parameters behind the last one. mode: a context in which
    forward and backward run. scaler: a GradScaler."""
    data = make_data(job, data)
    model = make_model(job["model"]).to(kind)
    model.load(initial)
    keys, batch = job["optimizer"], job["batch"]
    named = [(name, parameter) for name, parameter, _ in model.named_as_stored()]
    matrices = {name for name, parameter in named if parameter.dim() >= 2}
    optimizer = make_optimizer(named, matrices, keys)
    scheduler = make_scheduler(optimizer, job.get("schedule", {"type": "constant"}), keys["lr"])
    precision = torch.autocast("cpu", dtype=NARROW[compute]) if compute in NARROW else contextlib.nullcontext()
    order = global_batches(job["job"].get("seed", 1337), data.count, batch["global"])
    seen = {"loss": [], "grad_norm": [], "lr": []}
    for _ in range(steps):
        rows = next(order)
        micro_batches = [rows[i:i + batch["micro"]] for i in range(0, len(rows), batch["micro"])]
        total = 0.0
        optimizer.zero_grad()
        for part in micro_batches:
            if data.weight_of(part) == 0:
                continue
            with mode or contextlib.nullcontext():
                with precision:
                    loss = data.loss_sum(model, part)
                loss = loss / divisor_of(batch.get("weighting", "token"), data, rows, micro_batches, part)
                (scaler.scale(loss) if scaler else loss).backward()
            total += loss.item()
        if scaler:
            scaler.unscale_(optimizer)
        limit = keys.get("clip_norm") or float("inf")
        seen["loss"].append(total)
        seen["grad_norm"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item())
        seen["lr"].append(optimizer.param_groups[0]["lr"])
        scaler.step(optimizer) if scaler else optimizer.step()
        scheduler.step()
    return seen, stored(model)


def write_safetensors(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [end, end + 4 * values.size]}
        end += 4 * values.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(values.astype("<f4").tobytes())


def draw(spec, seed=5):
    """Initial weights, the framework's own, moved so that biases and gains count."""
    torch.manual_seed(seed)
    model = make_model(spec)
    if spec["type"] == "gpt":
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, 0, 0.1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return stored(model)
