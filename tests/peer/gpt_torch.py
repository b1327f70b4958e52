#!/usr/bin/python3
"""Loss and every gradient of one micro-batch of worker/models/gpt.c against PyTorch's autograd, on the same weights.

    gpt_torch.py MODEL_STEP          the program built from model_step.c
"""
import itertools
import os
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    print("skipped: no python3-torch")
    sys.exit(77)

from gpt2 import GPT, read_safetensors

SHAPES = {"layers": 2, "heads": 3, "width": 24, "context": 9, "vocab": 31}
# Kernels, compute type (as enum dtype counts them) and what a gradient may differ by, relative to the tensor's largest.
BACKENDS = [("reference", "fp64", 3, 1e-13), ("cpu", "fp64", 3, 1e-12), ("cpu", "fp32", 0, 2e-5)]


def check(program, directory, backend, bias, tie, activation, pad):
    kernels, type_name, compute, allowed = backend
    path = os.path.join(directory, "step.safetensors")
    keys = dict(SHAPES, bias=bias, tie=tie, activation=activation, pad_vocab=pad, init_std=0.2, spread=0.2,
                cpu=int(kernels == "cpu"), compute=compute)
    subprocess.run([program, path] + [f"{key}={value}" for key, value in keys.items()], check=True)
    step = read_safetensors(path)
    config = dict(SHAPES, bias=bool(bias), tie=bool(tie), dropout=0.0, approximate={3: "none", 4: "tanh"}[activation])
    model = GPT(config).double()
    model.load(step)
    loss = model(step["tokens"].long(), step["targets"].long())
    loss.backward()
    worst = abs(loss.item() - step["loss"].item()) / loss.item()
    for name, parameter, transposed in model.named_as_stored():
        wanted = parameter.grad.t() if transposed else parameter.grad
        worst = max(worst, ((step["gradient/" + name] - wanted).abs().max() / wanted.abs().max()).item())
    expected = {name for name, _, _ in model.named_as_stored()}
    assert expected == {name[len("gradient/"):] for name in step if name.startswith("gradient/")}
    print(f"{kernels} {type_name} bias={bias} tie={tie} gelu={'_erf' if activation == 3 else '_tanh'} pad={pad}: "
          f"largest relative difference {worst:.2e}, allowed {allowed:.0e}")
    return worst <= allowed


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        variants = itertools.product(BACKENDS, (0, 1), (0, 1), (3, 4), (0, 16))
        results = [check(sys.argv[1], directory, *variant) for variant in variants]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
