"""Data that changes under a job, memory that is too small, and numbers at the edge: one line, in order, with the culprit."""
import json
import os
import time

import faults
import harness


class DataWhileTraining(faults.Faults):
    def change(self, job, path, act, *words, ranks=2, status=65):
        """Trains until step 3, acts on the file, and expects the end."""
        running = self.start(job, ranks=ranks, output=f"run{ranks}").until_step(3)
        act(os.path.join(self.directory, path))
        done = self.ended(running, time.monotonic())
        self.check_line(done, status, path, *words)
        self.check_result(status, path, f"run{ranks}")
        self.assertGreaterEqual(self.result(f"run{ranks}")["optimizer_steps"], 3)

    def test_a_file_that_is_cut_short(self):
        for ranks in (2, 0):
            self.change(self.gpt(steps=faults.FOREVER), "text.txt", lambda path: os.truncate(path, 0),
                        "wanted 33 bytes", "when the job started", ranks=ranks)

    def test_validation_data_that_is_cut_short(self):
        job = self.gpt(steps=faults.FOREVER, evaluation={"every": 2})
        job["data"]["validation"] = "validation.txt"
        for ranks in (2, 0):
            self.write("validation.txt", "x" * 10000)
            self.change(job, "validation.txt", lambda path: os.truncate(path, 50), "when the job started", ranks=ranks)

    def test_tokens_that_turn_bad(self):
        job = self.gpt(steps=faults.FOREVER)
        job["data"] = {"format": "u16", "train": "tokens.bin"}
        job["model"]["vocab"] = 64

        def overwrite(path):
            with open(path, "r+b") as file:
                file.write(b"\xff" * 40000)

        self.write("tokens.bin", bytes(40000))
        self.change(job, "tokens.bin", overwrite, "is 65535, wanted 0…63")

    def test_a_file_that_is_replaced_or_removed_is_read_as_it_was(self):
        for act in (os.unlink, lambda path: os.replace(self.write("other", b"\xff" * 100), path)):
            running = self.start(self.gpt(steps=60), arguments=["--resume", "never"]).until_step(3)
            act(os.path.join(self.directory, "text.txt"))
            self.assertEqual(running.wait().status, 0)

    def test_weights_that_sum_beyond_a_double(self):
        job = self.tape()
        self.write("tape.csv", "weight,g0,g1\n1e308,1,1\n1e308,1,1\n")
        self.check_line(self.run_job(job), 65, "tape.csv:2", "1e+308")
        self.check_result(65, "tape.csv:2")

    def test_too_little_memory_is_named(self):
        self.write("job.yaml", json.dumps(self.gpt()))
        if harness.SANITIZER:
            self.skipTest("a sanitizer needs more address space than the limit")
        large = "--set model.width=1024 --set model.layers=12"
        for command in (f"JOB {large}", f"mpirun -n 1 JOB {large} : -n 1 bash -c 'ulimit -v 900000; exec JOB {large}'"):
            if "mpirun" not in command:
                command = f"ulimit -v 900000; {command}"
            done = self.shell(f"rm -rf run; {command}", env=dict(self.environment, OPENBLAS_NUM_THREADS="1"))
            self.check_line(done, 70, "out of memory for the parameters: 577.7 MiB, and of 878.9 MiB ")
            self.check_result(70, "out of memory")

    def test_a_learning_rate_of_1e30_ends_with_the_tensor(self):
        for compute in ("fp32", "bf16"):
            done = self.run_job(self.gpt(steps=50), output=compute, arguments=[
                "--set", "optimizer.lr=1e30", "--set", f"precision.compute={compute}"])
            self.check_line(done, 76, "3 steps in a row", "tensor wte.weight", "micro-batch")
            self.assertEqual(self.result(compute)["skipped_steps"], 3)

    def test_a_healthy_model_in_fp16_never_skips_at_2_to_15(self):
        done = self.run_job(self.gpt(steps=30), arguments=[
            "--set", "precision.compute=fp16", "--set", "precision.loss_scale.initial=32768"])
        self.assertEqual((done.status, self.result()["skipped_steps"]), (0, 0), done.err)

    def test_numbers_beyond_the_compute_type(self):
        job = self.gpt(steps=5)
        job.update(model={"type": "mlp", "inputs": 2, "hidden": [4], "outputs": 1, "loss": "mse"},
                   data={"format": "csv", "train": "large.csv"}, optimizer={"type": "sgd", "lr": 0.01},
                   batch={"global": 2, "micro": 1})
        self.write("large.csv", "x0,x1,y0\n" + 4 * "1e308,1e308,-1e308\n")
        for compute in ("fp32", "fp16", "bf16", "fp64"):
            done = self.run_job(job, output=compute, arguments=["--set", f"precision.compute={compute}"])
            self.check_line(done, 76, "tensor layers.0.weight, micro-batch 0")


if __name__ == "__main__":
    harness.main()
