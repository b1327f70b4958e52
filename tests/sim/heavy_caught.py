"""What a window must not do is noticed when it does it: a host that waits in it, one collective more. Each is built into a module of
its own, as edges.py does, and test_windows.py must fail there, where it says so."""
import os
import subprocess
import sys
import tempfile

import edges
import harness

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.join(os.environ["GACC_BUILD"], "..", "..", "..")  # of build/tests/sim/program
REDUCTION = """ncclReduceScatter(at(gradients, parts[0].begin, wide_type), shard, part_elements(parts),
                      nccl_type(wide_type), ncclSum, nccl->nccl, nccl->stream);
    """
CAUGHT = {
    "a host that waits for the device with every upload": (
        edges.CUDA, edges.in_function("static void cuda_upload", "struct cuda *cuda = cuda_enter(kernels);",
                                      "struct cuda *cuda = cuda_enter(kernels);\n    cudaStreamSynchronize(cuda->stream);"),
        "test_the_host_waits_once_a_step_however_long_the_window"),
    "one reduce-scatter more": (
        edges.NCCL, edges.in_function("static int reduce_scatter_exact", "return settle(", REDUCTION + "return settle("),
        "test_collectives_are_as_many_as_buckets_and_come_last"),
}


class Caught(harness.Scenario):
    def test_each_is_noticed_where_it_is_looked_for(self):
        for name, (source, change, test) in CAUGHT.items():
            with self.subTest(name), tempfile.TemporaryDirectory(prefix="gacc-caught-") as directory:
                program = edges.Modules(os.path.abspath(BUILD), directory).without(source, change)
                build = os.path.dirname(os.path.dirname(program))
                for changed in (build, os.environ["GACC_BUILD"]):
                    done = subprocess.run([sys.executable, os.path.join(HERE, "test_windows.py"), f"Windows.{test}"], cwd=HERE,
                                          env=dict(os.environ, GACC_BUILD=changed), capture_output=True, text=True)
                    self.assertEqual("FAIL" in done.stderr, changed == build, done.stderr)


if __name__ == "__main__":
    harness.main()
