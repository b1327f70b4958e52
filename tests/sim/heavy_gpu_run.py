"""tests/gpu/run where simulated GPUs are the GPU: every job is trained and compared, and every figure is taken, with models of
fixture size. PyTorch, nvidia-smi and what counts the bytes of 124 M parameters are stood in for; nothing here is a speed."""
import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

import harness

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))
import correct  # noqa: E402
import machine  # noqa: E402
import models  # noqa: E402
import timings  # noqa: E402
from results import Results  # noqa: E402

BENCHES = os.path.join(os.environ["GACC_BUILD"], "..", "..")  # build/tests, of build/tests/sim/program
PEER = {"train": {"version": "2", "tokens_per_second": 100, "compile_seconds": 40, "memory_mib": 1000},
        "roof": {"tflops": 1e-3, "products_seconds": 0.001, "attention_seconds": 0.001}}
UPDATE = {"bytes": 3982073856, "seconds": 0.001, "copy_bytes_per_second": 4e12, "ratio": 1.0045}
program = timings.Bench.program


def small_jobs():
    for name, model, data, *rest in real_jobs():
        if model["type"] == "gpt":
            model = dict(model, width=16, heads=2, context=12)
        yield name, model, data, *rest


def small_verify(results, jobs, _):
    """Of the smallest job: sim_verify is about this."""
    real_verify(results, jobs, os.path.join(jobs.directory, "linear.yaml"))


real_jobs, real_verify = correct.jobs, correct.verify


def small_program(bench, name, *before, **_):
    return UPDATE if name == "update" else program(bench, name, "mpirun", "-n", "2", arguments=["5000"])


class Rehearsal(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="gacc-rehearsal-")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        self.build = os.path.join(self.directory, "build")
        os.makedirs(os.path.join(self.build, "tests"))
        os.symlink(os.path.join(os.environ["GACC_BUILD"], "daemon"), os.path.join(self.build, "daemon"))
        os.symlink(os.path.join(BENCHES, "buckets"), os.path.join(self.build, "tests", "buckets"))
        self.runner = machine.Runner(machine.Clock(600), machine.environment(None), os.path.join(self.directory, "log"))
        self.addCleanup(self.runner.log.close)
        self.gpu = machine.Gpu("NVIDIA H200", "9.0", "143771", "simulated")

    def measure(self, work):
        results = Results()
        with contextlib.redirect_stdout(io.StringIO()):
            work(self.runner, results, self.build, self.gpu, self.directory)
        return results

    def test_jobs_on_the_gpu_are_those_on_the_processor(self):
        with mock.patch.multiple(correct, jobs=small_jobs, verify=small_verify, kernel_tests=mock.DEFAULT, check_registers=mock.DEFAULT):
            results = self.measure(correct.check)
        self.assertEqual([row for row in results.rows if row["outcome"] != "pass"], [])
        self.assertEqual(len(results.rows), 5 * 3 + 3 + 1 + 1)

    def test_every_figure_is_taken(self):
        small = {"124M": {"layers": 2, "heads": 2, "width": 16}, "1558M": {"layers": 3, "heads": 2, "width": 16}}
        sizes = {"124M": timings.Size(32, 1, 2, {}), "1558M": timings.Size(16, 1, 2, {"recompute": "block"})}
        with mock.patch.multiple(models, CONTEXT=8, VOCAB=60), mock.patch.dict(models.MODELS, small), \
                mock.patch.dict(timings.SIZES, sizes), mock.patch.multiple(timings, LADDER=(4, 8, 16), FIRST=8), \
                mock.patch.multiple(timings.Bench, torch=lambda bench, what, *_, **__: PEER[what], program=small_program):
            results = self.measure(timings.measure)
        self.assertEqual([row for row in results.rows if row["outcome"] != "figure"], [])
        self.assertLessEqual(set(timings.ASKED), {row["name"] for row in results.rows})


if __name__ == "__main__":
    harness.main()
