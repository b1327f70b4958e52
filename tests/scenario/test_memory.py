"""Memory depends on b, what a rank holds at a time, and not on B: more micro-batches take more time and nothing else (L2)."""
import os
import re
import signal

import harness
from memory import peak


class Memory(harness.Scenario):
    def setUp(self):
        """One core for all, so one thread a rank. OpenBLAS has a buffer for every product that is under way and packs the factors
        into whichever is free: with more threads it is chance how many buffers get to hold the largest factor. Micro-batches are
        of a size that makes 1 % (a third of a megabyte) more than the quarter of one by which MPI's own buffers differ with the
        ranks' pace.
        """
        super().setUp()
        allowed = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, allowed)
        os.sched_setaffinity(0, {min(allowed)})

    def peaks(self, micro, accumulate, ranks, compute="fp32"):
        """Of every rank, once it has run whole steps."""
        model = {"type": "gpt", "layers": 2, "heads": 4, "width": 64, "context": 64, "dropout": 0.1}
        batch = {"global": micro * accumulate * ranks, "micro": micro}
        job, text = harness.gpt(steps=10**9, model=model, batch=batch, precision={"compute": compute})
        self.write("text.txt", 16 * text)
        running = self.start(job, ranks, output=f"{micro}-{accumulate}-{ranks}-{compute}").until_step(2, limit=120)
        self.assertEqual(running.log("header")[0]["accumulate"], [accumulate] * ranks)
        pids = running.ranks()
        found = [peak(pids[rank]) for rank in range(ranks)]
        os.kill(pids[ranks - 1], signal.SIGKILL)
        running.wait()
        return found

    def check_same(self, found, wanted):
        for rank, (one, other) in enumerate(zip(found, wanted)):
            self.assertLess(abs(one / other - 1), 0.01, (rank, found, wanted))

    def test_sixteen_micro_batches_take_the_memory_of_one(self):
        one = self.peaks(micro=64, accumulate=1, ranks=1)
        self.check_same(self.peaks(micro=64, accumulate=16, ranks=1), one)
        twice = self.peaks(micro=128, accumulate=1, ranks=1)
        self.assertGreater(twice[0], 1.2 * one[0])  # b is what counts

    def test_on_two_ranks_in_fp16_too(self):
        one = self.peaks(micro=64, accumulate=1, ranks=2, compute="fp16")
        self.check_same(self.peaks(micro=64, accumulate=16, ranks=2, compute="fp16"), one)

    def test_a_job_on_the_processor_has_nothing_of_cuda_in_memory(self):
        """Neither ranks nor coordinator, whether the GPUs' module lies beside the program or not."""
        for device in ["cpu"] + ["auto"] * (not os.path.exists("/dev/nvidiactl")):
            job, text = harness.gpt(steps=10**9)
            self.write("text.txt", text)
            running = self.start(job, 2, ["--device", device], output=device).until_step(2)
            pids = [*running.ranks().values(), running.connection()["pid"]]
            for pid in pids:
                files = {os.path.basename(line.split()[-1]) for line in harness.read_proc(pid, "maps").splitlines()}
                self.assertIn("gaccd", files)
                self.assertEqual([name for name in files if re.match("gacc_cuda|libcuda|libcublas|libnccl", name)], [])
            os.kill(pids[0], signal.SIGTERM)
            self.assertEqual(running.wait().status, 75)


if __name__ == "__main__":
    harness.main()
