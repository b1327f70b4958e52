"""What a job asks of the device in a window, on simulated GPUs: nothing that makes the host wait, and a fixed number of
collectives, none of them before the last micro-batch (D1, D2)."""
import collections
import glob
import os

import harness
import toys

BUCKETS = 8  # worker/comm_nccl.c cuts the parameters into eighths; 8 divides these models' parameters on two ranks


def calls(lines, name):
    return [at for at, line in enumerate(lines) if line.split()[0] == name]


class Windows(toys.Training):
    def trace(self, accumulate, ranks=1, steps=2, **keys):
        batch = 2 * accumulate * ranks
        job = toys.gpt(context=8, width=16, layers=2, batch=batch, micro=2, steps=steps, **keys)
        return self.trace_of(job, toys.tokens(8 * batch * steps + 1), ranks)

    def trace_of(self, job, data, ranks=1):
        """The calls of each process, and what the job left."""
        path = os.path.join(self.directory, f"trace{self.count}")
        self.environment["SIM_TRACE"] = path
        out = self.train(job, data, ranks)
        self.assertIn("simulated", out.header["device"])
        lines = []
        for name in sorted(glob.glob(path + ".*")):
            with open(name) as file:
                lines.append(file.read().splitlines())
        self.assertEqual(len(lines), ranks)
        return lines, out

    def test_the_host_waits_once_a_step_however_long_the_window(self):
        def waits(accumulate, steps):
            """By what the host waits; what it has to wait for is a copy to its own memory, which counts by itself."""
            (lines,), _ = self.trace(accumulate, steps=steps)
            return collections.Counter(line for line in lines if line.endswith("host-sync"))

        short = waits(1, 2)
        for accumulate in (2, 3, 9):
            self.assertEqual(waits(accumulate, 2), short)
        more = waits(3, 5) - short
        self.assertEqual(more, {"copy to pageable memory host-sync": 3, "cudaStreamSynchronize host-sync": 3})

    def test_statistics_of_micro_batches_are_read_once_a_step(self):
        """Of two norms; those that are over more than a micro-batch wait for each, there and back."""
        def waits(stats, accumulate, steps=2):
            model = {"type": "mlp", "inputs": 2, "hidden": [4, 3], "outputs": 1, "loss": "mse", "norm": "batch", "norm_stats": stats}
            job = toys.job_of(model, batch=4 * accumulate, micro=4, steps=steps, lr=0.01)
            rows = [(1, i % 5 - 2, i % 3, i % 7) for i in range(4 * accumulate * steps)]
            (lines,), _ = self.trace_of(job, rows)
            return lines.count("copy to pageable memory host-sync")

        for stats, a_step in (("frozen", 1), ("micro", 2)):
            with self.subTest(stats=stats):
                few = waits(stats, 3)
                self.assertEqual(waits(stats, 5), few)
                self.assertEqual(waits(stats, 3, steps=5) - few, 3 * a_step)
        for stats in ("sync", "window"):
            with self.subTest(stats=stats):
                self.assertEqual(waits(stats, 5) - waits(stats, 3), 2 * 2 * 2 * 2)  # steps, micro-batches, norms, ways

    def test_what_a_product_needs_is_made_at_its_first_call_and_memory_at_the_start(self):
        def made(steps):
            (lines,), _ = self.trace(3, steps=steps)
            names = collections.Counter(line.split()[0] for line in lines)
            return {name: count for name, count in names.items()
                    if name.endswith("Create") or name in ("cudaMalloc", "cudaHostAlloc", "cublasLtMatmulAlgoGetHeuristic")}

        few = made(2)
        self.assertLess(0, few["cublasLtMatmulDescCreate"])
        self.assertEqual(made(5), few)

    def test_every_state_of_a_step_is_a_range(self):
        self.environment["NVTX_INJECTION64_PATH"] = os.path.join(os.path.dirname(harness.BUILD), "sim_nvtx_notes.so")
        self.environment["NVTX_NOTES"] = os.path.join(self.directory, "notes")
        self.trace(2)
        with open(self.environment["NVTX_NOTES"]) as file:
            ranges = file.read().splitlines()
        step = "EnterStep MicroForward MicroBackward MicroForward MicroBackward MaybeOverflowSignal Reduce Unscale Clip StepOrSkip " \
               "UpdateScale ExitStep"
        self.assertEqual(ranges, 2 * step.split() + ["Finished"])

    def test_a_micro_batch_is_recorded_once_and_replayed(self):
        """Neither the first of a window, which waits for parameters, nor the last, beside which gradients are reduced."""
        for accumulate, replays in ((2, 0), (3, 1), (9, 7)):
            (lines,), out = self.trace(accumulate, steps=3)
            self.assertEqual(len(calls(lines, "cudaGraphLaunch")), 3 * replays)
            self.assertLessEqual(len(calls(lines, "cudaGraphInstantiate")), 1)
            self.assertEqual(out.verdicts(), "AAA")

    def test_images_and_critics_are_recorded_too(self):
        """And do not wait: twelve rows are two windows of three micro-batches, each with one that is replayed."""
        rows = [(row % 5, *[((row * 31 + i * 17) % 13 - 6) / 8 for i in range(40)], row % 2) for row in range(12)]
        cnn = {"type": "cnn", "image": [2, 4, 5], "channels": [3], "hidden": [4], "outputs": 2, "loss": "cross_entropy"}
        critic = {"type": "mlp", "inputs": 40, "hidden": [6], "outputs": 1, "activation": "tanh", "loss": "wasserstein"}
        for model in (cnn, {**critic, "penalty": {"lambda": 10}}):
            job = toys.job_of(model, batch=6, micro=2, steps=2, compute="bf16")
            (lines,), out = self.trace_of(job, rows)
            self.assertEqual(len(calls(lines, "cudaGraphLaunch")), 2)
            self.assertLessEqual(len(calls(lines, "cudaGraphInstantiate")), 1)
            self.assertEqual(out.verdicts(), "AA")

    def test_collectives_are_as_many_as_buckets_and_come_last(self):
        for accumulate in (1, 4):
            traces, out = self.trace(accumulate, ranks=2)
            self.assertEqual(out.header["parameters"] % (2 * BUCKETS), 0)
            self.assertEqual(out.column("collectives"), 2 * [{"reduce_scatter": BUCKETS, "all_gather": BUCKETS, "control": 0}])
            for lines in traces:
                reductions, gathers = calls(lines, "ncclReduceScatter"), calls(lines, "ncclAllGather")
                self.assertEqual((len(reductions), len(gathers)), (2 * BUCKETS, 2 * BUCKETS))
                replays = calls(lines, "cudaGraphLaunch")
                self.assertEqual(len(replays), 2 * max(accumulate - 2, 0))
                # step by step: all replays, all reductions, all gathers
                for step in range(2):
                    of_step = slice(step * BUCKETS, (step + 1) * BUCKETS)
                    here = replays[step * (len(replays) // 2) : (step + 1) * (len(replays) // 2)]
                    self.assertLess(max(here, default=-1), reductions[of_step][0])
                    self.assertLess(reductions[of_step][-1], gathers[of_step][0])
                    # the backward goes on between the first bucket's reduction and the last one's
                    self.assertTrue(any(reductions[of_step][0] < at < reductions[of_step][-1] for at in calls(lines, "cublasLtMatmul")))
                # the next forward begins before the last gather is waited for
                waits = [at for at in calls(lines, "cudaStreamWaitEvent") if gathers[BUCKETS - 1] < at < reductions[BUCKETS]]
                products = [at for at in calls(lines, "cublasLtMatmul") if gathers[BUCKETS - 1] < at]
                self.assertTrue(any(at > products[0] for at in waits))

    def test_gradients_that_travel_as_bf16_are_sent_and_received(self):
        traces, out = self.trace(2, ranks=2, precision_={"reduce": "bf16"})
        half = out.header["parameters"] // 2
        self.assertEqual(out.column("bytes"), 2 * [{"reduce_scatter": 2 * half, "all_gather": 4 * half}])
        for lines in traces:
            self.assertEqual(len(calls(lines, "ncclReduceScatter")), 0)
            self.assertEqual(len(calls(lines, "ncclSend")), 2 * BUCKETS)


if __name__ == "__main__":
    harness.main()
