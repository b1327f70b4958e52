"""Each way of going wrong: one line that names the thing, the right exit status, soon, and nothing left behind."""
import json
import os
import signal
import socket
import time

import harness


class ExitStatuses(harness.Scenario):
    def setUp(self):
        super().setUp()
        self.job, text = harness.tape()
        self.write("tape.csv", text)

    def check(self, done, status, *words):
        """One line of gaccd's own with these words in it."""
        self.assertEqual(done.status, status, done.err)
        lines = done.own_lines()
        self.assertEqual(len(lines), 1, done.err)
        for word in words:
            self.assertIn(word, lines[0])
        self.assertLess(done.seconds, harness.PROMPT + 1)  # a second of which mpirun takes to start
        self.assertEqual(done.out, "")

    def refused(self, status, *words, job=None, **how):
        """Refused on two ranks and on one alike."""
        for ranks in (2, 0):
            self.check(self.run_job(job or self.job, ranks=ranks, **how), status, *words)

    def test_done(self):
        for ranks in (0, 1, 2, 3):
            done = self.run_job(self.job, ranks=ranks, output=f"run{ranks}")
            self.assertEqual((done.status, done.out, done.own_lines()), (0, "", []), done.err)
            result = self.result(f"run{ranks}")
            self.assertEqual((result["status"], result["exit"], result["reason"], result["optimizer_steps"]),
                             ("done", 0, None, 5))
            self.assertEqual(sorted(os.listdir(os.path.join(self.directory, f"run{ranks}"))),
                             ["final", "job.yaml", "log.jsonl", "result.json"])
            kinds = [record["type"] for record in self.log(output=f"run{ranks}")]
            self.assertEqual(kinds, ["header"] + 5 * ["step"] + ["end"])

    # ---- command line ----

    def test_usage(self):
        for arguments, word in (((), "job file"), (("run",), "JOB.yaml"), (("--what", "job.yaml"), "--what"),
                                (("job.yaml", "--device", "tpu"), "tpu"), (("--output",), "--output: a value is wanted"),
                                (("--ouptut=x", "job.yaml"), "--ouptut: no such option; did you mean --output?"),
                                (("check", "--resume", "never", "job.yaml"), "--resume: no such option"),
                                (("check", "-x", "job.yaml"), "-x: no such option"),
                                (("train", "job.yaml"), "train: no such command; gaccd run JOB.yaml trains"),
                                (("chekc", "job.yaml"), "chekc: no such command; did you mean check?"),
                                (("tape.csv", "more"), "run: one word too many: more"),
                                (("check", "job.yaml", "more"), "check: one word too many: more")):
            done = self.call(harness.GACCD, *arguments)
            self.assertEqual((done.status, len(done.err.splitlines()), done.out), (64, 1, ""), done.err)
            self.assertIn(word, done.err)

    def test_what_this_version_does_not_offer(self):
        for word in ("bench",):
            done = self.call(harness.GACCD, word, "job.yaml")
            self.assertEqual((done.status, done.err), (64, f"gaccd: {word} is not offered by this version\n"))
        self.refused(69, "--device cuda: ", arguments=["--device", "cuda"])
        self.refused(66, "--resume: elsewhere/manifest.json", arguments=["--resume", "elsewhere"])

    def test_help_and_version_go_to_stdout(self):
        for word in ("help", "--help", "--version"):
            done = self.call(harness.GACCD, word)
            self.assertEqual((done.status, done.err), (0, ""))
            self.assertTrue(done.out.startswith("gaccd 0."))

    def test_check_prints_a_job_that_is_the_same_job(self):
        self.write("job.yaml", json.dumps(self.job))
        first = self.call(harness.GACCD, "check", "job.yaml", "-n", "2")
        self.assertEqual((first.status, first.err), (0, ""))
        self.write("again.yaml", first.out)
        second = self.call(harness.GACCD, "check", "again.yaml", "-n", "2")
        self.assertEqual(second.out, first.out)

    def test_inspect(self):
        done = self.call(harness.GACCD, "inspect", "tape.csv")
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertIn("csv", done.out)
        done = self.call(harness.GACCD, "inspect", "tape.csv", "--json")
        self.assertEqual((done.status, json.loads(done.out)["format"]), (0, "csv"))
        self.assertEqual(self.call(harness.GACCD, "inspect", "missing.csv").status, 66)

    # ---- the job file ----

    def test_a_missing_job_file(self):
        self.refused(66, "nowhere.yaml", job="nowhere.yaml")

    def test_a_wrong_key(self):
        self.write("bad.yaml", 'job: {name: x, steps: 5}\nbach: {global: 4}\n')
        self.refused(78, "bad.yaml:2:", "bach", "batch", job="bad.yaml")

    def test_a_wrong_type(self):
        self.refused(78, "batch.global", arguments=["--set", "batch.global=many"])

    def test_numbers_that_do_not_fit(self):
        self.check(self.run_job(self.job, ranks=5), 78, "job.yaml:1:", "batch.global: 4", "5")  # M < N
        self.check(self.run_job(self.job, ranks=2, arguments=["--set", "batch.micro=4"]), 78, "--set batch.micro: 4",
                   "fewer than 2 ranks: batch.micro 2 would do, or batch.global 8")
        self.refused(78, "batch.micro", "5", arguments=["--set", "batch.micro=5"])  # b > B

    # ---- data and output ----

    def test_missing_data(self):
        self.refused(66, "none.csv", arguments=["--set", "data.train=none.csv"])

    def test_bad_data_is_said_once(self):
        self.write("tape.csv", "weight,g0,g1\n1,2,3\n1,2\n")
        self.refused(65, "tape.csv", "3")
        self.assertEqual(self.result()["exit"], 65)

    def test_a_job_that_cannot_fill_a_step(self):
        self.refused(65, "5", "4", arguments=["--set", "batch.global=5", "--set", "batch.tail=drop"])

    def test_the_output_is_a_file(self):
        self.write("run", "")
        self.refused(74, "job.output", "run")

    def test_the_output_cannot_be_made(self):
        self.refused(74, "/proc/none", output="/proc/none")

    # ---- addresses ----

    def test_a_port_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.refused(69, "control.listen", f"tcp://127.0.0.1:{port}", "in use",
                         arguments=["--set", f"control.listen=tcp://127.0.0.1:{port}"])
            self.assertEqual(self.result()["exit"], 69)

    def test_a_socket_in_use_and_a_stale_one(self):
        path = os.path.join(self.directory, "s")
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind(path)
            taken.listen()
            self.refused(69, "control.listen", path, "in use", arguments=["--set", f"control.listen=unix:{path}"])
        self.assertTrue(os.path.exists(path))  # its owner is gone
        done = self.run_job(self.job, arguments=["--set", f"control.listen=unix:{path}"])
        self.assertEqual((done.status, done.own_lines()), (0, []), done.err)
        self.assertFalse(os.path.exists(path))

    # ---- launchers ----

    def test_a_launcher_of_another_mpi(self):
        for variables in ({"OMPI_COMM_WORLD_SIZE": "4"}, {"PMI_SIZE": "4", "PMI_RANK": "0"}):
            self.write("job.yaml", json.dumps(self.job))
            done = self.call(harness.GACCD, "job.yaml", "--output", "run", env=dict(self.environment, **variables))
            self.check(done, 69, "launcher says 4", "MPI says 1")
            self.assertIn("MPI says 1", self.result()["reason"])

    # ---- the same output again ----

    def test_a_finished_job_is_done_at_once(self):
        self.assertEqual(self.run_job(self.job).status, 0)
        log = self.log()
        for ranks in (2, 0):
            self.check(self.run_job(self.job, ranks=ranks), 0, "already finished")
        self.assertEqual(self.log(), log)

    def test_a_finished_output_is_kept_from_another_job(self):
        self.assertEqual(self.run_job(self.job).status, 0)
        self.refused(78, "run", "--resume never", arguments=["--set", "optimizer.lr=0.2"])
        done = self.run_job(self.job, arguments=["--set", "optimizer.lr=0.2", "--resume", "never"])
        self.assertEqual((done.status, len(self.log("header"))), (0, 2), done.err)

    def test_an_unfinished_job_begins_anew_with_a_new_header(self):
        job, text = harness.gpt(steps=20)
        self.write("text.txt", text)
        running = self.start(dict(job, job={"name": "gpt", "steps": 10**9}, checkpoint={"every": 0})).until_step(2)
        os.kill(running.ranks()[0], signal.SIGKILL)
        running.wait(20)
        self.assertEqual(self.run_job(job).status, 0)
        self.assertEqual(len(self.log("header")), 2)
        self.assertEqual(self.result()["optimizer_steps"], 20)

    def test_two_jobs_in_one_output(self):
        job, text = harness.gpt(steps=10**9)
        self.write("text.txt", text)
        first = self.start(job).until_step(1)
        self.refused(69, "run", str(first.connection()["pid"]), job=job)
        first.until_step(len(first.log("step")) + 2)  # undisturbed
        os.kill(first.ranks()[0], signal.SIGKILL)
        first.wait(20)

    # ---- while it trains ----

    def test_numerics(self):
        self.write("tape.csv", "weight,g0,g1\n" + 4 * "1,nan,1\n")
        for ranks in (2, 0):
            done = self.run_job(self.job, ranks=ranks)
            self.check(done, 76, "rank")
            self.assertEqual((self.result()["exit"], self.result()["skipped_steps"]), (76, 3))

    def test_a_norm_that_overflows_fp64(self):
        self.write("tape.csv", "weight,g0,g1\n" + 4 * "1,1e200,1\n")
        job = dict(self.job, precision={"compute": "fp64"})
        words = "every element of the gradient is finite, but the sum of their squares overflows fp64"
        self.check(self.run_job(job), 76, "the gradient's norm was not finite in 3 steps in a row", words)
        self.assertTrue(self.result()["reason"].endswith(words), self.result())
        self.assertEqual([event["text"] for event in self.log("event") if event["event"] == "nonfinite"],
                         [f"{words}, {i} in a row" for i in (1, 2, 3)])

    def test_a_norm_whose_square_adamw_cannot_hold(self):
        """Nothing of it reaches the moments: with a limit the same gradient is one like any other."""
        self.write("tape.csv", "weight,g0,g1\n" + 4 * "1,1e21,1\n")
        job = dict(self.job, optimizer={"type": "adamw", "lr": 0.1})
        words = "every element of the gradient is finite, but the square of its norm does not fit AdamW's second moment in fp32"
        self.check(self.run_job(job), 76, "the gradient's norm was not finite in 3 steps in a row", words)
        self.assertEqual([event["text"] for event in self.log("event") if event["event"] == "nonfinite"],
                         [f"{words}, {i} in a row" for i in (1, 2, 3)])
        job["optimizer"]["clip_norm"] = 1
        self.assertEqual(self.run_job(job, output="clipped").status, 0)
        self.assertEqual({record["verdict"] for record in self.log("step", "clipped")}, {"apply"})

    def test_a_data_file_that_fails_while_training(self):
        job, text = harness.gpt(steps=10**9)
        path = self.write("text.txt", text)
        running = self.start(job).until_step(3)
        os.truncate(path, 100)
        began = time.monotonic()
        done = running.wait(20)
        self.assertLess(time.monotonic() - began, harness.PROMPT)
        self.assertIn(done.status, (65, 74))
        self.assertEqual(len(done.own_lines()), 1, done.err)
        self.assertIn("text.txt", done.own_lines()[0])
        self.assertEqual(self.result()["exit"], done.status)

    def test_a_full_disk_under_the_log(self):
        if os.getuid() != 0:
            self.skipTest("mounting a small file system needs root")
        small = os.path.join(self.directory, "small")
        os.mkdir(small)
        mounted = self.call("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small)
        if mounted.status != 0:
            self.skipTest(f"mounting a small file system: {mounted.err.strip()}")
        self.addCleanup(self.call, "umount", small)
        done = self.run_job(dict(self.job, job={"name": "tape", "steps": 100000}), output="small/run")
        self.assertEqual(done.status, 74)
        self.assertEqual(len(done.own_lines()), 1, done.err)
        self.assertIn("log.jsonl", done.own_lines()[0])


if __name__ == "__main__":
    harness.main()
