"""Who may steer a job, and who may not: tokens and roles, the private socket, ranks that are none, and what the log says of it."""
import os
import signal
import stat
import subprocess
import time

import grpc
import harness
import http_client
from guarded import TCP, Guarded, bearer
from stubs import control_pb2, control_pb2_grpc, workers_pb2, workers_pb2_grpc

NOBODY = 65534
CONNECT = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(3) + b"\\x04" + bytes(5))
print(len(connection.recv(4096)))
"""


class Tokens(Guarded):
    def test_two_tokens_have_two_roles(self):
        running = self.begin(**TCP)
        connection = running.connection()
        self.assertRegex(connection["token"], "^[0-9a-f]{64}$")
        self.assertRegex(connection["read_token"], "^[0-9a-f]{64}$")
        self.assertNotEqual(connection["token"], connection["read_token"])
        self.assertEqual(stat.S_IMODE(os.stat(os.path.join(running.output, "connection.json")).st_mode), 0o600)
        stub = control_pb2_grpc.ControlStub(self.channel(running))

        def status(metadata):
            return self.code(lambda: stub.GetStatus(control_pb2.GetStatusRequest(), metadata=metadata, timeout=20))[0]

        def checkpoint(metadata):
            return self.code(lambda: stub.Checkpoint(control_pb2.CheckpointRequest(), metadata=metadata, timeout=20))[0]

        control, read = bearer(connection["token"]), bearer(connection["read_token"])
        wrong = bearer(connection["token"][:-1] + ("0" if connection["token"][-1] != "0" else "1"))
        self.assertEqual([status(control), status(read), status(wrong), status(None)],
                         ["OK", "OK", "UNAUTHENTICATED", "UNAUTHENTICATED"])
        self.assertEqual([checkpoint(control), checkpoint(read), checkpoint(wrong), checkpoint(None)],
                         ["OK", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNAUTHENTICATED"])
        refused = self.refusals(running, 5)
        self.assertLess(len(refused), 5)  # one a second
        self.assertEqual(sum(record["count"] for record in refused), 5)
        accepted = [record for record in running.log("control") if record["accepted"]]
        self.assertEqual(len(accepted), 1)
        self.assertRegex(accepted[0]["by"], r"^token control from 127\.0\.0\.1:\d+$")

    def test_a_refused_call_is_in_the_log_with_who_and_why(self):
        running = self.begin(**TCP)
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        cases = (("Stop", bearer(running.connection()["read_token"]), "read", "the token for reading"),
                 ("Checkpoint", bearer("0" * 64), None, "a token that is none of this job's"),
                 ("Stop", None, None, "no token"))
        for method, metadata, role, reason in cases:
            request = getattr(control_pb2, method + "Request")()
            before = len(running.log("control"))
            self.assertNotEqual(self.code(lambda: getattr(stub, method)(request, metadata=metadata, timeout=20))[0], "OK")
            harness.until(lambda: len(running.log("control")) > before, 3, "a line")
            record = running.log("control")[-1]
            self.assertEqual((record["method"], record["role"], record["accepted"], record["reason"], record["count"]),
                             (method, role, False, reason, 1))
            self.assertRegex(record["by"], r"^token read from 127\.0\.0\.1:\d+$" if role else r"^127\.0\.0\.1:\d+$")
            self.assertLess(abs(record["at"] - time.time()), 10)
            time.sleep(1.1)
        self.goes_on(running)

    def test_ten_thousand_wrong_tokens_change_nothing(self):
        """A connection that has shown none that is right is closed after ten seconds: a new one for every thousand."""
        running = self.begin(**TCP)
        began = time.monotonic()
        for first in range(0, 10000, 1000):
            with grpc.insecure_channel(running.connection()["endpoint"], [("grpc.use_local_subchannel_pool", 1)]) as channel:
                stub = control_pb2_grpc.ControlStub(channel)
                calls = [stub.GetStatus.future(control_pb2.GetStatusRequest(), metadata=bearer("%064x" % i), timeout=120)
                         for i in range(first, first + 1000)]
                self.assertEqual({call.code().name for call in calls}, {"UNAUTHENTICATED"})
        seconds = time.monotonic() - began
        refused = self.refusals(running, 10000)
        self.assertEqual(sum(record["count"] for record in refused), 10000)
        self.assertLessEqual(len(refused), seconds + 3)
        self.goes_on(running)

    def test_secrets_are_nowhere_but_in_connection_json(self):
        """Not in what the job says over its port, on its terminal or in its files, nor in any process's command line or environment."""
        running = self.begin(**TCP)
        connection = running.connection()
        control = bearer(connection["token"])
        stub = control_pb2_grpc.ControlStub(self.channel(running))
        stub.Checkpoint(control_pb2.CheckpointRequest(wait=True), metadata=control, timeout=60)
        self.code(lambda: stub.Stop(control_pb2.StopRequest(), metadata=bearer(connection["read_token"]), timeout=20))
        self.refusals(running)
        at = [harness.GACCCTL, "--connect", connection["endpoint"], "--token-file", os.path.join(running.output, "connection.json")]
        watching = subprocess.Popen([*at, "watch", "--from", "1", "--json"], cwd=self.directory, env=self.environment,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        texts = {"watch": "".join(watching.stdout.readline() for _ in range(10))}
        for pid in self.processes():
            texts[f"process {pid}"] = harness.read_proc(pid, "cmdline") + harness.read_proc(pid, "environ")
        self.assertIn(f"process {watching.pid}", texts)
        self.assertGreater(len(texts), 5)
        watching.kill()
        watching.communicate()
        for word in ("status", "config", "health"):
            done = self.call(*at, word, "--json")
            self.assertEqual(done.status, 0, done.err)
            texts[word] = done.out + done.err
        for path in ("/metrics", "/api/status", "/healthz", "/none"):
            for token in ("token", "read_token"):
                answer = http_client.get(connection["endpoint"], path, Authorization=f"Bearer {connection[token]}")
                texts[f"{path} by {token}"] = f"{answer[1]}{answer[2]}"
        self.assertIn("gacc_steps_total", texts["/metrics by read_token"])
        texts["stdout, stderr"] = "".join(running.said())
        for path, _, names in os.walk(running.output):
            for name in set(names) - {"connection.json"}:
                with open(os.path.join(path, name), "rb") as file:
                    texts[name] = file.read().decode(errors="replace")
        self.assertIn("log.jsonl", texts)
        for where, text in texts.items():
            for key in ("token", "read_token"):
                self.assertNotIn(connection[key][:32], text, where)

    def test_a_link_in_the_way_of_connection_json_is_not_followed(self):
        os.makedirs(os.path.join(self.directory, "run"))
        victim = self.write("victim", "precious")
        for name in ("connection.json.tmp", "connection.json"):
            os.symlink(victim, os.path.join(self.directory, "run", name))
        running = self.begin(**TCP)
        self.assertFalse(os.path.islink(os.path.join(running.output, "connection.json")))
        self.assertIn("token", running.connection())
        with open(victim) as file:
            self.assertEqual(file.read(), "precious")


class Sockets(Guarded):
    def refused(self, listen, *words):
        done = self.run_job(dict(self.job, control={"listen": listen}), ranks=0)
        self.assertEqual(done.status, 69, done.err)
        line, = done.own_lines()
        for word in words:
            self.assertIn(word, line)

    def directory_of(self, name, mode=0o700):
        path = os.path.join(self.directory, name)
        os.mkdir(path)
        os.chmod(path, mode)
        return path

    def test_the_socket_is_private(self):
        running = self.begin()
        path = running.connection()["endpoint"].removeprefix("unix:")
        facts, directory = os.lstat(path), os.lstat(os.path.dirname(path))
        self.assertTrue(stat.S_ISSOCK(facts.st_mode) and stat.S_ISDIR(directory.st_mode))
        self.assertEqual((stat.S_IMODE(facts.st_mode), stat.S_IMODE(directory.st_mode)), (0o600, 0o700))
        self.assertEqual((facts.st_uid, directory.st_uid), (os.geteuid(), os.geteuid()))
        self.assertIsNone(running.connection()["token"])  # whose it is has control

    def test_another_user_is_refused_even_where_the_socket_is_open_to_all(self):
        if os.geteuid() != 0:
            self.skipTest("not root: nobody else to be")
        running = self.begin()
        path = running.connection()["endpoint"].removeprefix("unix:")
        os.chmod(self.directory, 0o755)
        program = self.write("connect.py", CONNECT)
        command = ["/usr/bin/python3", program, path]
        other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        done = self.call(*other, *command)
        self.assertIn("PermissionError", done.err)
        os.chmod(os.path.dirname(path), 0o755)
        self.assertIn("PermissionError", self.call(*other, *command).err)
        os.chmod(path, 0o666)
        self.assertGreater(int(self.call(*command).out), 0)  # ourselves
        done = self.call(*other, *command)
        self.assertTrue(done.out == "0\n" or "ConnectionResetError" in done.err or "BrokenPipeError" in done.err,
                        done.out + done.err)
        record = self.refusals(running)[-1]
        self.assertRegex(record["by"], rf"^uid {NOBODY}, pid \d+$")
        self.assertEqual((record["method"], record["reason"]), (None, "another user"))
        self.goes_on(running)

    def test_a_socket_in_a_directory_that_others_can_write_is_refused(self):
        for mode in (0o777, 0o1777, 0o770):
            path = self.directory_of(f"open{mode:o}", mode)
            self.refused(f"unix:{path}/socket", "control.listen", path, "others may write there", "chmod go-w")
        path = self.directory_of("readable", 0o755)
        self.assertEqual(self.start(dict(self.job, control={"listen": f"unix:{path}/socket"})).until_step(1).connection()["endpoint"],
                         f"unix:{path}/socket")

    def test_a_directory_that_others_can_rename_is_refused(self):
        above = self.directory_of("above")
        below = os.path.join(above, "below")
        os.mkdir(below, 0o700)
        os.chmod(above, 0o777)
        self.refused(f"unix:{below}/socket", "others may rename it")
        os.chmod(above, 0o1777)  # sticky, as /tmp is
        running = self.start(dict(self.job, control={"listen": f"unix:{below}/socket"}), ranks=0)
        harness.until(lambda: os.path.exists(f"{below}/socket"), 20, "the socket")
        os.kill(running.process.pid, signal.SIGKILL)
        running.wait(5)

    def test_a_link_to_a_directory_is_refused(self):
        path = self.directory_of("real")
        os.symlink(path, os.path.join(self.directory, "link"))
        self.refused(f"unix:{self.directory}/link/socket", "link", "is a symbolic link")
        self.write("file", "")
        self.refused(f"unix:{self.directory}/file/socket", "file", "is no directory")
        self.refused(f"unix:{self.directory}/none/socket", "none", "No such file or directory")

    def test_a_directory_of_somebody_elses_is_refused(self):
        if os.geteuid() != 0:
            self.skipTest("not root: nobody else to be")
        path = self.directory_of("theirs")
        os.chown(path, NOBODY, NOBODY)
        self.refused(f"unix:{path}/socket", path, f"belongs to uid {NOBODY}")

    def test_a_file_in_the_way_of_the_socket_stays(self):
        path = self.directory_of("mine")
        self.write("mine/data.csv", "precious")
        self.refused(f"unix:{path}/data.csv", "control.listen", "in use")
        with open(os.path.join(path, "data.csv")) as file:
            self.assertEqual(file.read(), "precious")

    def test_a_runtime_directory_that_is_not_ours_alone_is_not_used(self):
        self.environment["XDG_RUNTIME_DIR"] = self.directory_of("shared", 0o777)
        running = self.begin()
        path = running.connection()["endpoint"].removeprefix("unix:")
        self.assertTrue(path.startswith("/tmp/gaccd-"), path)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode), 0o700)
        os.kill(running.ranks()[1], signal.SIGKILL)
        running.wait(20)
        harness.until(lambda: not os.path.exists(os.path.dirname(path)), 5, "the directory is removed")


