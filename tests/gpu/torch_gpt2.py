"""What the same GPU gives PyTorch: the peer of tests/gpu/timings.py. Each command prints one JSON object.

    torch_gpt2.py train --micro 32 --accumulate 16 [--steps 6] [--precision bf16|fp16] [--model 124M|1558M] [--recompute] --data TOKENS
    torch_gpt2.py roof --micro 32 [--model 124M|1558M] [--recompute]

train: GPT-2 the usual way: torch.compile, flash attention, autocast, fused AdamW, the vocabulary padded to a multiple of 128,
weights and moments in fp32. fp16 has a GradScaler. The first two steps (compilation) are not counted, the median of the others
is. roof: the time of one micro-batch's matrix products alone, each as cuBLAS does it at the model's own shapes in the better
of two layouts, and of its attention. --recompute: blocks' activations are not kept (torch.utils.checkpoint).
"""
import argparse
import json
import os
import statistics
import sys
import time

import numpy
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peer"))
import gpt2  # noqa: E402
from models import CONTEXT, MODELS, padded_vocab, products  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
WARMUP = 2


class FlashAttention(gpt2.Attention):
    def forward(self, x):
        batch, context, width = x.shape
        q, k, v = (part.view(batch, context, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.c_attn(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, context, width))


class RecomputedBlock(gpt2.Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


def make_model(name, recompute):
    config = dict(MODELS[name], context=CONTEXT, vocab=padded_vocab(), bias=True, tie=True, dropout=0.0, approximate="tanh")
    gpt2.Attention = FlashAttention
    if recompute:
        gpt2.Block = RecomputedBlock
    torch.manual_seed(1)
    model = gpt2.GPT(config)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    return model.cuda()


def batches(options):
    """Micro-batches (inputs, targets), one after the other through the file."""
    tokens = numpy.memmap(options.data, dtype=numpy.uint16, mode="r")
    length = options.micro * CONTEXT
    begin = 0
    while True:
        if begin + length + 1 > len(tokens):
            begin = 0
        part = torch.from_numpy(tokens[begin:begin + length + 1].astype(numpy.int64))
        begin += length
        yield [piece.view(options.micro, CONTEXT).pin_memory().cuda(non_blocking=True) for piece in (part[:-1], part[1:])]


def train(options):
    torch.set_float32_matmul_precision("high")
    model = make_model(options.model, options.recompute)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
                                  lr=6e-4, betas=(0.9, 0.95), fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=options.precision == "fp16")
    compiled = torch.compile(model)
    source = batches(options)
    seconds, losses = [], []
    for _ in range(WARMUP + options.steps):
        torch.cuda.synchronize()
        begin = time.monotonic()
        total = 0.0
        for _ in range(options.accumulate):
            with torch.autocast("cuda", dtype=DTYPES[options.precision]):
                loss = compiled(*next(source)) / options.accumulate
            scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - begin)
        losses.append(float(total))
    median = statistics.median(seconds[WARMUP:])
    tokens = options.micro * options.accumulate * CONTEXT
    return {"tokens_per_second": tokens / median, "seconds_per_step": median, "compile_seconds": seconds[0], "losses": losses,
            "memory_mib": torch.cuda.max_memory_allocated() >> 20, "version": torch.__version__}


def seconds_of(work, runs=10):
    """The mean of some runs, after two that are not counted; by the GPU's clock."""
    work(), work()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    for _ in range(runs):
        work()
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / 1e3 / runs


def roof(options):
    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    model = MODELS[options.model]
    total, flops, table = 0.0, 0.0, []
    for name, m, n, k, calls in products(model, options.micro, options.recompute):
        a, b, transposed = random(m, k), random(k, n), random(n, k)
        seconds = min(seconds_of(lambda: a @ b), seconds_of(lambda: a @ transposed.t()))
        table.append({"product": name, "shape": [m, n, k], "calls": calls, "seconds": seconds,
                      "tflops": 2e-12 * m * n * k / seconds})
        total += calls * seconds
        flops += calls * 2.0 * m * n * k
    size = model["width"] // model["heads"]
    q, k, v = (random(options.micro, model["heads"], CONTEXT, size).requires_grad_() for _ in range(3))
    gradient = random(options.micro, model["heads"], CONTEXT, size)

    def attention():
        F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(gradient)

    return {"products_seconds": total, "tflops": 1e-12 * flops / total,
            "attention_seconds": model["layers"] * seconds_of(attention), "products": table}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train", "roof"])
    parser.add_argument("--model", default="124M", choices=MODELS)
    parser.add_argument("--micro", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--precision", default="bf16", choices=DTYPES)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--data")
    options = parser.parse_args()
    print(json.dumps({"train": train, "roof": roof}[options.command](options)))


if __name__ == "__main__":
    main()
