"""Run directories that cannot be used, and disks that fill."""
import os
import shutil
import time

import faults
import harness


class Output(faults.Faults):
    def test_a_full_disk_has_room_for_the_result(self):
        for pages in range(2, 11):  # in turn no room for log.jsonl, its next lines, the model
            self.small_disk(f"{4 * pages}k")
            done = self.run_job(self.tape(steps=20), output="small/run")
            if done.status == 0:
                break
            self.check_line(done, 74, "No space left on device")
            self.check_result(74, "No space left on device", "small/run")
            names = os.listdir(os.path.join(self.directory, "small", "run"))
            self.assertFalse([name for name in names if name.endswith(".tmp")])
            self.call("umount", "-l", os.path.join(self.directory, "small"))
        self.assertGreater(pages, 3)
        self.assertEqual(done.status, 0)

    def test_a_disk_that_fills_while_training(self):
        self.small_disk("1m")
        job = self.start(self.gpt(steps=faults.FOREVER, checkpoint={"every": 0}), output="small/run").until_step(3)
        with open(os.path.join(self.directory, "small", "filler"), "wb", buffering=0) as filler:
            try:
                while filler.write(bytes(4096)):
                    pass
            except OSError:
                pass
            done = self.ended(job, time.monotonic(), harness.PROMPT + 1)  # mpirun may wait its two seconds
        self.check_line(done, 74, "small/run/log.jsonl", "No space left on device")
        self.check_result(74, "No space left on device", "small/run")

    def test_no_room_for_the_model(self):
        self.small_disk("100k")
        done = self.run_job(self.gpt(steps=5), output="small/run")
        self.check_line(done, 74, "gaccd: rank 0: small/run/final/model.safetensors.tmp")
        self.check_result(74, "rank 0: ", "small/run")
        self.assertEqual(self.result("small/run")["optimizer_steps"], 5)
        self.assertEqual(os.listdir(os.path.join(self.directory, "small", "run", "final")), [])

    def test_the_model_has_the_room_of_a_last_checkpoint_that_failed(self):
        """Which the coordinator removes while the ranks begin to write the model."""
        self.small_disk("350k")
        run = os.path.join(self.directory, "small", "run")
        for ranks in (0, 2, 0, 2):
            done = self.run_job(self.gpt(steps=4, checkpoint={"every": 4}), ranks=ranks, output="small/run")
            self.check_line(done, 0, "checkpoint step-00000004 failed: rank ", "No space left on device")
            self.assertEqual(sorted(os.listdir(os.path.join(run, "final"))), ["config.json", "model.safetensors"])
            shutil.rmtree(run)

    def test_a_read_only_file_system(self):
        self.small_disk("64k")
        self.call("mount", "-o", "remount,ro", os.path.join(self.directory, "small"))
        self.check_line(self.run_job(self.tape(), output="small/run"), 74, "job.output", "small/run", "Read-only file system")

    def test_the_longest_path(self):
        longest = 4096 - len("/final/model.safetensors.tmp") - 1
        names = "/".join(["y" * 99] * 40)
        for length, status in ((longest, 0), (longest + 1, 74)):
            done = self.run_job(self.tape(), ranks=0, output=names + "/" + "z" * (length - len(names) - 1))
            self.assertEqual(done.status, status, done.err)
        self.assertIn("job.output: the path is too long", done.err)

    def test_a_long_name_does_not_hide_the_reason(self):
        done = self.run_job(self.tape(), ranks=0, output="x" * 2000)
        self.check_line(done, 74, "job.output", "File name too long")

    def test_something_in_the_way(self):
        job = self.tape()
        self.write("file", "")
        for name, words in (("log.jsonl", "Is a directory"), ("result.json", "result.json: Is a directory"),
                            ("job.yaml", "run/job.yaml: Is a directory"), ("connection.json", "Is a directory"),
                            ("final/model.safetensors", "rank 0: run/final/model.safetensors: Is a directory")):
            os.makedirs(os.path.join(self.directory, "run", name))
            self.check_line(self.run_job(job, ranks=0), 74, name, words)
            shutil.rmtree(os.path.join(self.directory, "run"))
        os.makedirs(os.path.join(self.directory, "run"))
        self.write("run/final", "")
        self.check_line(self.run_job(job), 74, "run/final exists and is no directory")  # before it trains
        self.assertEqual(self.log(), [])

    def test_a_run_directory_that_is_removed(self):
        job = self.start(self.gpt(steps=3000, checkpoint={"every": 0})).until_step(3)
        shutil.rmtree(job.output)
        self.check_line(job.wait(60), 74, "run/final/model.safetensors.tmp: No such file or directory")


if __name__ == "__main__":
    harness.main()
