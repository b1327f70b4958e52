#!/usr/bin/python3
"""What checkpoints cost, and what a signal leaves time for: deploy/jobs/shakespeare-char.yaml on two ranks of one thread.

    tests/bench/checkpoints.py [--build build] [--data TEXT] [--steps 300] [--rounds 3] [--stops 10]

Each round trains the job without checkpoints and with one every 50 steps, one after the other, so that whatever else the machine
does falls on both. Then a job is stopped and goes on: the time from the command to the decision that ends its first step. Then
jobs are stopped by TERM to mpirun, which kills the ranks a second after it has told them. Prints one JSON object:
  step             median seconds between optimizer steps, without and with, and their ratio; `bound`: what the copy and the
                   whole write would add to the mean step if nothing of it ran beside training
  longest          the longest of them, without and with; `copy` the longest copy of the state, `save` the slowest write
  resume           seconds: from the command to the first step's record, and to the header
  stops            of the jobs ended by TERM to mpirun: how many had saved the step under way, and the slowest of those from
                   the signal to result.json (one second of which mpirun waits before it tells anybody)
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "scenario"))
sys.path.insert(0, HERE)
from harness import MPI, ROOT  # noqa: E402
from recipe import JOB, find_data  # noqa: E402

EVERY = 50


class Bench:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        self.environment = dict(os.environ, GACC_TEXT=options.data, **MPI)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def command(self, output, **settings):
        words = ["mpirun", "-n", "2", os.path.join(self.options.build, "gaccd"), JOB, "--output", self.path(output)]
        for key, value in {"job.steps": self.options.steps, "schedule.total": self.options.steps, "evaluation.every": 0, "schedule.warmup": 5, **settings}.items():
            words += ["--set", f"{key}={value}"]
        return words

    def start(self, output, **settings):
        return subprocess.Popen(self.command(output, **settings), env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def records(self, output):
        try:
            with open(self.path(output, "log.jsonl")) as log:
                return [json.loads(line) for line in log.read().split("\n")[:-1]]
        except FileNotFoundError:
            return []

    def train(self, output, every):
        shutil.rmtree(self.path(output), ignore_errors=True)
        assert self.start(output, **{"checkpoint.every": every}).wait() == 0
        records = self.records(output)
        steps = [r["seconds"]["since_last_step"] for r in records if r["type"] == "step"][1:]
        saves = [r["seconds"] for r in records if r["type"] == "checkpoint"]
        assert len(saves) == (self.options.steps // every if every else 0)
        return {"median": statistics.median(steps), "longest": max(steps), "copy": max((s["copy"] for s in saves), default=0),
                "save": max((s["write"] + s["commit"] for s in saves), default=0)}

    def until(self, output, kind, count=1):
        while len([r for r in self.records(output) if r["type"] == kind]) < count:
            time.sleep(0.002)
        return time.monotonic()

    def resume(self):
        shutil.rmtree(self.path("stop"), ignore_errors=True)
        running = self.start("stop", **{"checkpoint.every": 0})
        self.until("stop", "step", 10)
        running.send_signal(signal.SIGUSR2)
        assert running.wait() == 75
        before = self.records("stop")
        headers, steps = (len([r for r in before if r["type"] == kind]) for kind in ("header", "step"))
        began = time.monotonic()
        running = self.start("stop", **{"checkpoint.every": 0})
        header = self.until("stop", "header", headers + 1) - began
        step = self.until("stop", "step", steps + 1) - began
        running.send_signal(signal.SIGUSR2)
        running.wait()
        return {"header": header, "first_step": step}

    def stop(self):
        shutil.rmtree(self.path("stop"), ignore_errors=True)
        running = self.start("stop", **{"checkpoint.every": 0})
        self.until("stop", "step", 8)
        began = time.monotonic()
        running.send_signal(signal.SIGTERM)
        result = self.path("stop", "result.json")
        while not os.path.exists(result):
            time.sleep(0.002)
        seconds = time.monotonic() - began
        running.wait()
        with open(result) as file:
            return seconds if json.load(file)["exit"] == 75 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--data", default=find_data())
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stops", type=int, default=10)
    options = parser.parse_args()
    if not options.data:
        parser.error("no text: name one with --data")
    with tempfile.TemporaryDirectory(prefix="gacc-checkpoints-") as directory:
        bench = Bench(options, directory)
        without, with_them = [], []
        for _ in range(options.rounds):
            without.append(bench.train("without", 0))
            with_them.append(bench.train("with", EVERY))
        resumes = [bench.resume() for _ in range(options.rounds)]
        stops = [bench.stop() for _ in range(options.stops)]
    saved = [one for one in stops if one is not None]
    print(json.dumps({
        "step": {"without": [r["median"] for r in without], "with": [r["median"] for r in with_them],
                 "ratio": statistics.median(b["median"] / a["median"] for a, b in zip(without, with_them)),
                 "bound": max((b["copy"] + b["save"]) / (EVERY * a["median"]) for a, b in zip(without, with_them))},
        "longest": {"without": [r["longest"] for r in without], "with": [r["longest"] for r in with_them],
                    "copy": max(r["copy"] for r in with_them), "save": max(r["save"] for r in with_them)},
        "resume": {key: statistics.median(one[key] for one in resumes) for key in ("header", "first_step")},
        "stops": {"of": len(stops), "saved": len(saved), "slowest": max(saved, default=None)},
        "load": os.getloadavg()[0]}, indent=1))


if __name__ == "__main__":
    main()
