"""Whether gaccd computes on the GPU what it computes on the processor.

Each job trains on both in each precision, and on the processor in fp64. How far the processor's own result is from fp64 is what
rounding does to this job; the GPU's may be FLOORS times as far, as in gaccd verify.
"""
import array
import concurrent.futures
import glob
import itertools
import json
import math
import os
import re
import shutil
import struct

from machine import Failed, OutOfTime, TooSlow, attempt, build_command, find_tool

FLOORS = 4
EXACT = 1e-6  # of the way that the weights go: a few roundings of fp32, for jobs that the processor computes exactly
STEPS = 6
SANITIZER_SECONDS = 45  # for one program under one tool
PRECISIONS = ("fp32", "bf16", "fp16")
AT_ONCE = 4  # jobs: most of the time of each is the start


# --- jobs ------------------------------------------------------------------------------------------------------------

def csv_text(header, row, rows=48):
    return ",".join(header) + "\n" + "".join(",".join(f"{number:.6g}" for number in row(i)) + "\n" for i in range(rows))


def wave(i, j):
    return math.sin(1.3 * i + 2.1 * j * j + 0.4)


def jobs():
    """(name, job, name of its data file, text)."""
    text = "".join(f"{i} times {i} is {i * i}.\n" for i in range(1000))
    model = {"type": "gpt", "layers": 2, "heads": 2, "width": 128, "context": 64, "vocab": 256, "dropout": 0.1}
    adamw = {"type": "adamw", "lr": 1e-3, "weight_decay": 0.1, "clip_norm": 1.0}
    yield "gpt", model, {"format": "bytes", "train": "gpt.txt"}, adamw, "gpt.txt", text
    odd = dict(model, heads=3, width=120, context=50, vocab=251, bias=False, tie=False, dropout=0, activation="gelu")
    yield "gpt, odd sizes", odd, {"format": "bytes", "train": "odd.txt"}, adamw, "odd.txt", text
    classes = csv_text(["weight", "x0", "x1", "x2", "y0"], lambda i: (i % 5 != 3, *(wave(i, j) for j in range(3)), i % 4))
    yield ("mlp", {"type": "mlp", "inputs": 3, "hidden": [64, 40], "outputs": 4, "norm": "layer", "activation": "gelu",
                   "loss": "cross_entropy"}, {"format": "csv", "train": "mlp.csv"}, adamw, "mlp.csv", classes)
    line = csv_text(["weight", "x0", "x1", "y0"], lambda i: (1 + i % 3, wave(i, 1), wave(i, 2), wave(i, 3)))
    yield ("linear", {"type": "linear", "inputs": 2}, {"format": "csv", "train": "linear.csv"},
           {"type": "sgd", "lr": 0.1, "momentum": 0.9}, "linear.csv", line)
    tape = csv_text(["weight", *(f"g{j}" for j in range(70))], lambda i: (1, *(wave(i, j) for j in range(70))))
    yield ("tape", {"type": "tape", "size": 70}, {"format": "csv", "train": "tape.csv"},
           {"type": "sgd", "lr": 0.1, "weight_decay": 0.01}, "tape.csv", tape)


def write_job(name, model, data, optimizer, file, text, directory):
    with open(os.path.join(directory, file), "w") as out:
        out.write(text)
    path = os.path.join(directory, re.sub(r"\W+", "-", name) + ".yaml")
    job = {"job": {"steps": STEPS}, "model": model, "data": data, "batch": {"global": 12, "micro": 5}, "optimizer": optimizer}
    with open(path, "w") as out:
        json.dump(job, out)  # JSON is YAML
    return path


# --- one run ---------------------------------------------------------------------------------------------------------

