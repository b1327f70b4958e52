"""A plain PyTorch model (loop.py's mlp, linear or GPT) and a torch.optim optimizer under gaccd: K, S, lr, the clip coefficient and
the verdict come from it. Loss and gradients are fp32; in an fp16 job parameters travel, and are used, rounded to fp16."""
import math
import sys

import numpy
import torch

import loop
from gacc.v1 import job_pb2
from worker import JOB, Failed, Rank, Rows, initial_values

TYPES = {job_pb2.MODEL_LINEAR: "linear", job_pb2.MODEL_MLP: "mlp", job_pb2.MODEL_GPT: "gpt"}
ACTIVATIONS = {job_pb2.ACTIVATION_NONE: "none", job_pb2.ACTIVATION_RELU: "relu", job_pb2.ACTIVATION_TANH: "tanh",
               job_pb2.ACTIVATION_GELU: "gelu", job_pb2.ACTIVATION_GELU_TANH: "gelu_tanh"}
LOSSES = {job_pb2.LOSS_MSE: "mse", job_pb2.LOSS_HALF_MSE: "half_mse", job_pb2.LOSS_CROSS_ENTROPY: "cross_entropy"}
KINDS = {job_pb2.COMPUTE_FP32: numpy.float32, job_pb2.COMPUTE_FP16: numpy.float16}


def spec_of(model):
    """The section as loop.py takes it."""
    spec = {"type": TYPES[model.type], "bias": model.bias, "activation": ACTIVATIONS[model.activation]}
    if model.type == job_pb2.MODEL_GPT:
        return dict(spec, tie=model.tie, **{key: getattr(model, key) for key in ("layers", "heads", "width", "context", "vocab")})
    outputs = {"outputs": model.outputs} if model.type == job_pb2.MODEL_MLP else {}
    return dict(spec, inputs=model.inputs, hidden=list(model.hidden), loss=LOSSES[model.loss], **outputs)


def data_of(job, paths):
    if not paths:
        return None
    if job.data.format == job_pb2.FORMAT_BYTES and len(paths) == 1:
        with open(paths[0], "rb") as file:
            return loop.Tokens(file.read(), job.model.context)
    if job.data.format != job_pb2.FORMAT_CSV:
        raise Failed(JOB, "torch_worker.py reads csv, or one file of bytes")
    rows = Rows(paths)
    return loop.Rows([(w, *x, *y) for w, x, y in zip(rows.weight, rows.x, rows.y)], job.model.inputs,
                     job.model.loss == job_pb2.LOSS_CROSS_ENTROPY)


class Torch:
    wide = numpy.float32

    def __init__(self, job, cores):
        if job.model.type not in TYPES or job.model.dropout or job.model.norm or job.precision.compute not in KINDS or \
           job.optimizer.groups:
            raise Failed(JOB, "torch_worker.py runs linear, mlp and gpt in fp32 or fp16, without norm, dropout or optimizer.groups")
        torch.set_num_threads(cores)
        self.job, self.compute = job, KINDS[job.precision.compute]
        self.module = loop.make_model(spec_of(job.model))
        self.data, self.held_out = data_of(job, job.data.train), data_of(job, job.data.validation)
        self.sequences, self.validation_sequences = self.data.count, self.held_out.count if self.held_out else 0
        self.targets = job.model.context or 1
        self.optimizers = {}
        self.lay_flat()

    def lay_flat(self):
        """The module's parameters and their .grad are views of one row each, in the order and orientation of files."""
        stored = [(name, parameter, transposed) for name, parameter, transposed in self.module.named_as_stored()]
        self.names = [(name, tuple((parameter.t() if transposed else parameter).shape)) for name, parameter, transposed in stored]
        count = sum(math.prod(shape) for _, shape in self.names)
        self.gradients, self.parameters = numpy.zeros(count, numpy.float32), numpy.zeros(count, numpy.float32)
        begin = 0
        for (_, parameter, transposed), (_, shape) in zip(stored, self.names):
            end = begin + math.prod(shape)
            views = [torch.from_numpy(row[begin:end]).view(shape) for row in (self.parameters, self.gradients)]
            parameter.data, parameter.grad = (view.t() for view in views) if transposed else views
            begin = end

    def weight_of(self, sequence):
        return float(self.data.weight_of([sequence]))

    def initial(self):
        return initial_values(self.job, self.names, self.wide)

    def moments(self, count):
        adamw = self.job.optimizer.type == job_pb2.OPTIMIZER_ADAMW
        kept = "mv" if adamw else "m" if self.job.optimizer.momentum else ""
        return {letter: numpy.zeros(count, self.wide) for letter in kept}

    def take(self, parameters):
        self.parameters[:] = parameters

    def run(self, sequences, seeds, step):
        """A sequence's mean loss is multiplied by its seed, S·w/W, and backward() adds to .grad."""
        if self.job.model.type == job_pb2.MODEL_GPT:
            mean = self.module(self.data.x[sequences], self.data.y[sequences])
            (mean * sum(seeds)).backward()
            return mean.item() * self.data.y[sequences].numel()
        kept = [i for i, seed in zip(sequences, seeds) if seed]
        losses = self.module.losses(self.data.x[kept].float(), self.data.y[kept])
        (losses * torch.tensor([seed for seed in seeds if seed], dtype=torch.float32)).sum().backward()
        return (losses.double() * self.data.weight[kept]).sum().item()

    @torch.no_grad()
    def evaluate(self, sequences):
        rows = list(sequences)
        return self.held_out.loss_sum(self.module, rows).item(), float(self.held_out.weight_of(rows)) if rows else 0.0

    def optimizer_of(self, begin, master, moments):
        """torch.optim over the pieces of tensors that this range of master parameters holds, its state being our moments."""
        spec, pieces, first = self.job.optimizer, [], 0
        for _, shape in self.names:
            last = first + math.prod(shape)
            low, high = max(first, begin) - begin, min(last, begin + len(master)) - begin
            if low < high:
                pieces.append((slice(low, high), spec.weight_decay if len(shape) >= 2 else 0.0))
            first = last
        groups = [{"params": [torch.nn.Parameter(torch.from_numpy(master[span]))], "weight_decay": decay} for span, decay in pieces]
        spans = [span for span, _ in pieces]
        if not groups:
            return None, spans
        if spec.type == job_pb2.OPTIMIZER_ADAMW:
            optimizer = torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps)
        else:
            optimizer = torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum)
        for group, span in zip(optimizer.param_groups, spans):
            kept = {"m": "exp_avg", "v": "exp_avg_sq"} if "v" in moments else {"m": "momentum_buffer"} if moments else {}
            optimizer.state[group["params"][0]] = {name: torch.from_numpy(moments[letter][span]) for letter, name in kept.items()}
        return optimizer, spans

    def update(self, begin, master, gradient, moments, unscale, lr, t):
        if begin not in self.optimizers:
            self.optimizers[begin] = self.optimizer_of(begin, master, moments)
        optimizer, spans = self.optimizers[begin]
        if not optimizer:
            return
        for group, span in zip(optimizer.param_groups, spans):
            (parameter,) = group["params"]
            parameter.grad = torch.from_numpy((gradient[span].astype(numpy.float64) * unscale).astype(numpy.float32))
            group["lr"] = lr
            if "exp_avg" in optimizer.state[parameter]:
                optimizer.state[parameter]["step"] = torch.tensor(float(t - 1))
        optimizer.step()


if __name__ == "__main__":
    sys.exit(Rank(Torch).main())
