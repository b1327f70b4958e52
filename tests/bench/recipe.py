#!/usr/bin/python3
"""nanoGPT's recipe for a CPU (deploy/jobs/shakespeare-char.yaml) in three precisions on one and two ranks, as a table.

    tests/bench/recipe.py [--build build] [--data tinyshakespeare.txt] [--steps 2000] [--peer]

--peer runs the same recipe in PyTorch first, from the same weights and in the same order (tests/peer/nanogpt.py). Exit status
1 when a final loss over the whole validation split is above 1.92 (after 2000 steps), or above the peer's by more than 0.01.
About ten minutes on two cores that do nothing else; the peer two more.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scenario"))
from harness import MPI, ROOT  # noqa: E402

JOB = os.path.join(ROOT, "deploy", "jobs", "shakespeare-char.yaml")
NANOGPT = os.path.join(ROOT, "tests", "peer", "nanogpt.py")
MODEL = ["layers=4", "heads=4", "width=128", "context=64", "vocab=128", "bias=0", "gradients=0"]
LOSS_MAX, RECIPE_STEPS, ABOVE_PEER_MAX = 1.92, 2000, 0.01


def find_data():
    beside = os.path.join(ROOT, os.pardir, "shared", "data", "tinyshakespeare.txt")
    places = [os.environ.get("GACC_TEST_DATA"), beside]
    return next((os.path.abspath(place) for place in places if place and os.path.isfile(place)), None)


def train(options, precision, ranks, directory):
    """Final validation loss, tokens per second of the steps, and the skipped steps."""
    output = os.path.join(directory, f"{precision}-{ranks}")
    command = [os.path.join(options.build, "gaccd"), JOB, "--output", output,
               "--set", f"precision.compute={precision}", "--set", f"job.steps={options.steps}",
               "--set", f"evaluation.every={options.steps}"]
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    subprocess.run(launcher + command, check=True, env=dict(os.environ, GACC_TEXT=options.data, **MPI))
    with open(os.path.join(output, "log.jsonl")) as log:
        records = [json.loads(line) for line in log]
    steps = [record for record in records if record["type"] == "step"]
    loss = [record["loss"] for record in records if record["type"] == "eval"][-1]
    seconds = sum(record["seconds"]["step"] for record in steps)
    return loss, sum(record["tokens"] for record in steps) / seconds, steps[-1]["skipped_steps"]


def train_peer(options, directory):
    initial = os.path.join(directory, "initial.safetensors")
    subprocess.run([os.path.join(options.build, "tests", "model_step"), initial, *MODEL], check=True)
    done = subprocess.run(["/usr/bin/python3", NANOGPT, "--data", options.data, "--initial", initial,
                           "--steps", str(options.steps)], check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout)
    return result["validation_after"], options.steps * 12 * 64 / result["seconds"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=os.environ.get("GACC_BUILD", os.path.join(ROOT, "build")))
    parser.add_argument("--data", default=find_data())
    parser.add_argument("--steps", type=int, default=RECIPE_STEPS, help="more than the 100 of the warm-up")
    parser.add_argument("--peer", action="store_true")
    options = parser.parse_args()
    if not options.data:
        parser.error("no text: --data, or GACC_TEST_DATA")
    limit = LOSS_MAX if options.steps >= RECIPE_STEPS else float("inf")

    print("precision  ranks  validation loss  tokens/s  skipped")
    with tempfile.TemporaryDirectory(prefix="gacc-recipe-") as directory:
        if options.peer:
            loss, speed = train_peer(options, directory)
            limit = min(limit, loss + ABOVE_PEER_MAX)
            print(f"{'PyTorch':<9}  {1:>5}  {loss:>15.4f}  {speed:>8.0f}  {0:>7}", flush=True)
        good = True
        for precision in ("fp32", "bf16", "fp16"):
            for ranks in (1, 2):
                loss, speed, skipped = train(options, precision, ranks, directory)
                good = good and loss <= limit
                print(f"{precision:<9}  {ranks:>5}  {loss:>15.4f}  {speed:>8.0f}  {skipped:>7}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
