"""tests/gpu/run where there is no GPU: its arguments, limits, comparisons and table, with a program that only writes a log."""
import contextlib
import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import correct
import machine
import models
import timings
from results import Results

RUN = os.path.join(machine.HERE, "run")
BUILD = os.environ.get("GACC_BUILD", os.path.join(machine.ROOT, "build"))

# A stand-in for gaccd: writes a step of 10 ms a micro-batch and 2 ms beside them until it is interrupted.
STAND_IN = """#!/usr/bin/env python3
import json, os, signal, sys, time
settings = dict(part.split("=") for part in sys.argv if "=" in part)
if settings["batch.micro"] == "{fails_at}" or ({too_large} and "recompute" in settings):
    sys.exit("gaccd: out of memory")
signal.signal(signal.SIGINT, lambda *_: sys.exit(70))
output = sys.argv[sys.argv.index("--output") + 1]
os.makedirs(output)
count = int(settings["batch.global"]) / int(settings["batch.micro"])
with open(os.path.join(output, "log.jsonl"), "a") as log:
    log.write(json.dumps({{"type": "header"}}) + "\\n")
for step in range(1000):
    with open(os.path.join(output, "log.jsonl"), "a") as log:
        log.write(json.dumps({{"type": "step", "verdict": "skip" if step < 2 else "apply",
                              "seconds": {{"since_last_step": 0.01 * count + 0.002}}}}) + "\\n")
    time.sleep(0.001)
"""
PEER = {"train": {"version": "2", "tokens_per_second": 80000, "compile_seconds": 40, "memory_mib": 1000},
        "roof": {"tflops": 700, "products_seconds": 0.005, "attention_seconds": 0.001}}
UPDATE = """#!/bin/sh
echo '{"parameters": 124439808, "bytes": 3982073856, "seconds": 0.001, "copy_bytes_per_second": 4e12, "ratio": 1.0045}'
"""
BUCKETS = """#!/bin/sh
echo '{"ranks": 1, "transport": "NCCL 2", "buckets": [{"count": 4, "elements": 1000, "seconds": 0.002, "exposed": 0.001},
    {"count": 8, "elements": 500, "seconds": 0.0021, "exposed": 0.0005}]}'
"""


def quiet():
    return contextlib.redirect_stdout(io.StringIO())


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="gacc-gpu-")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def runner(self, seconds=60):
        runner = machine.Runner(machine.Clock(seconds), machine.environment(None), self.path("log"))
        self.addCleanup(runner.log.close)
        return runner