class Ranks(Guarded):
    def join(self, running, hello, metadata=None):
        stub = workers_pb2_grpc.WorkersStub(self.channel(running))
        message = workers_pb2.WorkerMessage(hello=hello)
        return self.code(lambda: list(stub.Join(iter([message]), metadata=metadata, timeout=10)))

    def test_who_has_no_secret_is_no_rank(self):
        running = self.begin()
        hello = workers_pb2.Hello(rank=1, ranks=2)
        for metadata in (None, [("gacc-secret-bin", bytes(32))], [("gacc-secret-bin", b"short")]):
            self.assertEqual(self.join(running, hello, metadata), ("UNAUTHENTICATED", "the job's secret is required"))
        reasons = {record["reason"] for record in self.refusals(running, 3)}
        self.assertLessEqual(reasons, {"no secret", "a secret that is not this job's"})
        self.assertEqual({record["method"] for record in self.refusals(running, 3)}, {"Join"})
        self.goes_on(running)

    def test_the_operators_port_serves_no_ranks(self):
        running = self.begin(**TCP)
        code, _ = self.join(running, workers_pb2.Hello(rank=1, ranks=2), bearer(running.connection()["token"]))
        self.assertEqual(code, "UNIMPLEMENTED")
        self.goes_on(running)


if __name__ == "__main__":
    harness.main()
