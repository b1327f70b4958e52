"""What goes wrong on GPUs, on simulated ones: devices that fail, are too small, shared or not there; peers and data that go."""
import os
import signal

import harness
import toys


class Faults(toys.Training):
    def job(self, steps=3, **keys):
        return toys.gpt(context=8, width=16, layers=2, batch=8, micro=2, steps=steps, **keys)

    def refused(self, status, words, ranks=2, **variables):
        self.environment.update(variables)
        out = self.train(self.job(), toys.tokens(8 * 24 + 1), ranks, expect=status)
        self.assertEqual(len(out.lines), 1, out.err)
        for word in words:
            self.assertIn(word, out.lines[0])
        self.assertEqual(out.result["exit"], status)
        return out

    def begin(self, ranks, output="run"):
        self.environment.pop("OMPI_MCA_odls_base_sigkill_timeout", None)  # who is left has a word to say
        self.write("data", toys.tokens(8 * 4000 + 1))
        job = self.job(steps=1000)
        job["data"]["train"] = "data"
        return self.start(job, ranks=ranks, output=output).until_step(2, limit=60)

    def test_a_device_that_fails_is_named_with_the_call(self):
        for ranks, name, call in ((1, "cudaLaunchKernel", 20), (1, "cudaMemcpyAsync", 20), (2, "cudaLaunchKernel", 100), (2, "cudaEventRecord", 3)):
            with self.subTest(ranks=ranks, name=name):
                out = self.refused(70, ["GPU ", "cudaErrorLaunchFailure"], ranks, SIM_FAIL=f"{name}:{call}:719")
                self.assertRegex(out.lines[0], "^gaccd: rank [01]: ")

    def test_memory_that_does_not_suffice_is_told_with_what_would(self):
        self.environment["SIM_MEMORY"] = str(52 << 20)
        job = toys.gpt(context=8, width=64, layers=2, batch=2048, micro=1024, steps=1)
        out = self.train(job, toys.tokens(8 * 2048 + 1), expect=70)
        self.assertRegex(out.lines[0], r"rank 0: out of memory for the activations of a micro-batch: .* MiB, and of 52.0 MiB .* are left; batch.micro: \d+ fits, 1024 does not")

    def test_without_a_device_the_reason_is_given(self):
        done = self.train(self.job(), toys.tokens(8 * 24 + 1), 1)
        self.assertIn("simulated", done.header["device"])
        self.refused(69, ["--device cuda: no GPU"], 1, SIM_DEVICES="0")

    def test_ranks_that_share_a_device_are_warned_of_and_do_the_same(self):
        own = self.train(self.job(), toys.tokens(8 * 24 + 1), 2)
        self.environment["SIM_DEVICES"] = "1"
        shared = self.train(self.job(), toys.tokens(8 * 24 + 1), 2)
        self.assertIn("warning: ranks 0 and 1 share a GPU", shared.err)
        self.assertIn("staged", str(shared.header["versions"]))
        self.assertIn("NCCL", str(own.header["versions"]))
        self.assert_close(shared.column("loss"), own.column("loss"))
        self.assert_close(shared.column("grad_norm"), own.column("grad_norm"), 1e-5)

    def test_a_rank_that_is_killed_ends_all(self):
        for silent in ("0", "1"):  # NCCL may never notice
            self.environment["SIM_NCCL_SILENT"] = silent
            job = self.begin(3, f"run{silent}")
            os.kill(job.ranks()[1], signal.SIGKILL)
            done = job.wait(harness.PROMPT + 3)
            self.assertNotEqual(done.status, 0)
            self.assertTrue(any("rank 1" in line for line in done.own_lines()), done.err)
            with open(os.path.join(job.output, "result.json")) as file:
                self.assertIn("rank 1", file.read())

    def test_data_that_cannot_be_read_end_all_in_order(self):
        job = self.begin(2)
        os.truncate(os.path.join(self.directory, "data"), 100)
        done = job.wait(harness.PROMPT + 3)
        self.assertEqual(done.status, 65, done.err)
        self.assertEqual(len(done.own_lines()), 1)
        self.assertIn("data", done.own_lines()[0])


if __name__ == "__main__":
    harness.main()