class Program(Case):
    def test_unknown_parts_are_refused(self):
        done = subprocess.run([RUN, "--only", "bulid"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("'bulid'", done.stderr)

    def test_a_table_of_stored_results(self):
        results = Results(self.path("results.json"), {"gpu": "some"})
        with quiet():
            results.add("correct", "gpt", "pass")
            results.add("correct", "mlp", "fail", note="far off")
            results.add("speed", "ratio", "figure", 1.15, "", [">=", 1.15])
            results.add("speed", "tokens a second", "figure", 498765.4, "tokens/s", [">=", 500e3])
            results.add("speed", "moving", "figure", 1.2, "", ["<=", 1.2])
            results.add("speed", "1558M", "skip", note="no time is left")
        done = subprocess.run([RUN, "--table", self.path("results.json")], capture_output=True, text=True, check=True)
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(lines[0], ["gpu", "some"])
        self.assertIn(["speed", "tokens", "a", "second", "498,765", "tokens/s", ">=", "500,000", "NO"], lines)
        self.assertIn(["speed", "ratio", "1.15", ">=", "1.15", "yes"], lines)
        self.assertIn(["speed", "moving", "1.2", "<=", "1.2", "yes"], lines)
        self.assertIn(["correct", "mlp", "fail", "far", "off"], lines)
        self.assertEqual(done.stdout.splitlines()[-1], "1 passed, 1 failed, 1 skipped; 3 figures, 1 short of their goal")


class Limits(Case):
    def test_a_command_ends_at_its_limit_with_all_that_it_started(self):
        began = time.monotonic()
        with self.assertRaisesRegex(machine.TooSlow, "sh"):
            self.runner().run(["sh", "-c", f"(sleep 30; touch {self.path('late')}) & sleep 30"], 1)
        self.assertLess(time.monotonic() - began, 10)

    def test_what_others_brought_runs_without_the_packages(self):
        runner = self.runner()
        runner.environment["GACC_PACKED"] = "yes"
        said = [runner.run(["sh", "-c", "echo $GACC_PACKED"], 10, plain=plain).out for plain in (False, True)]
        self.assertEqual(said, ["yes\n", "\n"])

    def test_libraries_that_only_pytorch_has_are_linked_to(self):
        package = self.path("site/nvidia/nosuch")
        for name in ("include/nosuch.h", "lib/libnosuch.so.2"):
            os.makedirs(os.path.dirname(os.path.join(package, name)))
            open(os.path.join(package, name), "w").close()
        with mock.patch.object(machine, "FROM_PYTORCH", {"nosuch*.h": "libnosuch.so", "std*.h": "libm.so"}), \
                mock.patch.object(sys, "path", [self.path("site")]):
            machine.link_libraries(self.path("linked"))
        self.assertEqual(os.listdir(self.path("linked/include")), ["nosuch.h"])
        self.assertEqual(sorted(os.listdir(self.path("linked/lib"))), ["libnosuch.so", "libnosuch.so.2"])
        self.assertTrue(os.path.samefile(self.path("linked/lib/libnosuch.so"), os.path.join(package, "lib/libnosuch.so.2")))

    def test_no_command_starts_when_the_time_is_over(self):
        with self.assertRaises(machine.OutOfTime):
            self.runner(0).run(["touch", self.path("late")], 10)
        self.assertFalse(os.path.exists(self.path("late")))

    def test_the_end_of_all_is_no_fault_of_a_command(self):
        with self.assertRaises(machine.OutOfTime):
            self.runner(1.5).run(["sleep", "30"], 10)

    def test_a_part_that_breaks_costs_no_other(self):
        results = Results()
        with quiet(), contextlib.redirect_stderr(io.StringIO()):
            machine.attempt(results, "speed", "one", lambda: {}["there is none"])
            machine.attempt(results, "speed", "two", self.runner(0).run, ["true"], 1)
        self.assertEqual([(row["name"], row["outcome"]) for row in results.rows], [("one", "fail"), ("two", "skip")])

    def test_what_was_wrong_is_the_first_error(self):
        done = machine.Done(1, "a.c:1: error: no such thing\nmake: *** [all] Error 2\n", 0)
        self.assertEqual(done.why(), "a.c:1: error: no such thing")


class Trained:
    def __init__(self, offset, loss=1.0):
        self.weights, self.losses, self.norms = [1 + offset, 2 - offset], [loss, 0.5], [3.0]


class Comparisons(Case):
    def judge(self, got):
        results = Results()
        with quiet():
            correct.judge(results, "job", got, Trained(1e-4), Trained(0), Trained(0.5))
        return results.rows[0]["outcome"]

    def test_the_gpu_may_be_four_times_as_far_off_as_the_processor(self):
        self.assertEqual(self.judge(Trained(-3.9e-4)), "pass")
        self.assertEqual(self.judge(Trained(4.2e-4)), "fail")

    def test_losses_count_as_weights_do(self):
        self.assertEqual(self.judge(Trained(0, 1.001)), "fail")

    def test_what_is_not_finite_is_a_failure(self):
        self.assertEqual(self.judge(Trained(float("nan"))), "fail")
        self.assertEqual(self.judge(Trained(0, None)), "fail")

    def test_jobs_train_and_are_compared(self):
        """On the processor twice, so that only the harness and the jobs are tried."""
        jobs = correct.Jobs(self.runner(), os.path.join(BUILD, "daemon", "gaccd"), self.path("jobs"), "cpu")
        results = Results()
        for name, *rest in correct.jobs():
            path = correct.write_job(name, *rest, jobs.directory)
            if name in ("mlp", "tape"):
                with quiet():
                    correct.check_job(results, jobs, name, path)
            else:
                self.assertEqual(jobs.runner.run([jobs.gaccd, "check", path], 20, directory=jobs.directory).status, 0, name)
        self.assertEqual([row["outcome"] for row in results.rows], ["pass"] * 6, results.rows)


class Figures(Case):
    def test_parameters_and_operations_are_those_of_gpt_2(self):
        small, large = models.MODELS["124M"], models.MODELS["1558M"]
        self.assertEqual(models.parameters(small) + models.CONTEXT * 768, 124439808)
        self.assertEqual(models.parameters(large) + models.CONTEXT * 1600, 1557611200)
        self.assertEqual(models.flops_per_token(small), 6 * 123653376 + 12 * 12 * 768 * 1024)

    def test_products_are_six_operations_a_token_and_weight(self):
        flops = sum(2 * calls * m * n * k for _, m, n, k, calls in models.products(models.MODELS["124M"], 2))
        weights = 12 * 12 * 768 * 768 + 50304 * 768
        self.assertEqual(flops, 6 * weights * 2 * models.CONTEXT)

    def measure(self, too_large=False, fails_at=None, seconds=10 * timings.SECONDS):
        build = self.path("build")
        for name, text in (("daemon/gaccd", STAND_IN.format(too_large=too_large, fails_at=fails_at)), ("tests/update", UPDATE),
                           ("tests/buckets", BUCKETS)):
            program = os.path.join(build, name)
            os.makedirs(os.path.dirname(program), exist_ok=True)
            with open(program, "w") as file:
                file.write(text)
            os.chmod(program, 0o755)
        results = Results(self.path("results.json"))
        gpu = machine.Gpu("NVIDIA H200", "9.0", "143771", "580")
        with quiet(), mock.patch.object(timings, "write_tokens"), \
                mock.patch.object(timings.Bench, "torch", lambda self, what, *_, **__: PEER[what]):
            timings.measure(self.runner(seconds), results, build, gpu, self.directory)
        with open(self.path("results.json")) as file:
            self.assertEqual(json.load(file)["rows"], results.rows)
        return results

    def test_products_that_are_recomputed_count_again(self):
        def flops(recompute):
            return sum(2 * calls * m * n * k for _, m, n, k, calls in models.products(models.MODELS["1558M"], 2, recompute))

        self.assertEqual(flops(True) - flops(False), 2 * 47 * 8 * 1600 * 1600 * 2 * models.CONTEXT)

    def test_every_figure_is_taken(self):
        results = self.measure()
        self.assertEqual({row["outcome"] for row in results.rows}, {"figure"}, results.rows)
        self.assertLessEqual(set(timings.ASKED), {row["name"] for row in results.rows})
        for row in results.rows:
            self.assertEqual(row["goal"], timings.ASKED.get(row["name"], ("", None))[1])
        self.assertEqual(results.figure("124M: best b"), 128)
        rate = 512 * 1024 / (4 * 0.01 + 0.002)
        self.assertAlmostEqual(results.figure("124M: tokens a second"), rate)
        self.assertAlmostEqual(results.figure("124M: gaccd / PyTorch"), rate / 80000)
        self.assertAlmostEqual(results.figure("124M: model FLOP utilisation"), 100 * rate * 855166464 / 989e12)
        self.assertAlmostEqual(results.figure("124M: share that is no product of weights"), 100 * (1 - 4 * 0.005 / 0.042))
        notes = {row["name"]: row["note"] for row in results.rows}
        self.assertEqual(notes["124M: fp16 with scaling / bf16"], "0 of 5 steps skipped")
        self.assertAlmostEqual(results.figure("124M: b = 4 / best b"), 0.042 / (128 * 0.01 + 0.002))
        self.assertAlmostEqual(results.figure("124M: found_inf, clip, update / moving their bytes"), 1.0045)
        self.assertAlmostEqual(results.figure("124M: a step beside its micro-batches"), 2)
        self.assertEqual(results.figure("1558M: best b"), 64)  # as many as B
        rate = 64 * 1024 / 0.012
        self.assertAlmostEqual(results.figure("1558M: of the matrix-product roof"), 100 * rate * 10279555200 / 700e12)
        self.assertAlmostEqual(results.figure("1558M: share that is no product of weights"), 100 * (1 - 0.005 / 0.012))
        self.assertLess(results.figure("1558M: start, initial weights included"), 10)
        self.assertAlmostEqual(results.figure("buckets: eight / the cheapest number"), 1.05)

    def test_what_fails_is_told_and_the_rest_is_measured(self):
        results = self.measure(too_large=True, fails_at=64)
        told = {row["name"]: (row["outcome"], row["note"]) for row in results.rows if row["outcome"] == "fail"}
        self.assertEqual(told, {"124M, bf16, b = 64": ("fail", "exit status 1: gaccd: out of memory"),
                                "1558M, bf16, b = 32": ("fail", "exit status 1: gaccd: out of memory"),
                                "1558M, bf16, b = 64": ("fail", "exit status 1: gaccd: out of memory"),
                                "1558M, bf16, b = 16": ("fail", "exit status 1: gaccd: out of memory"),
                                "1558M": ("fail", "no b worked"),
                                "1558M: products": ("fail", "there is no rate to hold it against"),
                                "1558M: PyTorch": ("fail", "there is no rate to hold it against")})
        self.assertEqual(results.figure("124M: best b"), 32)
        missing = {row["name"] for row in results.rows if row["outcome"] == "skip"}
        self.assertEqual(missing, {name for name in timings.ASKED if name.startswith("1558M")})

    def test_what_there_was_no_time_for_is_named_with_its_goal(self):
        results = self.measure(seconds=30)
        outcomes = {row["name"]: row for row in results.rows}
        self.assertEqual(outcomes["124M: tokens a second"]["outcome"], "figure")
        self.assertRegex(outcomes["1558M: PyTorch"]["note"], r"^left out: it takes 120 s, and \d+ were left$")
        row = outcomes["1558M: gaccd / PyTorch"]
        self.assertEqual((row["outcome"], row["value"], row["goal"]), ("skip", None, [">=", 1.15]))
        self.assertIn(">= 1.15 ?", results.table())

    def test_the_plan_is_under_eight_minutes_and_passes_on_what_is_saved(self):
        run = runpy.run_path(RUN, run_name="run")
        self.assertLessEqual(sum(run["PLAN"].values()), 8 * 60 - 5)
        self.assertEqual(run["PLAN"]["speed"], sum(seconds for _, seconds, _ in timings.PLAN[:-1]))
        allowance = run["allowance"]
        self.assertEqual(allowance("correct", 8, 50), 65 + 60)
        self.assertEqual(allowance("correct", 8, 200), 65)
        self.assertEqual(allowance("speed", 4, 100), timings.SECONDS / 2)
        for name in run["describe_plan"]().split("speed: ")[1].split(", "):
            self.assertRegex(name, r"^\S.* \d+$")


if __name__ == "__main__":
    program = unittest.main(verbosity=2, exit=False)
    sys.exit(not program.result.wasSuccessful())
