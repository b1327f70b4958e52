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

from machine import HERE, ROOT, Failed, MemoryWatch, OutOfTime, attempt, module_file
from models import CONTEXT, MODELS, PEAK_TFLOPS, VOCAB, flops_per_token

JOB = os.path.join(ROOT, "deploy", "jobs", "gpt2-124m.yaml")
TORCH = os.path.join(HERE, "torch_gpt2.py")
SEQUENCES = 512  # B: half a million tokens a step
WARMUP, STEPS = 2, 5
CANDIDATES = (32, 64, 16)  # b
LARGE_MICRO, LARGE_SEQUENCES = 32, 64
TOKENS = (WARMUP + STEPS + 1) * SEQUENCES * CONTEXT


def write_tokens(path):
    """Some millions of tokens, some frequent and most rare, as in a text."""
    source = random.Random(1)
    weights = [1 / (rank + 3) for rank in range(VOCAB)]
    block = source.choices(range(VOCAB), weights, k=1 << 20)
    with open(path, "wb") as file:
        for _ in range(TOKENS // len(block) + 1):
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


def log_steps(output):
    try:
        with open(os.path.join(output, "log.jsonl")) as file:
            lines = file.read().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [record for record in map(json.loads, lines) if record["type"] == "step"]


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
        self.best = None
        self.roofs = {}

    def figure(self, name, value, unit="", goal=None, note=""):
        self.results.add("speed", name, "figure", value, unit, goal, note)

    def skip(self, name, why):
        self.results.add("speed", name, "skip", note=why)

    # --- running ---------------------------------------------------------------------------------------------------

    def gaccd_steps(self, micro, sequences=SEQUENCES, steps=STEPS, limit=90, settings=()):
        """(seconds of a step: the median, MiB of GPU memory, the records). The job is interrupted once it has made its steps:
        what is written at its end is no part of this."""
        output = os.path.join(self.directory, "run")
        shutil.rmtree(output, ignore_errors=True)
        wanted = {"batch.global": sequences, "batch.micro": micro, "evaluation.every": 0, "checkpoint.every": 0,
                  "job.steps": 1000000, "schedule.warmup": 100, **dict(settings)}
        command = [self.gaccd, JOB, "--device", "cuda", "--output", output, "--resume", "never", *set_options(wanted)]
        limit, over = self.runner.clock.limit(limit)
        log = self.runner.log
        log.write(f"\n$ {' '.join(command)}\n")
        log.flush()
        end = time.monotonic() + limit
        said = os.path.join(self.directory, "stderr")
        with MemoryWatch() as watch, open(said, "w") as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err, start_new_session=True,
                                       env=dict(self.runner.environment, GACC_TOKENS=self.directory))
            while process.poll() is None and len(log_steps(output)) < WARMUP + steps and time.monotonic() < end:
                time.sleep(0.1)
            ended = process.poll()
            stop(process)
        with open(said) as err:
            text = err.read()
        log.write(text)
        records = log_steps(output)[WARMUP:WARMUP + steps]
        if len(records) < steps:
            if ended is None:
                raise over(f"b = {micro}: {len(records)} of {steps} steps within {limit:.0f} s")
            raise Failed(f"exit status {ended}: {(text.strip().splitlines() or ['no output'])[-1][:200]}")
        return statistics.median(record["seconds"]["since_last_step"] for record in records), watch.most, records

    def torch(self, *arguments, limit=120):
        done = self.runner.run([sys.executable, TORCH, *map(str, arguments)], limit, separate=True, plain=True)
        if done.status != 0:
            raise Failed(f"torch_gpt2.py {arguments[0]}: exit status {done.status}; see speed.log")
        return json.loads(done.out.strip().splitlines()[-1])

    def roof(self, model, micro):
        if (model, micro) not in self.roofs:
            self.roofs[model, micro] = self.torch("roof", "--model", model, "--micro", micro)
        return self.roofs[model, micro]

    # --- figures ---------------------------------------------------------------------------------------------------

    def peak_tflops(self):
        return next((peak for name, peak in PEAK_TFLOPS.items() if name in self.gpu.name.split()), None)

    def utilisation(self, model, rate, goal=None):
        peak = self.peak_tflops()
        if peak:
            self.figure(f"{model}: model FLOP utilisation", 100e-12 * rate * flops_per_token(MODELS[model]) / peak, "%", goal,
                        f"of {peak} TFLOP/s; {flops_per_token(MODELS[model]) / 1e6:.0f} MFLOP a token: 6N + 12LCT")
        else:
            self.skip(f"{model}: model FLOP utilisation", f"the peak of {self.gpu.name} is not known here")

    def small_model(self):
        """124M at several b; the best is what others are held against."""
        found = {}
        for micro in CANDIDATES:
            try:
                seconds, memory, _ = self.gaccd_steps(micro)
            except (Failed, OutOfTime) as why:
                outcome = "fail" if isinstance(why, Failed) else "skip"
                self.results.add("speed", f"124M, bf16, b = {micro}", outcome, note=str(why))
                continue
            found[micro] = (SEQUENCES * CONTEXT / seconds, seconds, memory)
            self.figure(f"124M, bf16, b = {micro}", found[micro][0], "tokens/s",
                        note=f"{1e3 * seconds:.0f} ms a step, {memory} MiB")
        if not found:
            raise Failed("no b worked")
        micro = max(found, key=lambda one: found[one][0])
        rate, seconds, memory = found[micro]
        self.best = {"micro": micro, "rate": rate, "seconds": seconds}
        self.figure("124M: best b", micro)
        self.figure("124M: tokens a second", rate, "tokens/s", [">=", 500e3])
        self.utilisation("124M", rate, [">=", 42])
        self.figure("124M: peak memory", memory, "MiB")

    def needs_best(self):
        if not self.best:
            raise Failed("there is no rate to hold it against")

    def against_torch(self):
        self.needs_best()
        micro = self.best["micro"]
        peer = self.torch("train", "--micro", micro, "--accumulate", SEQUENCES // micro, "--steps", STEPS, "--data", self.tokens)
        self.figure(f"PyTorch {peer['version']}, b = {micro}", peer["tokens_per_second"], "tokens/s",
                    note=f"compiled in {peer['compile_seconds']:.0f} s, {peer['memory_mib']} MiB")
        self.figure("124M: gaccd / PyTorch", self.best["rate"] / peer["tokens_per_second"], "", [">=", 1.15])

    def beside_products(self):
        self.needs_best()
        roof = self.roof("124M", self.best["micro"])
        products, attention = (100 * SEQUENCES / self.best["micro"] * roof[what] / self.best["seconds"]
                               for what in ("products_seconds", "attention_seconds"))
        self.figure("124M: matrix-product roof", roof["tflops"], "TFLOP/s", note="cuBLAS at the model's shapes, in PyTorch")
        self.figure("124M: share that is no product of weights", 100 - products, "%",
                    note=f"PyTorch's flash attention would be {attention:.0f} %")

    def half_precision(self):
        self.needs_best()
        seconds, _, records = self.gaccd_steps(self.best["micro"], settings={"precision.compute": "fp16"})
        self.figure("124M: fp16 with scaling / bf16", self.best["seconds"] / seconds, "", [">=", 0.97],
                    f"{sum(record['verdict'] == 'skip' for record in records)} of {len(records)} steps skipped")

    def small_micro_batch(self):
        self.needs_best()
        seconds, _, _ = self.gaccd_steps(4, limit=60)
        rate = SEQUENCES * CONTEXT / seconds
        self.figure("124M: b = 4 / best b", rate / self.best["rate"], "", [">=", 0.7], f"{rate:,.0f} tokens/s")

    def once_a_step(self):
        """The kernels of the update against moving their bytes, and all that a step takes beside its micro-batches."""
        done = self.runner.run([os.path.join(self.build, "tests", "update"), module_file(self.build)], 60, separate=True)
        if done.status != 0:
            raise Failed(f"tests/update: exit status {done.status}; see speed.log")
        found = json.loads(done.out)
        self.figure("copy within the GPU's memory", 1e-12 * found["copy_bytes_per_second"], "TB/s", note="bytes read and written")
        self.figure("124M: found_inf, clip, update / moving their bytes", found["ratio"], "", ["<=", 1.2],
                    f"{1e3 * found['seconds']:.2f} ms, {1e-9 * found['bytes']:.2f} GB")
        one, four = (self.gaccd_steps(4, sequences=4 * k, steps=20, limit=60)[0] for k in (1, 4))
        self.figure("124M: a step beside its micro-batches", 1e3 * (one - (four - one) / 3), "ms",
                    note="from steps of 1 and 4 micro-batches of 4; the coordinator's decision included")

    def large_model(self):
        settings = {f"model.{key}": value for key, value in MODELS["1558M"].items()}
        settings["recompute"] = "block"
        seconds, memory, _ = self.gaccd_steps(LARGE_MICRO, sequences=LARGE_SEQUENCES, steps=3, limit=90, settings=settings)
        rate = LARGE_SEQUENCES * CONTEXT / seconds
        self.figure("1558M: tokens a second", rate, "tokens/s", note=f"b = {LARGE_MICRO}, every block recomputed")
        self.utilisation("1558M", rate)
        self.figure("1558M: peak memory", memory, "MiB")
        roof = self.roof("1558M", LARGE_MICRO)
        self.figure("1558M: matrix-product roof", roof["tflops"], "TFLOP/s")
        self.figure("1558M: of that roof", 1e-10 * rate * flops_per_token(MODELS["1558M"]) / roof["tflops"], "%", [">=", 57])


def measure(runner, results, build, gpu, work):
    """In the order of what matters most; a part that fails or has no time says so, and the next is tried."""
    bench = Bench(runner, results, build, gpu, work)
    for name, part in (("124M", bench.small_model), ("124M: PyTorch", bench.against_torch),
                       ("124M: products", bench.beside_products), ("124M: fp16", bench.half_precision),
                       ("124M: b = 4", bench.small_micro_batch), ("124M: once a step", bench.once_a_step),
                       ("1558M", bench.large_model)):
        attempt(results, "speed", name, part)
