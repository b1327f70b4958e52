"""How fast gaccd trains GPT-2 on this GPU, beside PyTorch and beside the GPU's own limits, all in one run."""
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time

import models
from machine import HERE, ROOT, Failed, MemoryWatch, OutOfTime, attempt, count_gpus, module_file
from models import MODELS, PEAK_TFLOPS, flops_per_token

JOB = os.path.join(ROOT, "deploy", "jobs", "gpt2-124m.yaml")
TORCH = os.path.join(HERE, "torch_gpt2.py")
LADDER, FIRST = (16, 32, 64, 128), 32  # of b: upwards from the first while it pays, else one step down
SMALL_MICRO = 4
BUCKETS = 8  # of worker/comm_nccl.c


class Size:
    """How a model is trained here: B, steps that are not counted and that are, and what its job says."""

    def __init__(self, sequences, warmup, steps, settings):
        self.sequences, self.warmup, self.steps, self.settings = sequences, warmup, steps, settings


SIZES = {
    "124M": Size(512, 2, 5, {}),  # half a million tokens a step
    "1558M": Size(64, 1, 3, {"recompute": "block"}),
}

# Every figure that is asked for, and its goal. One that was not taken is a row all the same.
ASKED = {
    "124M: tokens a second": ("tokens/s", [">=", 500e3]),
    "124M: model FLOP utilisation": ("%", [">=", 42]),
    "124M: best b": ("", None),
    "124M: peak memory": ("MiB", None),
    "124M: gaccd / PyTorch": ("", [">=", 1.15]),
    "124M: share that is no product of weights": ("%", None),
    "1558M: tokens a second": ("tokens/s", None),
    "1558M: model FLOP utilisation": ("%", None),
    "1558M: best b": ("", None),
    "1558M: peak memory": ("MiB", None),
    "1558M: start, initial weights included": ("s", ["<=", 90]),
    "1558M: of the matrix-product roof": ("%", [">=", 57]),
    "1558M: share that is no product of weights": ("%", None),
    "124M: b = 4 / best b": ("", [">=", 0.7]),
    "124M: found_inf, clip, update / moving their bytes": ("", ["<=", 1.2]),
    "124M: fp16 with scaling / bf16": ("", [">=", 0.97]),
    "buckets: eight / the cheapest number": ("", ["<=", 1.1]),
    "1558M: gaccd / PyTorch": ("", [">=", 1.15]),
}