def read_tensors(path):
    """All numbers of a safetensors file, in the order of their names."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    numbers = []
    for name in sorted(header):
        begin, end = header[name]["data_offsets"]
        numbers.extend(array.array({"F32": "f", "F64": "d"}[header[name]["dtype"]], data[begin:end]).tolist())
    return numbers


class Trained:
    def __init__(self, directory, device):
        with open(os.path.join(directory, "log.jsonl")) as file:
            records = [json.loads(line) for line in file]
        if not records[0]["device"].startswith(device):
            raise Failed(f"asked for {device}, it was trained on {records[0]['device']}")
        self.steps = [record for record in records if record["type"] == "step"]
        for record in self.steps:
            del record["seconds"]
        self.losses = [record["loss"] for record in self.steps]
        self.norms = [record["grad_norm"] for record in self.steps]
        self.file = os.path.join(directory, "final", "model.safetensors")
        self.weights = read_tensors(self.file)

    def same_bits(self, other):
        with open(self.file, "rb") as mine, open(other.file, "rb") as others:
            return self.steps == other.steps and mine.read() == others.read()


class Jobs:
    """Trains jobs in `directory` and remembers what came out."""

    def __init__(self, runner, gaccd, directory, gpu_device):
        self.runner, self.gaccd, self.directory, self.gpu_device = runner, gaccd, directory, gpu_device
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        self.numbers = itertools.count(1)

    def train(self, path, device, precision, ranks=1, settings=()):
        output = os.path.join(self.directory, f"run-{next(self.numbers)}")
        command = [self.gaccd, path, "--device", device, "--output", output, "--resume", "never",
                   "--set", f"precision.compute={precision}"]
        if precision == "fp16":  # no skipped steps, so that all runs take the same
            command += ["--set", "precision.loss_scale.initial=1024"]
        for key, value in dict(settings).items():
            command += ["--set", f"{key}={value}"]
        if ranks > 1:
            command = ["mpirun", "-n", str(ranks), *command]
        done = self.runner.run(command, 60, directory=self.directory)
        if done.status != 0:
            raise Failed(f"exit status {done.status}: {done.why()}")
        return Trained(output, device)


# --- comparisons -----------------------------------------------------------------------------------------------------

def distance(a, b):
    if len(a) != len(b):
        raise Failed(f"{len(a)} numbers, not {len(b)}")
    if any(number is None for number in (*a, *b)):
        return math.inf
    return math.sqrt(sum((x - y) * (x - y) for x, y in zip(a, b)))


def judge(results, name, got, reference, exact, start):
    """Losses, norms and weights of `got` are at most FLOORS times as far from `exact` as those of `reference`."""
    worst, what = 0.0, ""
    for kind in ("losses", "norms", "weights"):
        there = [getattr(trained, kind) for trained in (got, reference, exact)]
        way = distance(exact.weights, start.weights) if kind == "weights" else math.sqrt(sum(x * x for x in there[2]))
        allowed = FLOORS * distance(there[1], there[2]) + EXACT * way
        ratio = distance(there[0], there[2]) / allowed if allowed > 0 else math.inf
        if not ratio <= worst:
            worst, what = ratio, f"{kind} {distance(there[0], there[2]):.2g} of {allowed:.2g} allowed"
    results.add("correct", name, "pass" if worst <= 1 else "fail", note=what)


def check_job(results, jobs_, name, path):
    exact = jobs_.train(path, "cpu", "fp64")
    start = jobs_.train(path, "cpu", "fp64", settings={"optimizer.lr": 0})
    for precision in PRECISIONS:
        try:
            got = jobs_.train(path, jobs_.gpu_device, precision)
            judge(results, f"{name}, {precision}: GPU = CPU", got, jobs_.train(path, "cpu", precision), exact, start)
        except Failed as why:
            results.add("correct", f"{name}, {precision}: GPU = CPU", "fail", note=str(why))
    return exact, start


def check_gpt_further(results, jobs_, path, exact, start):
    """The same bits again; any split of the batch; ranks that share the GPU."""
    once, again = (jobs_.train(path, jobs_.gpu_device, "bf16") for _ in range(2))
    results.add("correct", "gpt, bf16: twice the same bits", "pass" if once.same_bits(again) else "fail")
    reference = jobs_.train(path, "cpu", "fp32")
    split = jobs_.train(path, jobs_.gpu_device, "fp32", settings={"batch.micro": 2})
    judge(results, "gpt, fp32: b = 2", split, reference, exact, start)
    shared = jobs_.train(path, jobs_.gpu_device, "fp32", ranks=2)
    judge(results, "gpt, fp32: two ranks on one GPU", shared, reference, exact, start)


def verify(results, jobs_, path):
    output = os.path.join(jobs_.directory, "verify")
    done = jobs_.runner.run([jobs_.gaccd, "verify", path, "--device", jobs_.gpu_device, "--output", output], 120,
                            directory=jobs_.directory)
    results.add("correct", "gaccd verify", "pass" if done.status == 0 else "fail", note=done.why().split("; receipt")[0])


# --- test programs ---------------------------------------------------------------------------------------------------

def ctest(results, runner, build, name, arguments, limit):
    done = runner.run(["ctest", "--test-dir", build, "-j", str(len(os.sched_getaffinity(0))), "--no-tests=error",
                       "--output-on-failure", *arguments], limit)
    summary = re.search(r"\d+% tests passed.*", done.out)
    results.add("correct", name, "pass" if done.status == 0 else "fail", note=summary.group(0) if summary else done.why())


def kernel_tests(results, runner, build):
    """The kernels' own tests on the GPU: a test that finds none is skipped, which is a failure here."""
    done = runner.run(["ctest", "--test-dir", build, "--no-tests=error", "--output-on-failure", "-R", "^gpu_.*_test$"], 90)
    for name, outcome, seconds in re.findall(r"Test +#\d+: (\w+) \.+ *\W*(\w+).*? ([\d.]+) sec", done.out):
        results.add("correct", name, "pass" if outcome == "Passed" else "fail", note=f"{outcome}, {seconds} s")
    if done.status != 0 and not re.search(r"Test +#", done.out):
        raise Failed(done.why())


