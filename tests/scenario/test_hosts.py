"""A job on several hosts: network namespaces with names and one core of their own, joined by a bridge.

What differs from one host: workers join over TCP, MPI's messages cross a network, and that network can break.
"""
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

import harness
from certificates import Authority

PORT = 7711  # nothing else lives in these namespaces
TIMEOUT = int(2 * harness.SLOWER)  # s: control.timeout of a job that loses a host
VERIFY_TIMEOUT = TIMEOUT + 1  # s: silence is spoken of before it

# mpirun's way to another host: AGENT HOST COMMAND.
AGENT = """#!/bin/sh
host=$1
shift
case $host in
%s
esac
exec ip netns exec $host unshare --uts taskset -c $core sh -c "hostname $host; $*"
"""


def why_not():
    """Why this machine cannot play several hosts; None when it can."""
    if os.geteuid() != 0:
        return "not root: no network namespaces"
    for program in ("ip", "ss", "unshare", "taskset"):
        if not shutil.which(program):
            return f"there is no {program}"
    probe = f"gacc{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return done.stderr.strip() or "ip netns does not work" if done.returncode else None


class Network:
    """`hosts` namespaces NAMEa, NAMEb…, on a bridge NAME; addresses 10.77.0.1 and so on."""

    def __init__(self, hosts):
        self.bridge = f"gacc{os.getpid()}"
        self.hosts = [self.bridge + "abcdefgh"[i] for i in range(hosts)]
        allowed = sorted(os.sched_getaffinity(0))
        self.cores = {host: allowed[i % len(allowed)] for i, host in enumerate(self.hosts)}

    def build(self):
        ip("link", "add", self.bridge, "type", "bridge")
        ip("link", "set", self.bridge, "up")
        for i, host in enumerate(self.hosts):
            ip("netns", "add", host)
            ip("link", "add", self.port(host), "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("link", "set", self.port(host), "master", self.bridge, "up")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "address", "add", f"{self.address(i)}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")

    def remove(self):
        """Whatever of it there is."""
        for host in self.hosts:
            subprocess.run(["ip", "link", "del", self.port(host)], capture_output=True)
            subprocess.run(["ip", "netns", "del", host], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def address(self, index):
        return f"10.77.0.{index + 1}"

    def port(self, host):
        """The bridge's end of the host's cable."""
        return host + "v"

    def cut(self, host):
        ip("link", "set", self.port(host), "down")

    def inside(self, host, *command):
        return ["ip", "netns", "exec", host, "unshare", "--uts", "taskset", "-c", str(self.cores[host]),
                "sh", "-c", 'hostname "$0" && exec "$@"', host, *command]


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


class Hosts(harness.Scenario):
    def setUp(self):
        self.network = Network(2)
        self.addCleanup(self.network.remove)  # after tearDown has ended what runs inside, and when setUp fails
        self.network.build()
        super().setUp()
        cores = "\n".join(f"{host}) core={core} ;;" for host, core in self.network.cores.items())
        self.agent = self.write("agent", AGENT % cores)
        os.chmod(self.agent, 0o755)
        self.job, text = harness.gpt(steps=20)
        self.job["batch"] = {"global": 8, "micro": 1}
        self.write("text.txt", text)
        self.first, self.second = self.network.hosts

    def command(self, *arguments, **named):
        """Everything starts on the first host."""
        return self.network.inside(self.first, *super().command(*arguments, **named))

    def spread(self, each=1):
        """mpirun's arguments for `each` ranks on every host."""
        hosts = ",".join(f"{host}:{each}" for host in self.network.hosts)
        return ["--host", hosts, "--mca", "plm_rsh_agent", self.agent]

    def start_forever(self, mpirun=(), **sections):
        job = dict(self.job, job={"name": "forever", "steps": 10**9}, **sections)
        return self.start(job, mpirun=[*self.spread(), *mpirun]).until_step(3)

    def listening_ports(self, pid):
        done = self.call("ip", "netns", "exec", self.first, "ss", "-tlnpH")
        return [int(line.split()[3].rpartition(":")[2]) for line in done.out.splitlines() if f"pid={pid}," in line]

    def end(self, running):
        os.kill(running.ranks()[1], signal.SIGKILL)
        running.wait(20)

    def check_equal(self, output, other):
        """Logs but for times, and final weights to the bit."""
        def comparable(output):
            return [{key: value for key, value in record.items() if key != "seconds"} for record in self.log(output=output)]

        def weights(output):
            with open(os.path.join(self.directory, output, "final", "model.safetensors"), "rb") as file:
                return file.read()

        self.assertEqual(comparable(output), comparable(other))
        self.assertEqual(weights(output), weights(other))

    # ---- the same job ----

    def test_one_rank_on_each_of_two_hosts_does_what_two_ranks_on_one_do(self):
        self.assertEqual(self.run_job(self.job, ranks=2, output="one").status, 0)
        done = self.run_job(self.job, ranks=2, output="two", mpirun=self.spread())
        self.assertEqual(done.status, 0, done.err)
        self.check_equal("two", "one")

    def test_two_ranks_on_each_of_two_hosts_do_what_four_on_one_do(self):
        self.assertEqual(self.run_job(self.job, ranks=4, output="one").status, 0)
        done = self.run_job(self.job, ranks=4, output="two", mpirun=self.spread(2))
        self.assertEqual(done.status, 0, done.err)
        self.check_equal("two", "one")

    def test_workers_join_over_tcp_from_their_hosts(self):
        running = self.start_forever()
        status = json.loads(self.call(harness.GACCCTL, "--run", running.output, "status", "--json").out)
        self.assertEqual([rank["host"] for rank in status["ranks"]], self.network.hosts)
        port, = self.listening_ports(running.connection()["pid"])  # operators have a unix socket
        done = self.call("ip", "netns", "exec", self.second, "ss", "-tnH", "state", "established", "dst",
                         f"{self.network.address(0)}:{port}")
        self.assertEqual(len(done.out.splitlines()), 1, done.out + done.err)
        self.end(running)

    def test_a_rank_that_waits_for_a_decision_still_sends(self):
        """Parts of a reduction above the eager limit (64 KiB) may leave after it has returned; one in 300 steps hung so."""
        self.job["job"]["steps"] = 300
        done = self.run_job(self.job, mpirun=self.spread(), limit=200)
        self.assertEqual(done.status, 0, done.err)
        self.assertGreater(self.log("step")[0]["bytes"]["reduce_scatter"], 65536)

    # ---- losing a host ----

    def test_a_rank_that_dies_on_the_other_host_ends_all(self):
        running = self.start_forever()
        os.kill(running.ranks()[1], signal.SIGKILL)
        done = running.wait(harness.PROMPT + 3)  # mpirun waits for its daemon over there
        self.assertEqual(done.status, 137)
        self.assertEqual(len(done.own_lines()), 1, done.err)
        self.assertIn("rank 1", done.own_lines()[0])
        self.assertIn("rank 1", self.result()["reason"])

    def gaccds(self):
        """Ranks and coordinator, on all hosts."""
        return [pid for pid in self.processes() if harness.executable_of(pid) == harness.GACCD]

    def test_a_cut_link_ends_ranks_and_coordinator_within_the_timeout(self):
        running = self.start_forever(control={"timeout": f"{TIMEOUT} s"})
        self.assertEqual(len(self.gaccds()), 3)
        self.network.cut(self.second)
        self.assertEqual(harness.until_empty(self.gaccds, TIMEOUT + harness.PROMPT + 2), [])
        result = self.result()
        self.assertEqual((result["status"], result["exit"]), ("failed", 70))
        self.assertRegex(result["reason"], rf"^rank 1: .* for {TIMEOUT} s \(control\.timeout\)")
        self.assertEqual(self.log("end")[-1]["reason"], result["reason"])
        last = "gaccd: " + result["reason"]
        harness.until(lambda: last in harness.own_lines(running.said()[1]), 5, "rank 0's line")
        before = [f"gaccd: rank 1: silent for 2 s; lost after {TIMEOUT} s (control.timeout)"] if TIMEOUT > 2 else []
        self.assertEqual(harness.own_lines(running.said()[1]), [*before, last])
        self.end_launchers()

    def end_launchers(self):
        """mpirun and its daemon behind a cut link know nothing of it yet: Open MPI's own timeouts, see the next test."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for name in os.listdir(self.temporary):
            shutil.rmtree(os.path.join(self.temporary, name))

    def test_with_keepalive_shorter_than_the_timeout_a_cut_link_ends_mpirun_too(self):
        keepalive = {"time": 1, "intvl": 1, "probes": 2}
        options = [word for name, value in keepalive.items() for word in ("--mca", f"oob_tcp_keepalive_{name}", str(value))]
        running = self.start_forever(options, control={"timeout": "10 s"})
        self.network.cut(self.second)
        done = running.wait(8 + harness.PROMPT)
        self.assertNotEqual(done.status, 0)
        self.assertEqual(harness.until_empty(self.processes, 5), [])
        result = self.result()
        self.assertEqual((result["status"], result["exit"]), ("failed", 70))
        self.assertRegex(result["reason"], "^rank [01]: ")  # mpirun kills rank 0: who is missed first is chance
        silence = "gaccd: rank 1: silent for 2 s; lost after 10 s (control.timeout)"
        self.assertIn([line for line in done.own_lines() if line != silence], ([], ["gaccd: " + result["reason"]]), done.err)

    # ---- losing a host under verify, where no coordinator looks after the ranks ----

    def start_verify(self, each=1):
        job, text = harness.slow_gpt(control={"timeout": f"{VERIFY_TIMEOUT} s"})
        self.write("text.txt", text)
        self.write("job.yaml", json.dumps(job))
        command = ["mpirun", *self.spread(each), "-n", str(2 * each), harness.GACCD, "verify", "job.yaml", "--output", "run"]
        running = harness.Running(self, self.network.inside(self.first, *command), "run")
        harness.until(lambda: "probe: " in running.said()[0], 60, "the probe")
        self.assertEqual(len(self.gaccds()), 2 * each)
        return running

    def check_waits(self, lines, rank, others):
        """What `rank` says of those that it hears no more, in whatever order."""
        begin, last = [line.removeprefix(f"gaccd: verify: rank {rank} waits ") for line in lines[:-1]], lines[-1]
        end = "(control.timeout)"
        self.assertEqual(sorted(begin), [f"for rank {other}, which is silent; not beyond {VERIFY_TIMEOUT} s {end}" for other in others])
        self.assertIn(last, [f"gaccd: verify: rank {rank} waits no longer for rank {other}, which is silent for {VERIFY_TIMEOUT} s {end}"
                             for other in others])

    def test_a_rank_of_verify_that_is_stopped_alone_on_its_host_is_waited_for_until_the_timeout(self):
        running = self.start_verify()
        os.kill(running.ranks()[1], signal.SIGSTOP)
        done = running.wait(VERIFY_TIMEOUT + harness.PROMPT + 5)
        self.assertEqual(done.status, 70, done.err)
        self.check_waits(done.own_lines(), 0, [1])
        self.assertFalse(os.path.exists(running.output))

    def test_a_cut_link_ends_all_ranks_of_verify_within_the_timeout(self):
        running = self.start_verify(2)
        self.network.cut(self.second)
        self.assertEqual(harness.until_empty(self.gaccds, VERIFY_TIMEOUT + harness.PROMPT + 4), [])
        harness.until(lambda: "no longer" in running.said()[1], 5, "rank 0's line")
        self.check_waits(harness.own_lines(running.said()[1]), 0, [2, 3])
        self.assertFalse(os.path.exists(running.output))
        self.end_launchers()

    # ---- strangers ----

    def strangers(self, *arguments):
        return self.network.inside(self.second, sys.executable, os.path.abspath(__file__), "--stranger", *arguments)

    def test_strangers_on_the_workers_port_are_refused_and_disturb_nothing(self):
        running = self.start_forever()
        port, = self.listening_ports(running.connection()["pid"])
        done = self.call(*self.strangers("all", self.network.address(0), str(port)), limit=60)
        self.assertEqual(done.status, 0, done.err)
        answers = json.loads(done.out)
        for name in ("Join without a secret", "Join with a wrong secret", "Join with a secret too short"):
            self.assertEqual(answers.pop(name), "UNAUTHENTICATED")
        self.assertEqual(answers.pop("Join in plain text"), "UNAVAILABLE")
        self.assertEqual(answers.pop("GetStatus"), "UNIMPLEMENTED")  # this port serves Join alone
        self.assertEqual(answers.pop("no such method"), "UNIMPLEMENTED")
        self.assertEqual(set(answers.values()), {"closed"}, answers)  # those who speak no TLS, or no HTTP/2 in it
        reasons = {record["reason"] for record in running.log("control") if not record["reason"].startswith("TLS: ")}
        self.assertLessEqual(reasons, {"no secret", "a secret that is not this job's", "an operator's call"})
        self.assertIn("TLS: what the peer sends is none", {record["reason"] for record in running.log("control")})
        running.until_step(len(running.log("step")) + 10)
        self.assertEqual({record["verdict"] for record in running.log("step")}, {"apply"})
        self.end(running)

    def test_a_middleman_with_a_certificate_of_his_own_hears_nothing(self):
        """He has the coordinator's address on the other host: the rank there says why it cannot join, and nothing to him."""
        certificate, key = Authority(self.directory).sign("middleman", "DNS:gaccd")
        for host in self.network.hosts:
            ip("-n", host, "address", "add", "10.88.0.1/32", "dev", "lo")
        middleman = subprocess.Popen(self.strangers("middleman", "10.88.0.1", str(PORT), certificate, key), env=self.environment,
                                     stdout=subprocess.PIPE, text=True)
        self.addCleanup(middleman.stdout.close)
        self.assertEqual(middleman.stdout.readline(), "ready\n")
        options = [word for kind in ("btl", "oob") for word in ("--mca", f"{kind}_tcp_if_include", "eth0")]
        job = dict(self.job, control={"workers": f"tcp://10.88.0.1:{PORT}"})
        done = self.run_job(job, mpirun=[*self.spread(), *options])
        self.assertEqual(done.status, 69, done.err)
        self.assertIn(f"gaccd: rank 1: cannot reach the coordinator at tcp://10.88.0.1:{PORT}: TLS: the peer's certificate: "
                      "certificate not trusted", done.own_lines())
        self.assertEqual((self.result()["exit"], "cannot reach the coordinator" in self.result()["reason"]), (69, True))
        self.assertEqual(middleman.wait(10), 0)
        self.assertRegex(middleman.stdout.read(), "^(\\[SSL|Connection reset|EOF)")  # no handshake, and no byte behind it

    def run_among_strangers(self, what, output):
        """A job on a port that strangers knock at from before it listens; how often they could connect."""
        job = dict(self.job, control={"workers": f"tcp://{self.network.address(0)}:{PORT}"})
        strangers = subprocess.Popen(self.strangers(what, self.network.address(0), str(PORT)), env=self.environment,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            done = self.run_job(job, output=output, mpirun=self.spread())
        finally:
            strangers.terminate()
            connected = int(strangers.communicate(timeout=10)[0] or 0)
        self.assertEqual(done.status, 0, done.err)
        return connected

    def test_a_flood_of_noise_from_before_the_start_changes_nothing(self):
        if harness.SANITIZER:
            self.skipTest("strangers without a sanitizer are quicker than a rank with one")
        self.assertEqual(self.run_job(self.job, output="quiet").status, 0)
        self.assertGreater(self.run_among_strangers("flood", "flooded"), 100)
        self.assertEqual([record["loss"] for record in self.log("step", "flooded")],
                         [record["loss"] for record in self.log("step", "quiet")])

    def test_strangers_who_say_nothing_cannot_keep_the_ranks_out(self):
        self.assertGreaterEqual(self.run_among_strangers("idle", "run"), IDLE)


# ---- the strangers, in a process on another host ----

IDLE = 150  # connections: more than the coordinator keeps

GARBAGE = {
    "nothing but noise": bytes(range(256)) * 64,
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a TLS hello": bytes.fromhex("1603010200010001fc0303") + bytes(506),
    "a preface, then noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
}


def seal(connection):
    """Whose certificate it is, a stranger cannot know."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def send_garbage(address, bytes_, through=lambda connection: connection):
    """"closed" when the other side closes."""
    with socket.create_connection(address, 10) as raw, through(raw) as connection:
        try:
            connection.sendall(bytes_)
            while connection.recv(4096):
                pass
        except TimeoutError:
            return "still open"
        except OSError:  # reset: it closed before it had read everything
            pass
    return "closed"


def call_with_grpc(address):
    """A stranger knows no certificate: he takes the one that is shown."""
    import grpc

    def code(path, metadata=(), by=None):
        call = (by or channel).stream_stream(path, lambda message: message, lambda message: message)
        try:
            list(call(iter([b"\x0a\x02\x10\x02"]), metadata=metadata, timeout=10))
        except grpc.RpcError as error:
            return error.code().name
        return "OK"

    join, at = "/gacc.v1.Workers/Join", "%s:%d" % address
    credentials = grpc.ssl_channel_credentials(ssl.get_server_certificate(address).encode())
    named = [("grpc.ssl_target_name_override", "gaccd")]
    with grpc.secure_channel(at, credentials, named) as channel, grpc.insecure_channel(at) as plain:
        return {
            "Join in plain text": code(join, by=plain),
            "Join without a secret": code(join),
            "Join with a wrong secret": code(join, [("gacc-secret-bin", bytes(32))]),
            "Join with a secret too short": code(join, [("gacc-secret-bin", bytes(3))]),
            "GetStatus": code("/gacc.v1.Control/GetStatus"),
            "no such method": code("/gacc.v1.Workers/Leave"),
        }


def flood(address, noises, limit):
    """Connects again and again, as soon as somebody listens; prints how often it could when it is terminated."""
    count, held = 0, []

    def end(*_):
        print(count, flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        try:
            if count >= limit:
                signal.pause()
            connection = socket.create_connection(address, 1)
            connection.setblocking(False)
            held.append(connection)
            connection.send(noises[count % len(noises)])
            count += 1
        except OSError:
            time.sleep(0.01)
        while len(held) > 200:
            held.pop(0).close()


def stand_between(address, certificate, key):
    """Prints what he heard in TLS of the first who comes, or why there was none."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    with socket.create_server(address) as listener:
        print("ready", flush=True)
        connection, _ = listener.accept()
        try:
            with context.wrap_socket(connection, server_side=True) as heard:
                print("heard", heard.recv(65536))
        except OSError as error:
            print(error.args[-1])


def stranger(what, host, port, *more):
    address = (host, int(port))
    if what == "middleman":
        stand_between(address, *more)
        return
    if what == "flood":
        flood(address, [*GARBAGE.values(), b""], float("inf"))
    if what == "idle":
        flood(address, [b""], IDLE)
    answers = {name: send_garbage(address, bytes_) for name, bytes_ in GARBAGE.items()}
    answers.update({f"{name}, in TLS": send_garbage(address, bytes_, seal) for name, bytes_ in GARBAGE.items()})
    answers.update(call_with_grpc(address))
    print(json.dumps(answers))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stranger"]:
        stranger(*sys.argv[2:])
        sys.exit(0)
    reason = why_not()
    if reason:
        print("skipped:", reason)
        sys.exit(77)
    harness.main()
