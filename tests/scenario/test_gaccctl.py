"""gaccctl asks a running job and watches it; without a job it says so."""
import json
import os
import signal

import harness


class Gaccctl(harness.Scenario):
    def setUp(self):
        super().setUp()
        self.job, text = harness.gpt(steps=10**9)
        self.write("text.txt", text)

    def end(self, job):
        os.kill(job.ranks()[1], signal.SIGKILL)
        job.wait(20)

    def test_status_of_the_newest_run(self):
        job = self.start(self.job, output="runs/b").until_step(3)
        done = self.call(harness.GACCCTL, "status", "--json")
        self.assertEqual((done.status, done.err), (0, ""))
        status = json.loads(done.out)
        self.assertEqual((status["job"], status["output"], status["phase"]), ("gpt", "runs/b", "training"))
        self.assertEqual((status["effective_batch"], status["micro_batch"]), (8, 2))
        self.assertGreaterEqual(status["optimizer_steps"], 3)
        self.assertEqual([rank["pid"] for rank in status["ranks"]], [job.ranks()[0], job.ranks()[1]])
        self.assertIsNone(status["loss_scale"])
        people = self.call(harness.GACCCTL, "--run", "runs/b", "status").out
        self.assertIn("phase      training", people)
        self.end(job)

    def test_watching_from_the_first_step_gives_the_lines_of_the_log(self):
        short = dict(self.job, job={"name": "gpt", "steps": 200})
        job = self.start(short)
        harness.until(lambda: os.path.exists(os.path.join(job.output, "connection.json")), 10, "connection.json")
        done = self.call(harness.GACCCTL, "--run", "run", "watch", "--from", "1", "--json")
        self.assertEqual((done.status, done.err), (0, ""))
        job.wait()
        self.assertEqual([json.loads(line) for line in done.out.splitlines()], job.log("step"))
        self.assertEqual(len(job.log("step")), 200)

    def test_no_run(self):
        done = self.call(harness.GACCCTL, "status")
        self.assertEqual(done.status, 66)
        self.assertEqual(len(done.err.splitlines()), 1)

    def test_a_run_that_is_over(self):
        self.assertEqual(self.run_job(dict(self.job, job={"name": "gpt", "steps": 2})).status, 0)
        done = self.call(harness.GACCCTL, "--run", "run", "status")
        self.assertEqual(done.status, 69)
        self.assertEqual(done.err, "gaccctl: run: no job is running there; the last one is done after 2 steps\n")

    def test_what_is_not_offered_is_refused(self):
        for word in ("pause", "top", "nonsense"):
            done = self.call(harness.GACCCTL, word)
            self.assertEqual((done.status, len(done.err.splitlines())), (64, 1))

    def test_watching_shows_evaluations(self):
        """As steps' rows and lines; status says when the last one was."""
        job = dict(self.job, evaluation={"every": 10}, job={"name": "gpt", "steps": 40})
        job["data"] = dict(job["data"], validation=0.1)
        running = self.start(job)
        harness.until(lambda: os.path.exists(os.path.join(running.output, "connection.json")), 10, "connection.json")
        done = self.call(harness.GACCCTL, "--run", "run", "watch", "--from", "1", "--json")
        self.assertEqual((done.status, done.err), (0, ""))
        running.wait()
        records = [record for record in running.log() if record["type"] in ("step", "eval")]
        self.assertEqual([record["step"] for record in records if record["type"] == "eval"], [10, 20, 30, 40])
        self.assertEqual([json.loads(line) for line in done.out.splitlines()], records)

        running = self.start(dict(job, job={"name": "gpt", "steps": 10**9}), output="again").until_step(15)
        harness.until(lambda: running.log("eval"), 10, "an evaluation")
        watching = harness.subprocess.Popen([harness.GACCCTL, "--run", "again", "watch", "--from", "9"], cwd=self.directory,
                                            env=self.environment, stdout=harness.subprocess.PIPE, text=True)
        rows = [watching.stdout.readline().split() for _ in range(4)]
        watching.kill()
        watching.communicate()
        evaluation = running.log("eval")[0]
        self.assertEqual([row[0] for row in rows], ["attempt", "9", "10", "10"])
        self.assertEqual(rows[3][1:4], ["10", "eval", f"{evaluation['loss']:.5g}"])
        status = json.loads(self.call(harness.GACCCTL, "--run", "again", "status", "--json").out)
        self.assertEqual(status["validation_optimizer_steps"] % 10, 0)
        self.assertGreaterEqual(status["validation_optimizer_steps"], 10)
        self.assertRegex(self.call(harness.GACCCTL, "--run", "again", "status").out, r"validation [0-9.]+ at step [0-9]+0\n")
        self.end(running)

    def test_slips(self):
        for words, answer in ((["wacth"], "wacth: no such command; did you mean watch? (gaccctl --help)"),
                              (["banana"], "banana: no such command (gaccctl --help)"),
                              ([], "a command is wanted (gaccctl --help)"),
                              (["--jsno", "status"], "--jsno: no such option; did you mean --json?"),
                              (["--json=3", "status"], "--json: takes no value"),
                              (["--run"], "--run: a value is wanted"), (["-q"], "-q: no such option")):
            done = self.call(harness.GACCCTL, *words)
            self.assertEqual((done.status, done.err), (64, f"gaccctl: {answer}\n"))
        for address in ("foo", "", "unix:", ":80", "tcp://", "tcp://:80", "host:", "host:port", "[::1]"):
            done = self.call(harness.GACCCTL, "--connect", address, "status")
            self.assertEqual((done.status, done.err), (64, f"gaccctl: --connect {address}: wants unix:PATH or HOST:PORT\n"))
        for address in ("unix:none", "127.0.0.1:1", "tcp://127.0.0.1:1", "[::1]:1", "tcp://[::1]:1"):
            self.assertEqual(self.call(harness.GACCCTL, "--connect", address, "status").status, 69)

    def test_tcp_wants_the_token(self):
        """From the run directory or a file that nobody else can read, never from the command line or the environment."""
        tcp = dict(self.job, control={"listen": "tcp://127.0.0.1:0"})
        job = self.start(tcp).until_step(1)
        connection = job.connection()
        at = [harness.GACCCTL, "--connect", connection["endpoint"]]
        done = self.call(*at, "status", env=dict(self.environment, GACC_TOKEN=connection["token"]))
        self.assertEqual(done.status, 77)
        self.assertIn("--token-file names a file with the job's token", done.err)
        files = {"word": connection["token"] + "\n", "connection": json.dumps(connection), "wrong": "1" * 64, "spaced": "a b", "empty": ""}
        for name, text in files.items():
            os.chmod(self.write(name, text), 0o600)
        for name, status in (("word", 0), ("connection", 0), ("wrong", 77), ("spaced", 65), ("empty", 65), ("absent", 66)):
            self.assertEqual(self.call(*at, "status", "--token-file", name).status, status, name)
        os.chmod(os.path.join(self.directory, "word"), 0o640)
        done = self.call(*at, "status", "--token-file", "word")
        self.assertEqual((done.status, done.err), (77, "gaccctl: --token-file word: others may read or write it: chmod 600 word\n"))
        self.assertEqual(self.call(harness.GACCCTL, "--run", "run", "status").status, 0)
        self.assertEqual(os.stat(os.path.join(job.output, "connection.json")).st_mode & 0o777, 0o600)
        self.end(job)

    def test_errors_are_objects_where_json_is_asked_for(self):
        for words, status in ((["--run", "none", "status", "--json"], 66), (["--connect", "127.0.0.1:1", "status", "--json"], 69),
                              (["--jsno", "--json"], 64), (["--run", ".", "watch", "--json"], 69)):
            done = self.call(harness.GACCCTL, *words)
            self.assertEqual((done.status, done.err), (status, ""), words)
            error = json.loads(done.out)["error"]
            self.assertEqual(error["status"], status)
            self.assertGreater(len(error["message"]), 10)

    def test_the_next_step_is_said(self):
        """Where there is no job: whether one was there, how it ended, and what to do."""
        def said(*words):
            done = self.call(harness.GACCCTL, *words, "status")
            self.assertEqual(done.status, 69)
            return done.err

        os.makedirs(os.path.join(self.directory, "new"))
        self.assertIn("none was: mpirun -n N gaccd JOB.yaml --output new\n", said("--run", "new"))
        os.makedirs(os.path.join(self.directory, "runs", "old"))
        self.write("runs/old/log.jsonl", "")
        self.assertIn("runs/old: no job is running there; the last one was killed: the same gaccd command goes on", said())
        self.write("runs/old/result.json", json.dumps({"status": "stopped", "reason": "SIGTERM", "optimizer_steps": 7}))
        self.assertIn("the last one is stopped after 7 steps: SIGTERM; the same gaccd command goes on", said())
        self.write("runs/old/connection.json", json.dumps({"endpoint": "unix:none", "host": os.uname().nodename}))
        self.assertIn("runs/old: its job was killed, it seems; the same gaccd command goes on", said())
        self.write("runs/old/connection.json", json.dumps({"endpoint": "unix:none", "host": "node7"}))
        self.assertIn("call gaccctl on node7\n", said())
        self.assertIn("no job listens there", said("--connect", "unix:none"))
        os.remove(os.path.join(self.directory, "runs", "old", "connection.json"))

    def test_a_run_with_a_job_goes_before_a_newer_one_without(self):
        job = self.start(self.job, output="runs/b").until_step(3)
        os.makedirs(os.path.join(self.directory, "runs", "c"))
        os.utime(self.write("runs/c/log.jsonl", ""), (2**31, 2**31))
        self.assertEqual(json.loads(self.call(harness.GACCCTL, "status", "--json").out)["output"], "runs/b")
        self.end(job)


if __name__ == "__main__":
    harness.main()
