#!/usr/bin/python3
"""nanoGPT's CPU recipe (deploy/jobs/shakespeare-char.yaml) as a plain PyTorch loop that starts from the same weights and reads
the same sequences in the same order as gaccd.

    model_step initial.safetensors layers=4 heads=4 width=128 context=64 vocab=128 bias=0 gradients=0
    nanogpt.py --data tinyshakespeare.txt --initial initial.safetensors [--steps 2000] [--log RUN/log.jsonl]

Prints one JSON object: the mean loss over the whole validation split at the start and at the end, and training losses on
the way. With the log of a run of gaccd, also how far that run's losses are from these; exit status 1 when its last validation
loss is above this one's by more than 0.01.
"""
import argparse
import json
import math
import sys
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


def compare(result, log):
    """Adds the run's losses to the result; whether the last validation loss is good enough."""
    records = [json.loads(line) for line in open(log)]
    steps = {r["optimizer_steps"]: r["loss"] for r in records if r["type"] == "step" and r["verdict"] == "apply"}
    ours = [r["loss"] for r in records if r["type"] == "eval"][-1]
    result["gaccd"] = {"validation_after": ours, "above_by": ours - result["validation_after"],
                       "train_differs_by": {step: steps[step] - loss for step, loss in result["train"].items()}}
    return ours - result["validation_after"] <= 0.01


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
    parser.add_argument("--vocab", type=int, default=128)
    parser.add_argument("--log")
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
    good = compare(result, options.log) if options.log else True
    print(json.dumps(result))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
