#!/usr/bin/python3
"""Tokens a second of a plain PyTorch loop: DistributedDataParallel over gloo, K micro-batches a step with no_sync on all but
the last, one thread a rank. The denominator of gaccd's speed; nanoGPT's CPU model unless told otherwise.

    torch_ddp.py [--ranks 2] [--accumulate 8] [--micro 12] [--steps 6] [--layers 4] [--heads 4] [--width 128] [--context 64] [--vocab 256]

Prints one JSON object; the first step is not counted, the median of the others is.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peer"))


def steps(options, rank, store):
    """Seconds of every optimizer step on this rank."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from gpt2 import GPT

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    torch.manual_seed(rank)
    config = {key: getattr(options, key) for key in ("layers", "heads", "width", "context", "vocab")}
    model = DistributedDataParallel(GPT(dict(config, bias=False, tie=True, dropout=0.0, approximate="none")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    tokens = torch.randint(options.vocab, (options.micro, options.context + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def backward():
        (model(inputs, targets) / options.accumulate).backward()

    seconds = []
    for _ in range(options.steps + 1):
        distributed.barrier()
        start = time.monotonic()
        with model.no_sync():
            for _ in range(options.accumulate - 1):
                backward()
        backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.monotonic() - start)
    distributed.destroy_process_group()
    return seconds[1:]


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("ranks", 2), ("accumulate", 8), ("micro", 12), ("steps", 6), ("layers", 4), ("heads", 4),
                          ("width", 128), ("context", 64), ("vocab", 256)):
        parser.add_argument("--" + name, type=int, default=default)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        others = []
        for rank in range(1, options.ranks):
            child = os.fork()
            if child == 0:
                steps(options, rank, store)
                os._exit(0)
            others.append(child)
        median = statistics.median(steps(options, 0, store))
        failed = [child for child in others if os.waitpid(child, 0)[1] != 0]
    tokens = options.ranks * options.accumulate * options.micro * options.context
    print(json.dumps({"tokens_per_second": tokens / median, "seconds_per_step": median, "tokens_per_step": tokens}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