def write_tokens(path):
    """As many tokens as the longest run reads, some frequent and most rare, as in a text."""
    source = random.Random(1)
    weights = [1 / (rank + 3) for rank in range(models.VOCAB)]
    block = source.choices(range(models.VOCAB), weights, k=1 << 20)
    tokens = max((size.warmup + size.steps + 1) * size.sequences for size in SIZES.values()) * models.CONTEXT
    with open(path, "wb") as file:
        for _ in range(tokens // len(block) + 1):
            shift = source.randrange(len(block))
            file.write(b"".join(token.to_bytes(2, "little") for token in block[shift:] + block[:shift]))


def set_options(settings):
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def stop(process):
    """The first signal asks for a checkpoint and the end, the second for the end."""
    for patience in (0.5, 10):
        process.send_signal(signal.SIGINT)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            pass
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def log_records(output):
    try:
        with open(os.path.join(output, "log.jsonl")) as file:
            return [json.loads(line) for line in file.read().split("\n")[:-1]]
    except FileNotFoundError:
        return []


class Measured:
    """Seconds of a step (the median), MiB of GPU memory at most, seconds until the first step began, the steps' records."""

    def __init__(self, records, memory, start):
        self.seconds = statistics.median(record["seconds"]["since_last_step"] for record in records)
        self.memory, self.start, self.records = memory, start, records


class Best:
    def __init__(self, micro, measured, rate):
        self.micro, self.measured, self.rate = micro, measured, rate


class Bench:
    def __init__(self, runner, results, build, gpu, work):
        self.runner, self.results, self.gpu = runner, results, gpu
        self.gaccd, self.build = os.path.join(build, "daemon", "gaccd"), build
        self.directory = os.path.join(work, "timings")
        shutil.rmtree(self.directory, ignore_errors=True)
        os.makedirs(self.directory)
        self.tokens = os.path.join(self.directory, "train.bin")
        write_tokens(self.tokens)
        os.symlink("train.bin", os.path.join(self.directory, "val.bin"))
        self.found = {}  # model → Best
        self.roofs = {}

    def figure(self, name, value, unit="", note=""):
        unit, goal = ASKED.get(name, (unit, None))
        self.results.add("speed", name, "figure", value, unit, goal, note)

    def skip(self, name, why):
        unit, goal = ASKED.get(name, ("", None))
        self.results.add("speed", name, "skip", None, unit, goal, why)

    # --- running ---------------------------------------------------------------------------------------------------

    def train(self, model, micro, sequences=None, steps=None, limit=90, settings=()):
        """Measured. The job is interrupted once it has made its steps: what is written at its end is no part of this."""
        size = SIZES[model]
        wanted_steps = size.warmup + (steps or size.steps)
        output = os.path.join(self.directory, "run")
        shutil.rmtree(output, ignore_errors=True)
        wanted = {"batch.global": sequences or size.sequences, "batch.micro": micro, "evaluation.every": 0,
                  "checkpoint.every": 0, "job.steps": 1000000, "schedule.warmup": 100, **models.job_keys(MODELS[model]),
                  **size.settings, **dict(settings)}
        command = [self.gaccd, JOB, "--device", "cuda", "--output", output, "--resume", "never", *set_options(wanted)]
        limit, over = self.runner.clock.limit(limit)
        log = self.runner.log
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        began = time.monotonic()
        start = None
        said = os.path.join(self.directory, "stderr")
        with MemoryWatch() as watch, open(said, "w") as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err, start_new_session=True,
                                       env=dict(self.runner.environment, GACC_TOKENS=self.directory))
            while process.poll() is None and time.monotonic() < began + limit:
                records = log_records(output)
                if records and start is None:  # the header is written when every rank is ready
                    start = time.monotonic() - began
                if sum(record["type"] == "step" for record in records) >= wanted_steps:
                    break
                time.sleep(0.1)
            ended = process.poll()
            stop(process)
        with open(said) as err:
            text = err.read()
        log.write(text)
        records = [record for record in log_records(output) if record["type"] == "step"][size.warmup:wanted_steps]
        if len(records) < wanted_steps - size.warmup:
            if ended is None:
                raise over(f"b = {micro}: {len(records)} of {wanted_steps - size.warmup} steps within {limit:.0f} s")
            raise Failed(f"exit status {ended}: {(text.strip().splitlines() or ['no output'])[-1][:200]}")
        return Measured(records, watch.most, start if start is not None else time.monotonic() - began)

    def torch(self, *arguments, limit=120):
        done = self.runner.run([sys.executable, TORCH, *map(str, arguments)], limit, separate=True, plain=True)
        if done.status != 0:
            raise Failed(f"torch_gpt2.py {arguments[0]}: exit status {done.status}; see speed.log")
        return json.loads(done.out.strip().splitlines()[-1])

    def best(self, model):
        if model not in self.found:
            raise Failed("there is no rate to hold it against")
        return self.found[model]

    # --- figures ---------------------------------------------------------------------------------------------------

    def peak_tflops(self):
        return next((peak for name, peak in PEAK_TFLOPS.items() if name in self.gpu.name.split()), None)

    def utilisation(self, model, rate):
        peak, name = self.peak_tflops(), f"{model}: model FLOP utilisation"
        if peak:
            self.figure(name, 100e-12 * rate * flops_per_token(MODELS[model]) / peak,
                        note=f"of {peak} TFLOP/s; {flops_per_token(MODELS[model]) / 1e6:.0f} MFLOP a token: 6N + 12LCT")
        else:
            self.skip(name, f"the peak of {self.gpu.name} is not known here")

    def try_micro(self, model, micro):
        """Whether this b is better than those before."""
        try:
            measured = self.train(model, micro)
        except (Failed, OutOfTime) as why:
            outcome = "fail" if isinstance(why, Failed) else "skip"
            self.results.add("speed", f"{model}, bf16, b = {micro}", outcome, note=str(why))
            return False
        rate = SIZES[model].sequences * models.CONTEXT / measured.seconds
        self.figure(f"{model}, bf16, b = {micro}", rate, "tokens/s",
                    f"{1e3 * measured.seconds:.0f} ms a step, {measured.memory} MiB, first step after {measured.start:.1f} s")
        if model in self.found and self.found[model].rate >= rate:
            return False
        self.found[model] = Best(micro, measured, rate)
        return True

    def train_model(self, model):
        """At several b; the best is what others are held against."""
        ladder = [micro for micro in LADDER if micro <= SIZES[model].sequences]
        at = ladder.index(FIRST)
        self.try_micro(model, ladder[at])
        for micro in ladder[at + 1:]:
            if not self.try_micro(model, micro):
                break
        if model not in self.found or self.found[model].micro == FIRST:
            self.try_micro(model, ladder[at - 1])
        if model not in self.found:
            raise Failed("no b worked")
        best = self.found[model]
        note = "every block recomputed" if SIZES[model].settings else ""
        self.figure(f"{model}: best b", best.micro)
        self.figure(f"{model}: tokens a second", best.rate, note=note)
        self.utilisation(model, best.rate)
        self.figure(f"{model}: peak memory", best.measured.memory)
        self.figure(f"{model}: start, initial weights included", best.measured.start, "s")

    def against_torch(self, model):
        best, size = self.best(model), SIZES[model]
        recompute = ["--recompute"] if size.settings else []
        peer = self.torch("train", "--model", model, "--micro", best.micro, "--accumulate", size.sequences // best.micro,
                          "--steps", size.steps, "--data", self.tokens, *recompute, limit=150)
        self.figure(f"{model}: PyTorch {peer['version']}, b = {best.micro}", peer["tokens_per_second"], "tokens/s",
                    f"compiled in {peer['compile_seconds']:.0f} s, {peer['memory_mib']} MiB")
        self.figure(f"{model}: gaccd / PyTorch", best.rate / peer["tokens_per_second"])

    def beside_products(self, model):
        best, size = self.best(model), SIZES[model]
        recompute = ["--recompute"] if size.settings else []
        roof = self.torch("roof", "--model", model, "--micro", best.micro, *recompute)
        products, attention = (100 * size.sequences / best.micro * roof[what] / best.measured.seconds
                               for what in ("products_seconds", "attention_seconds"))
        self.figure(f"{model}: matrix-product roof", roof["tflops"], "TFLOP/s", "cuBLAS at the model's shapes, in PyTorch")
        self.figure(f"{model}: of the matrix-product roof",
                    1e-10 * best.rate * flops_per_token(MODELS[model]) / roof["tflops"], "%")
        self.figure(f"{model}: share that is no product of weights", 100 - products,
                    note=f"PyTorch's flash attention would be {attention:.0f} %")

    def half_precision(self):
        best = self.best("124M")
        half = self.train("124M", best.micro, settings={"precision.compute": "fp16"})
        skipped = sum(record["verdict"] == "skip" for record in half.records)
        self.figure("124M: fp16 with scaling / bf16", best.measured.seconds / half.seconds,
                    note=f"{skipped} of {len(half.records)} steps skipped")

    def small_micro_batch(self):
        best, small = self.best("124M"), self.train("124M", SMALL_MICRO, limit=60)
        rate = SIZES["124M"].sequences * models.CONTEXT / small.seconds
        self.figure("124M: b = 4 / best b", rate / best.rate, note=f"{rate:,.0f} tokens/s")

    def program(self, name, *before, arguments=(), limit=60):
        """What a program of tests/bench says of the GPU backend."""
        done = self.runner.run([*before, os.path.join(self.build, "tests", name), module_file(self.build), *arguments], limit,
                               separate=True)
        if done.status != 0:
            raise Failed(f"tests/{name}: exit status {done.status}; see speed.log")
        return json.loads(done.out)

    def update(self):
        found = self.program("update")
        self.figure("copy within the GPU's memory", 1e-12 * found["copy_bytes_per_second"], "TB/s", "bytes read and written")
        self.figure("124M: found_inf, clip, update / moving their bytes", found["ratio"],
                    note=f"{1e3 * found['seconds']:.2f} ms, {1e-9 * found['bytes']:.2f} GB")

    def beside_micro_batches(self):
        one, four = (self.train("124M", SMALL_MICRO, sequences=SMALL_MICRO * k, steps=20, limit=60).seconds for k in (1, 4))
        self.figure("124M: a step beside its micro-batches", 1e3 * (one - (four - one) / 3), "ms",
                    "from steps of 1 and 4 micro-batches of 4; the coordinator's decision included")

    def buckets(self):
        """Between as many GPUs as there are. One alone shows what the calls cost, not how a link is kept busy."""
        ranks = count_gpus()
        found = self.program("buckets", *(["mpirun", "-n", str(ranks)] if ranks > 1 else []))
        for row in found["buckets"]:
            self.figure(f"buckets: {row['count']} on {ranks} GPU{'s' * (ranks > 1)}", 1e3 * row["seconds"], "ms",
                        f"{2**-20 * 4 * row['elements']:.1f} MiB of gradients each; one alone {1e3 * row['exposed']:.2f} ms")
        cheapest = min(found["buckets"], key=lambda row: row["seconds"])
        eight = next(row for row in found["buckets"] if row["count"] == BUCKETS)
        self.figure("buckets: eight / the cheapest number", eight["seconds"] / cheapest["seconds"],
                    note=f"{cheapest['count']} are the cheapest; {found['transport']}")


