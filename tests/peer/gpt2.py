"""GPT-2 in plain PyTorch (1.13), written the usual way: the peer of worker/models/gpt.c."""
import json
import math
import struct

import numpy
import torch
from torch import nn
from torch.nn import functional as F

DTYPES = {"F64": numpy.float64, "F32": numpy.float32, "F16": numpy.float16}


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, row in header.items():
        begin, end = row["data_offsets"]
        values = numpy.frombuffer(data[begin:end], DTYPES[row["dtype"]])
        tensors[name] = torch.from_numpy(values.reshape(row["shape"]).copy())
    return tensors


class LayerNorm(nn.Module):
    """With an optional bias, which nn.LayerNorm of this version does not have."""

    def __init__(self, width, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["heads"]
        self.dropout = c["dropout"]
        self.c_attn = nn.Linear(c["width"], 3 * c["width"], bias=c["bias"])
        self.c_proj = nn.Linear(c["width"], c["width"], bias=c["bias"])
        self.future = torch.ones(c["context"], c["context"], dtype=torch.bool).triu(1)

    def forward(self, x):
        batch, context, width = x.shape
        q, k, v = (part.view(batch, context, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.c_attn(x).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(width // self.heads))
        scores = scores.masked_fill(self.future[:context, :context], float("-inf"))
        probabilities = F.dropout(F.softmax(scores, dim=-1), self.dropout, self.training)
        y = (probabilities @ v).transpose(1, 2).contiguous().view(batch, context, width)
        return F.dropout(self.c_proj(y), self.dropout, self.training)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c_fc = nn.Linear(c["width"], 4 * c["width"], bias=c["bias"])
        self.c_proj = nn.Linear(4 * c["width"], c["width"], bias=c["bias"])
        self.approximate = c["approximate"]
        self.dropout = c["dropout"]

    def forward(self, x):
        x = F.gelu(self.c_fc(x), approximate=self.approximate)
        return F.dropout(self.c_proj(x), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = LayerNorm(c["width"], c["bias"])
        self.attn = Attention(c)
        self.ln_2 = LayerNorm(c["width"], c["bias"])
        self.mlp = Mlp(c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """config: layers, heads, width, context, vocab, bias, tie, dropout, approximate ("none" or "tanh")."""

    def __init__(self, config):
        super().__init__()
        self.config = c = config
        self.wte = nn.Embedding(c["vocab"], c["width"])
        self.wpe = nn.Embedding(c["context"], c["width"])
        self.h = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.ln_f = LayerNorm(c["width"], c["bias"])
        self.lm_head = nn.Linear(c["width"], c["vocab"], bias=False)
        if c["tie"]:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens, targets):
        """The mean loss over all targets."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        x = F.dropout(x, self.config["dropout"], self.training)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    def named_as_stored(self):
        """(name, parameter, whether a file of the transformers library holds it transposed); tied ones once."""
        for name, parameter in self.named_parameters():
            yield name, parameter, name.startswith("h.") and parameter.dim() == 2

    def load(self, tensors):
        with torch.no_grad():
            for name, parameter, transposed in self.named_as_stored():
                values = tensors[name]
                parameter.copy_(values.t() if transposed else values)
