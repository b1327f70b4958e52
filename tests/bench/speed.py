#!/usr/bin/python3
"""Tokens a second of gaccd, PyTorch and bare matrix products in one run: nanoGPT's CPU model, two ranks of one thread, K = 8.

    tests/bench/speed.py [--build build] [--data TEXT] [--rounds 3] [--precision fp32]

Each round measures the three one after the other, so that whatever else the machine does falls on all of them:
  gaccd     deploy/jobs/shakespeare-char.yaml under mpirun with b = 12 and B = 192; the median step after the first
  PyTorch   tests/bench/torch_ddp.py: DistributedDataParallel over gloo with no_sync
  products  two processes of BUILD/tests/kernels at once: what the sgemm rate at the model's own shapes would allow, for
            all its products, and for those of weights alone, without attention's (a roof nobody can reach)
Prints one JSON object; the ratios are medians of the rounds' own ratios.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "scenario"))
sys.path.insert(0, HERE)
from harness import MPI, ROOT  # noqa: E402
from recipe import JOB, find_data  # noqa: E402

RANKS, ACCUMULATE, MICRO, CONTEXT, STEPS = 2, 8, 12, 64, 25


def gaccd(options, directory):
    """Tokens a second; the wall time between optimizer steps counts, not the steps' own."""
    output = os.path.join(directory, "run")
    settings = {"batch.micro": MICRO, "batch.global": RANKS * ACCUMULATE * MICRO, "model.vocab": 256, "job.steps": STEPS,
                "schedule.warmup": 5, "evaluation.every": 0, "precision.compute": options.precision}
    command = ["mpirun", "-n", str(RANKS), os.path.join(options.build, "gaccd"), JOB, "--output", output, "--resume", "never"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, env=dict(os.environ, GACC_TEXT=options.data, **MPI), stderr=subprocess.DEVNULL)
    with open(os.path.join(output, "log.jsonl")) as log:
        records = [json.loads(line) for line in log]
    steps = [record for record in records if record["type"] == "step"][-STEPS + 1:]
    assert all(record["accumulate"] == [ACCUMULATE] * RANKS for record in steps)
    return steps[0]["tokens"] / statistics.median(record["seconds"]["since_last_step"] for record in steps)


def pytorch():
    command = ["/usr/bin/python3", os.path.join(HERE, "torch_ddp.py"), "--accumulate", str(ACCUMULATE), "--micro", str(MICRO)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["tokens_per_second"]


def products(options):
    command = [os.path.join(options.build, "tests", "kernels"), "fp32"]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(RANKS)]
    hot = [re.search(r"hot: bare products ([0-9.]+) ms .*?([0-9.]+) ms of them", rank.communicate()[0]) for rank in ranks]
    every, attention = ([float(one.group(i)) for one in hot] for i in (1, 2))

    def rate(milliseconds):
        return sum(MICRO * CONTEXT / (1e-3 * one) for one in milliseconds)
    return {"products": rate(every), "products of weights": rate(a - b for a, b in zip(every, attention))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--data", default=find_data())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    if not options.data:
        parser.error("no text: name one with --data")
    rounds = []
    with tempfile.TemporaryDirectory(prefix="gacc-speed-") as directory:
        for _ in range(options.rounds):
            rounds.append({"gaccd": gaccd(options, directory), "pytorch": pytorch(), **products(options)})
    ratio = {peer: statistics.median(one["gaccd"] / one[peer] for one in rounds) for peer in rounds[0] if peer != "gaccd"}
    print(json.dumps({"tokens_per_second": rounds, "ratio": ratio, "load": os.getloadavg()[0]}, indent=1))


if __name__ == "__main__":
    main()
