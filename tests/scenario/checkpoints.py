"""What the checkpoint and resume tests share: where a run's checkpoints lie, what is in them, and runs that end early."""

import json
import os
import re
import shutil

import numpy

import toys


def folder(run):
    return os.path.join(run, "checkpoints")


def names(run):
    """Complete ones, oldest first."""
    try:
        found = os.listdir(folder(run))
    except FileNotFoundError:
        return []
    return sorted(name for name in found if re.fullmatch(r"step-\d+(-attempt-\d+)?", name)
                  and os.path.exists(os.path.join(folder(run), name, "manifest.json")))


def path(run, name, *file):
    return os.path.join(folder(run), name, *file)


def name_of(step):
    return f"step-{step:08}"


def manifest(run, name):
    with open(path(run, name, "manifest.json")) as file:
        return json.load(file)


def contents(run, name):
    """Every byte of it but those that tell of the time and the way: {file: bytes}, manifest as an object."""
    found = {}
    for file in sorted(os.listdir(path(run, name))):
        with open(path(run, name, file), "rb") as stream:
            found[file] = stream.read()
    facts = json.loads(found.pop("manifest.json"))
    for key in ("time", "job", "job_packed", "xxh3_128"):
        facts.pop(key)
    return found, facts


def moments(run, name):
    """{"m": array, "v": array} over the canonical index, from whichever ranks wrote them."""
    parts = {"m": {}, "v": {}}
    for file in os.listdir(path(run, name)):
        if file.startswith("optimizer-"):
            for tensor, values in toys.read_safetensors(path(run, name, file)).items():
                letter, _, ends = tensor.partition(".")
                begin, end = map(int, ends.split("-"))
                assert len(values) == end - begin
                parts[letter][begin] = values
    return {letter: numpy.concatenate([found[begin] for begin in sorted(found)]) for letter, found in parts.items() if found}


def cut(run, step, to):
    """The run as it would be had it ended behind this step's checkpoint: a copy."""
    shutil.copytree(run, to)
    for name in names(to):
        if name > name_of(step):
            shutil.rmtree(path(to, name))
    for left in ("result.json", "final"):
        left = os.path.join(to, left)
        if os.path.isdir(left):
            shutil.rmtree(left)
        elif os.path.exists(left):
            os.remove(left)
    with open(os.path.join(to, "log.jsonl"), "r+") as log:
        lines = [line for line in log if json.loads(line)["type"] != "end"]
        log.seek(0)
        log.truncate()
        log.writelines(lines)
    return to


class Checkpoints(toys.Training):
    def directory_of(self, output):
        return os.path.join(self.directory, output)

    def until(self, job, data, ranks, step, output="cut", arguments=()):
        """Trains a copy of the job up to a checkpoint behind this step, and no further, in `output`."""
        job = json.loads(json.dumps(job))
        total = job["job"].get("steps")
        if total and job.get("schedule", {}).get("type", "constant") != "constant":
            job["schedule"].setdefault("total", total)
        job["job"] = {**job["job"], "steps": step}
        job["job"].pop("epochs", None)
        job["checkpoint"] = {"every": step}
        return self.train_into(output, job, data, ranks, arguments)

    def train_into(self, output, job, data, ranks=1, arguments=(), expect=0):
        job = json.loads(json.dumps(job))
        self.write("data", data if isinstance(data, bytes) else toys.csv_text(job, data))
        job["data"].setdefault("train", "data")
        done = self.run_job(job, ranks=0 if ranks == 1 else ranks, output=output, arguments=arguments)
        self.assertEqual(done.status, expect, done.err)
        return toys.Outcome(done, self.directory_of(output)) if os.path.exists(os.path.join(self.directory_of(output), "log.jsonl")) else done