# (what, seconds that it is planned to take on an H200, in the order of what matters most, work). The last is for a run that was
# quicker than planned.
PLAN = (
    ("124M", 45, lambda bench: bench.train_model("124M")),
    ("124M: PyTorch", 80, lambda bench: bench.against_torch("124M")),
    ("124M: products", 20, lambda bench: bench.beside_products("124M")),
    ("1558M", 60, lambda bench: bench.train_model("1558M")),
    ("1558M: products", 20, lambda bench: bench.beside_products("1558M")),
    ("124M: b = 4", 14, Bench.small_micro_batch),
    ("124M: update", 8, Bench.update),
    ("124M: fp16", 14, Bench.half_precision),
    ("buckets", 12, Bench.buckets),
    ("124M: once a step", 18, Bench.beside_micro_batches),
    ("1558M: PyTorch", 120, lambda bench: bench.against_torch("1558M")),
)
SECONDS = sum(seconds for _, seconds, _ in PLAN[:-1])


def measure(runner, results, build, gpu, work):
    """In the order of the plan. What fails or has no time says so, and the next is tried: less than half of the time that
    something is planned to take is left to others."""
    bench = Bench(runner, results, build, gpu, work)
    for name, seconds, part in PLAN:
        left = runner.clock.left()
        if left < seconds / 2:
            results.add("speed", name, "skip", note=f"left out: it takes {seconds} s, and {left:.0f} were left")
        else:
            attempt(results, "speed", name, part, bench)
    taken = {row["name"] for row in results.rows}
    for name in ASKED:
        if name not in taken:
            bench.skip(name, "not measured; why stands above")
