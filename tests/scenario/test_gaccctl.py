"""gaccctl asks a running job and watches it; without a job it says so."""
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time

import grpc

import harness
import http2
from control_stubs import Fake, control_pb2


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

    def watch_from_the_first_step(self, met):
        """The job is let go when the coordinator has gaccctl's connection."""
        sockets = f"/proc/{met.connection()['pid']}/fd"
        before = len(os.listdir(sockets))
        watching = subprocess.Popen([harness.GACCCTL, "--run", "run", "watch", "--from", "1", "--json"], cwd=self.directory,
                                    env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        harness.wait_for(lambda: len(os.listdir(sockets)) > before, 20, "the connection")
        met.let_go()
        out, err = watching.communicate(timeout=60 * harness.SLOWER)
        self.assertEqual((watching.returncode, err), (0, ""))
        return out

    def test_watching_from_the_first_step_gives_the_lines_of_the_log(self):
        short = dict(self.job, job={"name": "gpt", "steps": 200})
        job = self.start(short).meet()
        out = self.watch_from_the_first_step(job)
        job.wait()
        self.assertEqual([json.loads(line) for line in out.splitlines()], job.log())
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
        for words in (["nonsense"], ["status", "more"], ["set"], ["--from", "3", "status"], ["watch", "--from", "0"], ["watch", "--from", "9" * 30]):
            done = self.call(harness.GACCCTL, *words)
            self.assertEqual((done.status, len(done.err.splitlines())), (64, 1))

    def test_watching_shows_evaluations(self):
        """As steps' rows and lines; status says when the last one was."""
        job = dict(self.job, evaluation={"every": 10}, job={"name": "gpt", "steps": 40})
        job["data"] = dict(job["data"], validation=0.1)
        running = self.start(job).meet()
        out = self.watch_from_the_first_step(running)
        running.wait()
        self.assertEqual([record["step"] for record in running.log("eval")], [10, 20, 30, 40])
        self.assertEqual([json.loads(line) for line in out.splitlines()], running.log())

        running = self.start(dict(job, job={"name": "gpt", "steps": 10**9}), output="again").until_step(15)
        harness.until(lambda: running.log("eval"), 10, "an evaluation")
        watching = subprocess.Popen([harness.GACCCTL, "--run", "again", "watch", "--from", "9"], cwd=self.directory,
                                            env=self.environment, stdout=subprocess.PIPE, text=True)
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
        for address in ("foo", "", "unix:", ":80", "tcp://", "tcp://:80", "host:", "host:port", "[::1]", "127.0.0.1:99999",
                        "[::1]:65536", "tcp://host:4294967297", "host:+1"):
            done = self.call(harness.GACCCTL, "--connect", address, "status")
            self.assertEqual((done.status, done.err), (64, f"gaccctl: --connect {address}: wants unix:PATH or HOST:PORT\n"))
        for address in ("unix:none", "127.0.0.1:1", "tcp://127.0.0.1:1", "[::1]:1", "tcp://[::1]:1"):
            self.assertEqual(self.call(harness.GACCCTL, "--connect", address, "status").status, 69)

    def test_an_address_in_a_run_directory_that_is_none(self):
        os.makedirs(os.path.join(self.directory, "run"))
        self.write("run/connection.json", json.dumps({"endpoint": "tcp://127.0.0.1:99999", "token": "secret"}))
        done = self.call(harness.GACCCTL, "--run", "run", "status")
        os.remove(os.path.join(self.directory, "run", "connection.json"))
        self.assertEqual((done.status, done.err), (65, "gaccctl: run/connection.json: endpoint tcp://127.0.0.1:99999: wants unix:PATH or "
                                                       "HOST:PORT\n"))

    def test_a_connection_json_that_no_job_wrote(self):
        """It is no sign that no job was ever there, nor waited for."""
        path = os.path.join(self.directory, "run", "connection.json")
        os.makedirs(os.path.dirname(path))
        for text in ("", "{", "[]", '{"endpoint": 5}', '{"token": "secret"}'):
            self.write("run/connection.json", text)
            self.check_no_address_in(path)
        os.remove(path)
        for make, remove in ((os.mkdir, os.rmdir), (os.mkfifo, os.remove)):
            make(path)
            self.check_no_address_in(path)
            remove(path)

    def check_no_address_in(self, path):
        done = self.call(harness.GACCCTL, "--run", "run", "status", limit=10)
        self.assertEqual((done.status, done.err), (65, "gaccctl: run/connection.json: is not as a job writes it: no address of a job is in "
                                                       "it\n"), path)

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
        self.write("runs/old/result.json", json.dumps({"status": "again", "exit": 75, "reason": "SIGTERM", "optimizer_steps": 7}))
        self.assertIn("the last one is stopped after 7 steps: SIGTERM; the same gaccd command goes on", said())
        reason = "rank 0: interrupted by SIGTERM: checkpoint step-00000007 is complete, the same command goes on from it"
        self.write("runs/old/result.json", json.dumps({"status": "again", "exit": 75, "reason": reason, "optimizer_steps": 7}))
        self.assertTrue(said().endswith(f"the last one is stopped after 7 steps: {reason}\n"), said())
        self.write("runs/old/connection.json", json.dumps({"endpoint": "unix:none", "host": os.uname().nodename}))
        self.assertIn("runs/old: its job was killed, it seems; the same gaccd command goes on", said())
        self.write("runs/old/connection.json", json.dumps({"endpoint": "unix:none", "host": "node7"}))
        self.assertIn("call gaccctl on node7\n", said())
        for everywhere in ("0.0.0.0:1", "[::]:1"):  # of its host, which we are not
            self.write("runs/old/connection.json", json.dumps({"endpoint": everywhere, "host": "localhost"}))
            self.assertIn("cannot connect to localhost:1", said())
        self.assertIn("no job listens there", said("--connect", "unix:none"))
        os.remove(os.path.join(self.directory, "runs", "old", "connection.json"))

    def test_a_run_with_a_job_goes_before_a_newer_one_without(self):
        job = self.start(self.job, output="runs/b").until_step(3)
        os.makedirs(os.path.join(self.directory, "runs", "c"))
        os.utime(self.write("runs/c/log.jsonl", ""), (2**31, 2**31))
        self.assertEqual(json.loads(self.call(harness.GACCCTL, "status", "--json").out)["output"], "runs/b")
        self.end(job)


    # ---- calls, answered by a server that is not ours ----

    def ask(self, fake, *words):
        self.addCleanup(fake.server.stop, None)
        return self.call(harness.GACCCTL, "--connect", f"127.0.0.1:{fake.port}", *words)

    def served(self, *conversations):
        """gaccctl's `stop`, where one connection after the other is served by hand: functions of a socket on which a call has come whole."""
        path = os.path.join(self.directory, "by-hand")

        def serve():
            for conversation in conversations:
                sock, _ = listener.accept()
                with sock:
                    data = b""
                    while not any(kind == http2.DATA and flags & http2.END_STREAM for kind, flags, _, _ in http2.split(data[len(http2.PREFACE):])[0]):
                        data += sock.recv(65536)
                    conversation(sock)

        with socket.create_server(path, family=socket.AF_UNIX) as listener:
            thread = threading.Thread(target=serve)
            thread.start()
            done = self.call(harness.GACCCTL, "--connect", f"unix:{path}", "stop")
            thread.join(10)
        os.remove(path)
        self.assertFalse(thread.is_alive())
        return done

    @staticmethod
    def answer(sock):
        body = control_pb2.Effect(step=5, optimizer_steps=4).SerializeToString()
        head = http2.field(":status", "200") + http2.field("content-type", "application/grpc")
        sock.sendall(http2.settings() + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, head) + http2.frame(http2.DATA, 0, 1, http2.message(body))
                     + http2.frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, 1, http2.field("grpc-status", "0")))

    def test_the_answer_of_who_takes_nothing_any_more(self):
        """Who answers last of all and is gone does not take what gaccctl has to say meanwhile: here, that a PING has come."""
        def answer_at_last(sock):
            sock.shutdown(socket.SHUT_RD)
            sock.sendall(http2.settings() + http2.frame(http2.PING, payload=bytes(8)))
            time.sleep(0.2)
            self.answer(sock)

        done = self.served(answer_at_last)
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertIn("stops after step 4 (attempt 5)", done.out)

    def test_who_could_not_begin_a_call_calls_again(self):
        """GOAWAY below the call, and REFUSED_STREAM, say that it was not begun (RFC 9113, 8.7); a few times, and of nothing else."""
        def turn_away(sock):
            sock.sendall(http2.settings() + http2.frame(http2.GOAWAY, payload=bytes(8)))

        def refuse(sock):
            sock.sendall(http2.settings() + http2.frame(http2.RST_STREAM, 0, 1, bytes([0, 0, 0, 7])))

        def cancel(sock):
            sock.sendall(http2.settings() + http2.frame(http2.RST_STREAM, 0, 1, bytes([0, 0, 0, 8])))

        self.assertEqual(self.served(turn_away, refuse, self.answer).status, 0)
        self.assertEqual(self.served(*[turn_away] * 4).status, 69)
        self.assertEqual(self.served(cancel).status, 69)

    def test_changes_say_behind_which_step(self):
        effect = control_pb2.Effect(step=123, optimizer_steps=120)
        later = control_pb2.Effect(step=124, optimizer_steps=121)
        reply = control_pb2.SetParametersReply(effect=effect, changes=[
            control_pb2.Change(path="optimizer.lr", was="0.001", now="3e-4"),
            control_pb2.Change(path="batch.global", was="8", now="16", effect=later)])
        fake = Fake(Pause=effect, Resume=effect, Stop=effect, SetParameters=reply,
                    Checkpoint=control_pb2.CheckpointReply(effect=effect, name="step-00000120"))
        behind = "after step 120 (attempt 123)"
        for words, out, asked in (
                (["pause"], f"paused {behind}; gaccctl resume goes on\n", ""),
                (["resume"], f"goes on {behind}\n", ""),
                (["checkpoint"], f"step-00000120 is written, as it is {behind}\n", ""),
                (["checkpoint", "--wait"], f"step-00000120 is complete, as it was {behind}\n", "wait: true\n"),
                (["stop"], f"stops {behind}, with a checkpoint: exit status 75; the same gaccd command goes on from it\n", ""),
                (["stop", "--finish"], f"stops {behind}, as done: exit status 0\n", "finish: true\n"),
                (["set", "optimizer.lr=3e-4", "batch.global=a=b"],
                 f"optimizer.lr: 0.001 → 3e-4, {behind}\nbatch.global: 8 → 16, after step 121 (attempt 124)\n",
                 'settings {\n  path: "optimizer.lr"\n  value: "3e-4"\n}\nsettings {\n  path: "batch.global"\n  value: "a=b"\n}\n'),
        ):
            done = self.ask(fake, *words)
            self.assertEqual((done.status, done.out, done.err), (0, out, ""))
            self.assertEqual(str(fake.asked[-1][1]), asked)
            answer = json.loads(self.ask(fake, *words, "--json").out)
            self.assertEqual((answer["step"], answer["optimizer_steps"]), (123, 120))
        self.assertEqual(answer["changes"][1], {"key": "batch.global", "was": "8", "now": "16", "step": 124, "optimizer_steps": 121})
        self.assertEqual(self.ask(fake, "set", "lr").status, 64)

    def test_a_key_that_comes_or_goes_with_another(self):
        """As retries with on_overflow: one of the values is not there."""
        effect = control_pb2.Effect(step=5, optimizer_steps=4)
        reply = control_pb2.SetParametersReply(effect=effect, changes=[control_pb2.Change(path="a.b", now="8"),
                                                                       control_pb2.Change(path="a.c", was="9")])
        fake = Fake(SetParameters=reply)
        self.assertEqual(self.ask(fake, "set", "a=b").out, "a.b: nothing → 8, after step 4 (attempt 5)\n"
                                                           "a.c: 9 → nothing, after step 4 (attempt 5)\n")
        answer = json.loads(self.ask(fake, "set", "a=b", "--json").out)
        self.assertEqual([(each["was"], each["now"]) for each in answer["changes"]], [(None, "8"), ("9", None)])

    def test_config(self):
        fake = Fake(GetConfig=control_pb2.Config(yaml="optimizer:\n  lr: 0.1\n", live=["optimizer.lr", "job.steps"],
                                                 set=[control_pb2.Setting(path="optimizer.lr", value="0.1")]))
        self.assertEqual(self.ask(fake, "config").out, "optimizer:\n  lr: 0.1\n\n# Set while it ran:\n#   optimizer.lr=0.1\n")
        self.assertEqual(self.ask(fake, "config", "--live").out, "optimizer.lr\njob.steps\n")
        self.assertEqual(json.loads(self.ask(fake, "config", "--json").out),
                         {"yaml": "optimizer:\n  lr: 0.1\n", "live": ["optimizer.lr", "job.steps"], "set": {"optimizer.lr": "0.1"}})

    def test_health(self):
        for answer, status, word in ((b"\x08\x01", 0, "SERVING"), (b"\x08\x02", 1, "NOT_SERVING"), (b"", 1, "UNKNOWN")):
            done = self.ask(Fake(health=answer), "health")
            self.assertEqual(done.status, status)
            self.assertIn(word, done.err if status else done.out)
        self.assertEqual(json.loads(self.ask(Fake(health=b"\x08\x01"), "health", "--json").out), {"status": "SERVING"})
        self.assertEqual(self.ask(Fake(), "health").status, 69)

    def test_every_grpc_status_has_an_exit_status(self):
        statuses = {"CANCELLED": 69, "UNKNOWN": 70, "INVALID_ARGUMENT": 78, "DEADLINE_EXCEEDED": 69, "NOT_FOUND": 69,
                    "ALREADY_EXISTS": 1, "PERMISSION_DENIED": 77, "RESOURCE_EXHAUSTED": 69, "FAILED_PRECONDITION": 1, "ABORTED": 1,
                    "OUT_OF_RANGE": 78, "UNIMPLEMENTED": 69, "INTERNAL": 70, "UNAVAILABLE": 69, "DATA_LOSS": 70, "UNAUTHENTICATED": 77}
        self.assertEqual(set(statuses), {code.name for code in grpc.StatusCode} - {"OK"})
        manual = self.call(harness.GACCCTL, "--print", "markdown").out
        fake = Fake()
        for name, status in statuses.items():
            fake.answers["Pause"] = (getattr(grpc.StatusCode, name), "the lamp\x1b[31m is „red“")
            done = self.ask(fake, "pause")
            self.assertEqual(done.status, status, name)
            self.assertTrue(done.err.startswith("gaccctl: the lamp?[31m is „red“"), done.err)
            self.assertRegex(manual, rf"(?m)^    {status} .*\b{name}\b")
            error = json.loads(self.ask(fake, "pause", "--json").out)["error"]
            self.assertEqual(error["status"], status)

    def test_texts_of_the_job_do_not_steer_the_terminal(self):
        evil = "a\x1b]0;b\x07c\x9bd"
        fake = Fake(GetStatus=control_pb2.Status(job=evil, output=evil, phase=evil, checkpoint=evil, requests=[evil],
                                                 ranks=[control_pb2.RankStatus(host=evil)]),
                    WatchSteps=[control_pb2.StepRecord(step=1, json=json.dumps({"type": "event", "text": evil}))])
        for words in (["status"], ["watch"]):
            out = self.ask(fake, *words).out
            self.assertIn("a?]0;b?c??d", out)
            self.assertFalse(set(out) & set("\x1b\x07\x9b"))

    def test_watching_shows_what_is_no_step(self):
        """Each row by its line's own attempt, which of an answered call is one that has no line yet."""
        lines = [{"type": "header"}, {"type": "step", "step": 7, "optimizer_steps": 6, "verdict": "skip", "loss": None},
                 {"type": "checkpoint", "step": 7, "optimizer_steps": 6, "name": "step-00000006", "bytes": 2500000, "seconds": {"copy": 0.1, "write": 1, "commit": 1}},
                 {"type": "event", "step": 7, "text": "too many skips"},
                 {"type": "control", "step": 8, "optimizer_steps": 7, "method": "SetParameters", "by": "uid 0", "accepted": True, "changes": [{"key": "optimizer.lr", "was": "1", "now": "2"}, {"key": "a.b", "was": None, "now": "8"}]},
                 {"type": "control", "step": 7, "optimizer_steps": 6, "method": "Pause", "by": "uid 0", "accepted": False, "reason": "it is paused"},
                 {"type": "end", "step": 8, "optimizer_steps": 7, "status": "again", "exit": 75, "reason": "SIGTERM"}]
        fake = Fake(WatchSteps=[control_pb2.StepRecord(step=7, json=json.dumps(line)) for line in lines])
        done = self.ask(fake, "watch", "--from", "7")
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertEqual(fake.asked, [("WatchSteps", control_pb2.WatchStepsRequest(from_step=7, all=True))])
        self.assertEqual([" ".join(row.split()) for row in done.out.splitlines()[1:]], [
            "7 6 skip - - - - -",
            "7 6 checkpoint step-00000006: 2.5 MB, training stood still for 0.1 s, all on disk 2 s later",
            "7 - event too many skips",
            "8 7 control SetParameters by uid 0: optimizer.lr: 1 → 2, a.b: nothing → 8",
            "7 6 control Pause by uid 0; refused: it is paused",
            "8 7 end stopped (exit status 75): SIGTERM"])

    def test_watching_ends_where_what_it_shows_cannot_be_written(self):
        """A full disk, or a reader that is gone where SIGPIPE is ignored: at once, not when the job ends."""
        job = self.start(self.job).until_step(1)
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "wb") as pipe, open("/dev/full", "wb") as full:
            for output, why in ((full, "No space left on device"), (pipe, "Broken pipe")):
                for words in ((), ("--json",)):
                    done = subprocess.run([harness.GACCCTL, "--run", "run", "watch", *words], cwd=self.directory, stdout=output,
                                          stderr=subprocess.PIPE, text=True, timeout=20 * harness.SLOWER, restore_signals=False)
                    self.assertEqual((done.returncode, done.stderr), (74, f"gaccctl: standard output: {why}\n"))
        self.end(job)

    # ---- connections that are lost ----

    def through(self, job, lines):
        """A connection.json that leads through a proxy, which cuts the connection behind so many lines, five times."""
        endpoint = job.connection()["endpoint"].removeprefix("unix:")
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        cuts = []

        def serve():
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with socket.socket(socket.AF_UNIX) as server, client:
                    try:
                        server.connect(endpoint)
                        seen = 0
                        while seen < lines or len(cuts) == 5:
                            for ready in select.select([client, server], [], [])[0]:
                                data = ready.recv(700)
                                if not data:
                                    raise OSError
                                (server if ready is client else client).sendall(data)
                                seen += data.count(b'"type"')
                        cuts.append(seen)
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        os.makedirs(os.path.join(self.directory, "through"))
        connection = dict(job.connection(), endpoint=f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        self.write("through/connection.json", json.dumps(connection))
        return cuts

    def test_watching_goes_on_after_lost_connections(self):
        """Every line once, however often the connection is cut; at the end, how the job ended."""
        job = self.start(dict(self.job, job={"name": "gpt", "steps": 6000}, checkpoint={"every": 300, "keep": 1})).until_step(1)
        cuts = self.through(job, 30)
        done = self.call(harness.GACCCTL, "--run", "through", "watch", "--from", "1", "--json", limit=120)
        os.remove(os.path.join(self.directory, "through", "connection.json"))
        self.assertEqual((done.status, done.err), (0, ""))
        job.wait()
        self.assertEqual([json.loads(line) for line in done.out.splitlines()], job.log())
        self.assertEqual(len(cuts), 5)

    def test_watching_a_job_that_is_killed(self):
        """Its run directory says what became of it."""
        job = self.start(self.job).until_step(3)
        watching = subprocess.Popen([harness.GACCCTL, "--run", "run", "watch"], cwd=self.directory, env=self.environment,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        watching.stdout.readline()
        self.end(job)
        out, _ = watching.communicate(timeout=20)
        self.assertEqual(watching.returncode, 0)
        self.assertIn(self.result()["reason"], out.splitlines()[-1])

    # ---- what a real job answers ----

    def test_a_job_is_steered(self):
        job = self.start(self.job).until_step(3)
        ctl = [harness.GACCCTL, "--run", "run"]
        at = json.loads(self.call(*ctl, "pause", "--json").out)
        harness.until(lambda: json.loads(self.call(*ctl, "status", "--json").out)["phase"] == "paused", 10, "paused")
        self.assertEqual(json.loads(self.call(*ctl, "status", "--json").out)["step"], at["step"])
        done = self.call(*ctl, "checkpoint", "--wait", "--json")
        saved = json.loads(done.out)
        self.assertEqual((done.status, saved["step"], saved["complete"]), (0, at["step"], True))
        self.assertTrue(os.path.exists(os.path.join(job.output, "checkpoints", saved["name"], "manifest.json")))
        self.assertEqual(self.call(*ctl, "health").out, "SERVING\n")
        self.assertEqual(self.call(*ctl, "resume").status, 0)
        job.until_step(at["step"] + 1)
        self.assertEqual(self.call(*ctl, "stop", "--finish").status, 0)
        self.assertEqual(job.wait().status, 0)
        self.assertEqual(self.result()["status"], "done")


if __name__ == "__main__":
    harness.main()
