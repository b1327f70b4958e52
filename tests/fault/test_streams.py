"""Standard streams that are closed, full or broken; limits on files and descriptors; job files that are no plain files."""
import json
import os

import faults
import harness


class Streams(faults.Faults):
    def setUp(self):
        super().setUp()
        self.write("job.yaml", json.dumps(self.tape()))

    def test_a_closed_stream_lends_its_number_to_nothing_else(self):
        for ranks in (0, 2):
            for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
                done = self.shell(f"rm -rf run; JOB {closed}", ranks)
                self.assertEqual((done.status, done.own_lines()), (0, []), closed)
                self.assertEqual(self.result()["optimizer_steps"], 5)

    def test_a_refusal_that_nobody_can_read_keeps_its_status(self):
        self.write("tape.csv", "x")
        for ranks in (0, 2):
            for stderr in ("2>&-", "2>/dev/full"):
                self.assertEqual(self.shell(f"JOB {stderr}", ranks).status, 65, stderr)
            done = self.shell("(sleep 0.1; JOB; echo $? >status) 2>&1 | true; until [ -s status ]; do sleep 0.05; done; cat status",
                              ranks)
            self.assertEqual(done.out, "65\n")
            self.check_result(65, "tape.csv")

    def test_output_that_cannot_be_written_is_74(self):
        for command in ("check job.yaml", "inspect tape.csv", "help", "--version"):
            done = self.shell(f"{harness.GACCD} {command} >/dev/full")
            self.assertEqual((done.status, done.err), (74, "gaccd: standard output: No space left on device\n"), command)

    def test_a_job_file_may_come_through_a_pipe(self):
        done = self.shell(f"{harness.GACCD} check <(sleep 0.2; cat job.yaml)")
        self.assertEqual((done.status, done.err), (0, ""))

    def test_a_fifo_is_not_waited_for(self):
        os.mkfifo(os.path.join(self.directory, "fifo"))
        self.check_line(self.run_job("fifo", ranks=0, limit=10), 78, "fifo:1:1")
        os.makedirs(os.path.join(self.directory, "run"))
        os.mkfifo(os.path.join(self.directory, "run", "result.json"))
        self.assertEqual(self.run_job("job.yaml", ranks=0, limit=10).status, 0)

    def test_few_descriptors(self):
        for few in range(5, 30, 2):
            done = self.shell(f"rm -rf run; ulimit -n {few}; JOB")
            self.assertIn(done.status, (0, 69, 70, 74), few)
            self.assertEqual(len(done.own_lines()), done.status != 0, done.err)
            self.check_nothing_is_left()

    def test_few_descriptors_of_the_ranks(self):
        done = self.shell("mpirun -n 2 bash -c 'ulimit -n 20; exec JOB'")
        self.check_line(done, 70, "rank 0", "open files")
        self.check_result(70, "open files")

    def test_a_limit_on_the_size_of_files(self):
        self.write("job.yaml", json.dumps(self.gpt(steps=30)))
        model = "rank 0: run/final/model.safetensors.tmp: File too large"
        for kib, words in ((1, "job.yaml: File too large"), (8, "log.jsonl"), (100, model)):
            done = self.shell(f"rm -rf run; mpirun -n 2 bash -c 'ulimit -f {kib}; exec JOB'")
            self.check_line(done, 74, words)
            self.check_result(74, words)


if __name__ == "__main__":
    harness.main()