def sanitize(results, runner, build, tool):
    """The same tests under compute-sanitizer, where it can work with the machine's driver."""
    sanitizer = find_tool("compute-sanitizer")
    for program in sorted(glob.glob(os.path.join(build, "tests", "gpu_*_test"))):
        name = f"{os.path.basename(program)} under {tool}"
        if not sanitizer:
            results.add("further", name, "skip", note="there is no compute-sanitizer")
            continue
        try:
            done = runner.run([sanitizer, "--tool", tool, "--error-exitcode", "86", program], SANITIZER_SECONDS)
        except (TooSlow, OutOfTime) as why:
            results.add("further", name, "skip", note=str(why))
            continue
        refused = "Device not supported" in done.out
        summary = re.search(r"(ERROR|RACECHECK) SUMMARY.*", done.out)
        results.add("further", name, "skip" if refused else "pass" if done.status == 0 else "fail",
                    note="device not supported" if refused else summary.group(0) if summary else done.why())


def check_registers(results, runner, build):
    ctest(results, runner, build, "no kernel spills", ["-R", "^gpu_registers$"], 30)


def check(runner, results, build, gpu, work):
    """What the GPU computes: its kernels, and jobs on it beside the processor; some at once. Without one the harness alone, by
    jobs on the processor."""
    jobs_ = Jobs(runner, os.path.join(build, "daemon", "gaccd"), os.path.join(work, "jobs"), "cuda")
    paths = {name: write_job(name, *rest, jobs_.directory) for name, *rest in jobs()}
    if not gpu:
        attempt(results, "correct", "two ranks", two_ranks, results, jobs_, paths["gpt"])
        return
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        pool.submit(attempt, results, "correct", "kernels' tests", kernel_tests, results, runner, build)
        for name, path in paths.items():
            pool.submit(attempt, results, "correct", name, check_job_wholly, results, jobs_, name, path)
        pool.submit(attempt, results, "correct", "gaccd verify", verify, results, jobs_, paths["gpt"])
        pool.submit(attempt, results, "correct", "two ranks", two_ranks, results, jobs_, paths["gpt"])
        pool.submit(attempt, results, "correct", "no kernel spills", check_registers, results, runner, build)


def check_job_wholly(results, jobs_, name, path):
    exact, start = check_job(results, jobs_, name, path)
    if name == "gpt":
        check_gpt_further(results, jobs_, path, exact, start)


def check_further(runner, results, build, gpu, work):
    """What is worth less: the kernels under compute-sanitizer, and the tests of what runs on the processor."""
    del work
    for tool in ("memcheck", "racecheck") if gpu else ():
        attempt(results, "further", tool, sanitize, results, runner, build, tool)
    attempt(results, "further", "unit tests", unit_tests, results, runner, build)


def unit_tests(results, runner, build):
    done = runner.run(build_command(build), runner.clock.left())
    if done.status != 0:
        raise Failed(done.why())
    ctest(results, runner, build, "unit tests", ["-L", "^unit$"], 120)


def two_ranks(results, jobs_, path):
    exact, start = jobs_.train(path, "cpu", "fp64"), jobs_.train(path, "cpu", "fp64", settings={"optimizer.lr": 0})
    one, two = (jobs_.train(path, "cpu", "fp32", ranks=ranks) for ranks in (1, 2))
    judge(results, "gpt, fp32: two ranks on the processor", two, one, exact, start)
