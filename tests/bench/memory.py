#!/usr/bin/python3
"""Memory depends on b, not on B: a language model of a million parameters at b = 8 and B = 8 … 512, each a job of its own.

    tests/bench/memory.py [--build build] [--ranks 1]

Prints a line per B: K, what `gaccd plan` says that a rank takes, and the most that rank 0 has taken behind two checkpoints,
in MiB; then the largest over the smallest of each.
"""
import argparse
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"))
parser.add_argument("--ranks", type=int, default=1)
options = parser.parse_args()
os.environ["GACC_BUILD"] = os.path.abspath(options.build)
sys.path.insert(0, os.path.join(HERE, "..", "scenario"))
import planned  # noqa: E402

MIB = 2**20
MICRO = 8


class Table(planned.Planned):
    def runTest(self):
        print("  b    B    K  planned MiB  taken MiB", flush=True)
        rows = []
        for batch in (8, 16, 32, 64, 128, 256, 512):
            job, text = planned.gpt(128, 5, 128, MICRO, options.ranks)
            job["batch"]["global"] = batch * options.ranks
            plan, taken = self.measure(job, text, options.ranks)
            rows.append((plan, taken[0]))
            print(f"{MICRO:3}  {batch * options.ranks:3}  {batch // MICRO:3}  {plan / MIB:11.1f}  {taken[0] / MIB:9.1f}", flush=True)
        print("largest / smallest", *(f"{max(column) / min(column):.3f}" for column in zip(*rows)))


if __name__ == "__main__":
    table = Table()
    result = table.run()
    for _, text in result.errors + result.failures:
        print(text, file=sys.stderr)
    sys.exit(not result.wasSuccessful())
