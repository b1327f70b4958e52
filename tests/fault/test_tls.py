"""TLS of the operators' address: who is let in, what is said to those who are not, and that noise disturbs nothing."""
import json
import os
import random
import socket
import ssl
import threading
import time
import warnings

import harness
import http_client
from certificates import Authority
from guarded import Guarded

PATIENCE = 10  # s: of the coordinator with strangers
HELLO = bytes.fromhex("1603010200010001fc0303")  # the beginning of a TLS hello


class Certificates(Guarded):
    RANKS = 0

    def setUp(self):
        super().setUp()
        self.ours, self.others = (Authority(self.directory, name) for name in ("authority", "stranger"))
        self.certificate, self.key = self.ours.sign("server")

    def begin(self, clients=None, **control):
        tls = {"certificate": self.certificate, "key": self.key, **({"client_authorities": clients} if clients else {})}
        return super().begin(**{"listen": "tcp://127.0.0.1:0", "tls": tls, **control})

    def port(self, running):
        return int(running.connection()["endpoint"].rpartition(":")[2])

    def ctl(self, *words, status=0):
        """What it says, in one line where it fails."""
        done = self.call(harness.GACCCTL, *words)
        self.assertEqual(done.status, status, done.err)
        self.assertEqual(len(done.err.splitlines()), 1 if status else 0, done.err)
        return done.err or done.out

    def at(self, running, host="127.0.0.1"):
        self.write("token", running.connection()["token"])
        os.chmod(os.path.join(self.directory, "token"), 0o600)
        return ["--connect", f"{host}:{self.port(running)}", "--token-file", "token"]

    def handshake(self, running, context=None, host="127.0.0.1"):
        context = context or ssl.create_default_context(cafile=self.ours.pem)
        raw = socket.create_connection(("127.0.0.1", self.port(running)), 20)
        self.addCleanup(raw.close)
        wrapped = context.wrap_socket(raw, server_hostname=host)
        self.addCleanup(wrapped.close)
        return wrapped

    # ---- a job that does without ----

    def test_other_hosts_are_not_let_in_without_tls_or_a_word_in_the_job(self):
        job = dict(self.job, control={"listen": "tcp://0.0.0.0:0"})
        done = self.run_job(job)
        self.assertEqual(done.status, 78, done.err)
        self.assertIn("control.listen: tcp://0.0.0.0:0: other hosts can come there, so control.tls.certificate and "
                      "control.tls.key are needed (control.tls.required: false does without TLS)", done.own_lines()[0])
        running = super().begin(listen="tcp://0.0.0.0:0", tls={"required": False})
        self.assertIsNone(running.connection()["tls"])
        self.ctl("--run", "run", "health")
        host = socket.gethostname()  # no loopback to gaccctl, whatever it stands for
        said = self.ctl(*self.at(running, host), "health", status=64)
        self.assertIn("the token would travel where others can read it", said)

    def test_files_that_are_no_certificates_end_the_start(self):
        self.write("noise.pem", "nothing")
        for tls, status, words in (({"certificate": self.certificate, "key": self.others.sign("other")[1]}, 65, "other.key"),
                                   ({"certificate": "noise.pem", "key": self.key}, 65, "noise.pem: no certificate"),
                                   ({"certificate": self.certificate, "key": "none.key"}, 66, "none.key")):
            done = self.run_job(dict(self.job, control={"listen": "tcp://127.0.0.1:0", "tls": tls}), ranks=0)
            line, = done.own_lines()
            self.assertEqual(done.status, status, done.err)
            self.assertIn("control.tls", line)
            self.assertIn(words, line)

    # ---- who is the job ----

    def test_gaccctl_takes_the_jobs_certificate_and_no_other(self):
        running = self.begin()
        self.assertEqual(self.ctl("--run", "run", "health"), "SERVING\n")
        at = self.at(running)
        self.assertEqual(self.ctl(*at, "--ca", self.ours.pem, "health"), "SERVING\n")
        self.assertEqual(self.ctl(*self.at(running, "localhost"), "--ca", self.ours.pem, "health"), "SERVING\n")
        self.assertEqual(self.ctl(*at[:2], "--token-file", "run/connection.json", "health"), "SERVING\n")
        said = self.ctl(*at, "--ca", self.others.pem, "status", status=69)
        self.assertIn("the peer's certificate: unable to get local issuer certificate: --ca names", said)
        self.assertIn("--ca names", self.ctl(*at, "--tls", "status", status=69))  # the system knows nothing of our authority
        said = self.ctl(*at[:2], "--ca", self.ours.pem, "status", status=77)
        self.assertIn("a valid token is required", said)
        connection = running.connection()
        connection["tls"]["fingerprint"] = "0" * 64
        self.write("moved.json", json.dumps(connection))
        os.chmod(os.path.join(self.directory, "moved.json"), 0o600)
        said = self.ctl(*at[:2], "--token-file", "moved.json", "status", status=69)
        self.assertIn("it is not that of the job's connection.json", said)
        self.goes_on(running)

    def test_a_certificate_is_for_its_names(self):
        self.certificate, self.key = self.ours.sign("named", "DNS:node7")
        running = self.begin()
        said = self.ctl(*self.at(running), "--ca", self.ours.pem, "status", status=69)
        self.assertIn("IP address mismatch: --connect wants a name or an address that the certificate has", said)
        said = self.ctl(*self.at(running, "localhost"), "--ca", self.ours.pem, "status", status=69)
        self.assertIn("hostname mismatch", said)
        self.assertEqual(self.ctl("--run", "run", "health"), "SERVING\n")  # pinned: the name is nobody's affair

    def test_plain_text_to_tls_and_the_other_way_around(self):
        running = self.begin()
        said = self.ctl(*self.at(running), "status", status=69)
        self.assertIn("before a word was said: a job with control.tls wants --tls or --ca", said)
        self.assertRegex(self.refusals(running)[-1]["reason"], "^TLS: what the peer sends is none$")
        with socket.create_connection(("127.0.0.1", self.port(running)), 20) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(connection.recv(4096), b"")
        plain = self.start(dict(self.job, control={"listen": "tcp://127.0.0.1:0"}), ranks=0, output="plain").until_step(1)
        said = self.ctl(*self.at(plain), "--ca", self.ours.pem, "status", status=69)
        self.assertIn("TLS: what the peer sends is none: a job without control.tls wants neither --tls nor --ca", said)
        plain.process.terminate()
        plain.wait()
        self.goes_on(running)

    # ---- who the clients are ----

    def test_clients_show_a_certificate_where_one_is_wanted(self):
        running = self.begin(clients=self.ours.pem)
        self.assertTrue(running.connection()["tls"]["client_certificate"])
        own, other = self.ours.sign("client", "DNS:jo"), self.others.sign("foreign", "DNS:jo")
        at = [*self.at(running), "--ca", self.ours.pem]
        self.assertEqual(self.ctl(*at, "--certificate", own[0], "--key", own[1], "health"), "SERVING\n")
        self.assertEqual(self.ctl("--run", "run", "--certificate", own[0], "--key", own[1], "health"), "SERVING\n")
        for words in ([], ["--certificate", other[0], "--key", other[1]]):
            said = self.ctl(*at, *words, "status", status=69)
            self.assertIn("control.tls.client_authorities wants --certificate and --key, signed by one of them", said)
        reasons = {record["reason"] for record in self.refusals(running, 2)}
        self.assertLessEqual(reasons, {"TLS: peer did not return a certificate",
                                       "TLS: the peer's certificate: unable to get local issuer certificate"})
        said = self.ctl("--connect", at[1], "--ca", self.ours.pem, "--certificate", own[0], "--key", own[1], "status", status=77)
        self.assertIn("a valid token is required", said)  # all the same

    def test_http_1_1_goes_through_tls(self):
        running = self.begin()
        endpoint = running.connection()["endpoint"]
        context = ssl.create_default_context(cafile=self.ours.pem)
        bearer = {"Authorization": f"Bearer {running.connection()['read_token']}"}
        for path, word in (("/healthz", "ok"), ("/api/status", '"job"'), ("/metrics", "gacc_steps_total")):
            status, _, body = http_client.get(endpoint, path, tls=context, **bearer)
            self.assertEqual(status, 200)
            self.assertIn(word, body)
            self.assertEqual(http_client.get(endpoint, path, tls=context)[0], 401)
        context.set_alpn_protocols(["h2", "http/1.1"])  # as curl and Prometheus do
        self.assertEqual(self.handshake(running, context).selected_alpn_protocol(), "http/1.1")
        context.set_alpn_protocols(["h2"])
        wrapped = self.handshake(running, context)
        self.assertEqual((wrapped.selected_alpn_protocol(), wrapped.compression()), ("h2", None))

    def test_old_versions_are_refused(self):
        running = self.begin()
        for version, taken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context(cafile=self.ours.pem)
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # 1.1 is old
                context.maximum_version = version
            if taken:
                self.assertEqual(self.handshake(running, context).version(), version.name.replace("_", "."))
            else:
                self.assertRaises(ssl.SSLError, self.handshake, running, context)
        self.assertEqual({record["reason"] for record in self.refusals(running)}, {"TLS: unsupported protocol"})

    # ---- noise ----

    def test_noise_and_stalled_handshakes_disturb_nothing(self):
        """More of them than the coordinator keeps: who comes takes the place of one; the others last no longer than its patience."""
        running = self.begin()
        stalled = [socket.create_connection(("127.0.0.1", self.port(running)), 20) for _ in range(60)]
        for i, connection in enumerate(stalled):
            self.addCleanup(connection.close)
            connection.sendall(HELLO[: i % 12])
        began = time.monotonic()
        numbers = random.Random(7)
        for i in range(100):
            with socket.create_connection(("127.0.0.1", self.port(running)), 20) as connection:
                try:
                    connection.sendall((HELLO if i % 2 else b"") + numbers.randbytes(numbers.randrange(1, 5000)))
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                except OSError:  # reset
                    pass
        self.assertEqual(self.ctl("--run", "run", "health"), "SERVING\n")
        for connection in stalled:
            connection.settimeout(max(0.1, began + PATIENCE * harness.SLOWER + 3 - time.monotonic()))
            try:
                self.assertEqual(connection.recv(1), b"")
            except ConnectionResetError:
                pass
        self.refusals(running)
        self.goes_on(running)

    def test_who_breaks_off_anywhere_in_a_conversation_disturbs_nothing(self):
        running = self.begin()
        whole = self.recorded(running)
        self.assertGreater(len(whole), 400)
        for length in range(0, len(whole), 41):
            with socket.create_connection(("127.0.0.1", self.port(running)), 20) as connection:
                connection.sendall(whole[:length])
        for length in range(0, len(whole), 41):  # a record that was tampered with
            with socket.create_connection(("127.0.0.1", self.port(running)), 20) as connection:
                try:
                    connection.sendall(whole[:length] + bytes([whole[length] ^ 1]) + whole[length + 1:])
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(4096):
                        pass
                except OSError:
                    pass
        self.assertEqual(self.ctl("--run", "run", "health"), "SERVING\n")
        self.goes_on(running)

    def recorded(self, running):
        """All bytes that a client sends."""
        context = ssl.create_default_context(cafile=self.ours.pem)
        context.set_alpn_protocols(["h2"])
        incoming, outgoing, sent = ssl.MemoryBIO(), ssl.MemoryBIO(), b""
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with socket.create_connection(("127.0.0.1", self.port(running)), 20) as connection:
            while True:
                try:
                    client.do_handshake()
                    client.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
                    return sent + outgoing.read()
                except ssl.SSLWantReadError:
                    data = outgoing.read()
                    sent += data
                    connection.sendall(data)
                    incoming.write(connection.recv(65536))

    # ---- the job itself ----

    def test_a_job_that_is_asked_over_tls_is_the_same_job(self):
        """Log and weights to the last bit."""
        self.job["job"]["steps"] = 40
        self.assertEqual(self.run_job(self.job, output="alone").status, 0)
        tls = {"certificate": self.certificate, "key": self.key}
        running = self.start(dict(self.job, control={"listen": "tcp://127.0.0.1:0", "tls": tls}), ranks=2).until_step(1)
        asking = threading.Thread(target=self.ask_until_the_end, args=[running])
        asking.start()
        self.assertEqual(running.wait(60).status, 0)
        asking.join()
        logs, weights = [], []
        for output in ("alone", "run"):
            logs.append([{key: value for key, value in record.items() if key != "seconds"}
                         for record in self.log(output=output) if record["type"] != "control"])
            with open(os.path.join(self.directory, output, "final", "model.safetensors"), "rb") as file:
                weights.append(file.read())
        self.assertEqual(*logs)
        self.assertEqual(*weights)

    def ask_until_the_end(self, running):
        while running.process.poll() is None:
            self.call(harness.GACCCTL, "--run", "run", "status")


if __name__ == "__main__":
    harness.main()
