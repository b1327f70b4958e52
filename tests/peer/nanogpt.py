#!/usr/bin/python3
"""nanoGPT's CPU recipe as a plain PyTorch loop that reads the same sequences in the same order as gaccd.

    nanogpt.py --data tinyshakespeare.txt --initial FILE.safetensors [--steps 2000] [--seed 1337] [--vocab 256] [--threads 2]

FILE holds the initial weights (model_step FILE gradients=0 …, or init.file of the job). Text is read as bytes, a tenth is
cut from its end for validation. Prints one JSON object: the mean loss over the whole validation split at the start and at the
end, and the training losses every hundred steps.
"""
import argparse
import json
import math
import time

import numpy
import torch

from gpt2 import GPT, read_safetensors
from order import global_batches, sequences, split

GLOBAL, WARMUP, LR, LR_MINIMUM, DECAY, CLIP = 12, 100, 1e-3, 1e-4, 0.1, 1.0
MODEL = {"layers": 4, "heads": 4, "width": 128, "context": 64, "bias": False, "tie": True, "dropout": 0.0,
         "approximate": "none"}


def learning_rate(step, total):
    """Of the step after `step` applied ones."""
    if step < WARMUP:
        return LR * (step + 1) / (WARMUP + 1)
    progress = min(1.0, (step - WARMUP) / (total - WARMUP))
    return LR_MINIMUM + 0.5 * (1 + math.cos(math.pi * progress)) * (LR - LR_MINIMUM)


def make_optimizer(model):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99), eps=1e-8)


def mean_loss(model, inputs, targets, rows=256):
    total = 0.0
    with torch.no_grad():
        for first in range(0, len(inputs), rows):
            x, y = inputs[first:first + rows], targets[first:first + rows]
            total += model(x, y).item() * y.numel()
    return total / targets.numel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--initial", required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    tokens = numpy.fromfile(options.data, numpy.uint8).astype(numpy.int64)
    train, validation = (sequences(part, MODEL["context"]) for part in split(tokens, 0.1))
    validation = [torch.from_numpy(part) for part in validation]
    model = GPT(dict(MODEL, vocab=options.vocab))
    model.load(read_safetensors(options.initial))
    optimizer = make_optimizer(model)
    batches = global_batches(options.seed, len(train[0]), GLOBAL)

    result = {"validation_before": mean_loss(model, *validation), "train": {}}
    start = time.monotonic()
    for step in range(options.steps):
        rows = next(batches)
        loss = model(torch.from_numpy(train[0][rows]), torch.from_numpy(train[1][rows]))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps)
        optimizer.step()
        if (step + 1) % 100 == 0 or step < 5:
            result["train"][step + 1] = loss.item()
    result["seconds"] = time.monotonic() - start
    result["validation_after"] = mean_loss(model, *validation)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
