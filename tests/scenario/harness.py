"""Runs whole jobs for the scenario tests: mpirun, gaccd and gaccctl as users call them.

Each test gets a directory of its own, and leaves nothing behind: no process, socket or shared-memory file, which is checked at
its end.
"""
import contextlib
import ctypes
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import breakpoint

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("GACC_BUILD", os.path.join(ROOT, "build"))
GACCD = os.path.join(BUILD, "daemon", "gaccd")
GACCCTL = os.path.join(BUILD, "daemon", "gaccctl")
MICRO_FORWARD = 2  # gacc.v1.State
DEVICE = os.environ.get("GACC_DEVICE")  # all jobs of a suite on this device; None: as users have it

# Open MPI on a machine with fewer cores than ranks, as root or not.
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_plm_rsh_agent": "",
}

# What ends must end within two seconds. On a machine that others load it only has to be seen that nothing hangs.
PROMPT = float(os.environ.get("GACC_PROMPT") or (2 if os.getloadavg()[0] < 3 else 10))


# How many times longer everything may take: programs with sanitizers.
SLOWER = float(os.environ.get("GACC_SLOWER", 1))

# How many seconds a test is late whenever it has waited for a job: one that passes with 1 as well does not rest on a slow machine.
LATE = float(os.environ.get("GACC_LATE", 0))

SANITIZER = os.environ.get("GACC_SANITIZER")  # address, thread; None: none

SANITIZERS = ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")


def separate_shared_memory():
    """A /dev/shm of this suite's own, where that is permitted: what jobs of other suites leave for a moment is not ours to judge."""
    new_mounts = 0x20000  # CLONE_NEWNS
    if os.getuid() != 0 or ctypes.CDLL(None).unshare(new_mounts) != 0:
        return
    for arguments in (["--make-rprivate", "/"], ["-t", "tmpfs", "tmpfs", "/dev/shm"]):
        if subprocess.run(["mount", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            return


separate_shared_memory()


# Of a run directory. Who is killed while others still see it may leave them, half a result too.
ONLY_WHILE_IT_RUNS = {"connection.json", "connection.json.tmp", "lock.json", "lock.json.tmp", "result.json.tmp"}


def own_lines(text):
    """What gaccd itself said on stderr; mpirun adds paragraphs of its own."""
    return [line for line in text.splitlines() if line.startswith("gaccd: ")]


# A job that is simulated on a slower machine than the one it is for (tests/sim) has so many times as long.
PATIENCE = float(os.environ.get("GACC_PATIENCE") or 1)


class Finished:
    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def own_lines(self):
        return own_lines(self.err)


class Running:
    """A job under way; `name` is its output directory."""

    def __init__(self, scenario, command, output):
        self.scenario, self.output = scenario, os.path.join(scenario.directory, output)
        self.out, self.err = (open(os.path.join(scenario.directory, name), "w+") for name in ("stdout", "stderr"))
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, cwd=scenario.directory, env=scenario.environment, stdin=subprocess.DEVNULL,
                                        stdout=self.out, stderr=self.err)
        scenario.running.append(self)

    def wait(self, limit=30):
        try:
            self.process.wait(limit * SLOWER)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit} s; stderr: {self.said()[1]}") from None
        self.seconds = time.monotonic() - self.began
        out, err = self.said()
        return Finished(self.process.returncode, out, err, self.seconds)

    def wait_without_mpirun(self, limit=60):
        """When a rank is killed while it connects, Open MPI 4.1's mpirun can wait for itself for ever, or die of SIGPIPE, and leave its
        session. Then nobody else may be left."""
        alone_since = time.monotonic()

        def is_over():
            nonlocal alone_since
            if self.process.args[0] != "mpirun" or self.scenario.processes() != [self.process.pid]:
                alone_since = time.monotonic()
            return self.process.poll() is not None or time.monotonic() - alone_since > 5 * SLOWER

        until(is_over, limit, "the end")
        self.mpirun_hung = self.process.poll() is None
        if self.mpirun_hung:
            self.process.kill()
        done = self.wait(5)
        if self.mpirun_hung or done.status == -signal.SIGPIPE:
            for session in glob.glob(os.path.join(self.scenario.temporary, "ompi.*", f"pid.{self.process.pid}")):
                shutil.rmtree(session)
                if not os.listdir(os.path.dirname(session)):
                    os.rmdir(os.path.dirname(session))
        return done

    def said(self):
        texts = []
        for file in (self.out, self.err):
            file.seek(0)
            texts.append(file.read())
        return texts

    def log(self, kind=None):
        return read_log(self.output, kind)

    def connection(self):
        with open(os.path.join(self.output, "connection.json")) as file:
            return json.load(file)

    def meet(self):
        """Stops rank 0 before it begins to train: the job lasts until it is let go."""
        wait_for(lambda: 0 in self.ranks(), 20, "rank 0")
        rank = self.ranks()[0]
        path = os.path.join(self.output, "connection.json")
        wait_for(lambda: os.path.exists(path), 20, "connection.json", 0.001)
        os.kill(rank, signal.SIGSTOP)
        return self

    def let_go(self):
        os.kill(self.ranks()[0], signal.SIGCONT)

    @contextlib.contextmanager
    def held(self):
        """Rank 0 does not get beyond the beginning of a window meanwhile; its other threads do what they do."""
        why = breakpoint.unusable()
        if why:
            self.scenario.skipTest(why)
        trap = breakpoint.Breakpoint(self.ranks()[0], GACCD, "state")  # of control_client.c
        registers = trap.hit_in(MICRO_FORWARD)
        try:
            yield
        finally:
            trap.release(registers)

    def until_step(self, step, limit=20):
        """Waits until the log holds this step."""
        def there():
            if any(record["step"] >= step for record in self.log("step")):
                return True
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before step {step}: {self.said()[1]}")
            return False

        until(there, limit, f"step {step}")
        return self

    def ranks(self):
        """Process ids by rank."""
        found = {}
        for pid in self.scenario.processes():
            variables = environment_of(pid)
            # The coordinator has the variables of rank 0, whose child it is, and at first its name.
            if os.path.basename(executable_of(pid)) == "gaccd" and name_of(pid) == "gaccd":
                found.setdefault(int(variables.get("OMPI_COMM_WORLD_RANK", 0)), pid)
        return found


class Scenario(unittest.TestCase):
    """A test with a directory, jobs, and a clean end."""

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="gacc-scenario-")
        self.mark = os.path.basename(self.directory)
        self.temporary = os.path.join(self.directory, "tmp")  # sockets, and Open MPI's session directory
        os.mkdir(self.temporary)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
        self.environment.update(MPI, TMPDIR=self.temporary, XDG_RUNTIME_DIR=self.temporary, GACC_SCENARIO=self.mark)
        self.reports = os.path.join(self.directory, "reports")  # sanitizers', of whatever process
        os.mkdir(self.reports)
        for name in SANITIZERS:
            self.environment[name] = ":".join(filter(None, (os.environ.get(name), f"log_path={self.reports}/report")))
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.running = []

    def tearDown(self):
        try:
            self.check_nothing_is_left()
            self.check_no_reports()
        finally:
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            for job in self.running:
                job.process.wait()
                job.out.close()
                job.err.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "wb" if isinstance(text, bytes) else "w") as file:
            file.write(text)
        return path

    def command(self, job, ranks, arguments, output, mpirun=()):
        if isinstance(job, dict):
            self.write("job.yaml", json.dumps(job))  # JSON is YAML
            job = "job.yaml"
        launcher = ["mpirun", *mpirun, "-n", str(ranks)] if ranks else []
        device = ["--device", DEVICE] if DEVICE else []
        return [*launcher, GACCD, job, "--output", output, *device, *arguments]

    def start(self, job, ranks=2, arguments=(), output="run", mpirun=()):
        """ranks 0: without mpirun."""
        return Running(self, self.command(job, ranks, arguments, output, mpirun), output)

    def run_job(self, job, ranks=2, arguments=(), output="run", limit=60, mpirun=()):
        return self.start(job, ranks, arguments, output, mpirun).wait(limit)

    def call(self, *command, limit=30, env=None):
        """A short program, to its end."""
        began = time.monotonic()
        done = subprocess.run(command, cwd=self.directory, env=env or self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=limit * SLOWER)
        return Finished(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def log(self, kind=None, output="run"):
        return read_log(os.path.join(self.directory, output), kind)

    def result(self, output="run"):
        with open(os.path.join(self.directory, output, "result.json")) as file:
            return json.load(file)

    def processes(self):
        """Everything that a job of this test started and that still runs."""
        found = []
        for pid in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
            if int(pid) != os.getpid() and environment_of(pid).get("GACC_SCENARIO") == self.mark and not is_zombie(pid):
                found.append(int(pid))
        return found

    def check_nothing_is_left(self, limit=3):
        self.assertEqual(until_empty(self.processes, limit), [], "processes are left")
        self.assertEqual(until_empty(lambda: os.listdir(self.temporary), limit), [], "sockets or sessions are left")
        self.assertEqual(until_empty(self.unused_shared_memory, limit), [], "shared memory is left")
        for path, _, names in os.walk(self.directory):
            self.assertFalse(ONLY_WHILE_IT_RUNS & set(names), path)

    def check_no_reports(self):
        for name in sorted(os.listdir(self.reports)):
            with open(os.path.join(self.reports, name), errors="replace") as file:
                self.fail(f"a sanitizer's {name}:\n{file.read()}")

    def unused_shared_memory(self):
        """New entries that no process maps: other jobs may run beside this one."""
        new = set(os.listdir("/dev/shm")) - self.shared_memory
        return sorted(name for name in new if name.startswith(("gaccd-", "vader")) and not is_mapped("/dev/shm/" + name))


class Endless(Scenario):
    """Jobs that go on until the test is over."""

    def tearDown(self):
        for running in self.running:
            if running.process.poll() is None:
                ranks = running.ranks()
                with contextlib.suppress(ProcessLookupError):  # it may be ending by itself
                    if ranks:
                        os.kill(ranks[max(ranks)], signal.SIGKILL)
                running.wait(20)
        super().tearDown()


def read_log(output, kind=None):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    try:
        with open(os.path.join(output, "log.jsonl")) as file:
            lines = file.read().split("\n")[:-1]  # a line being written has no newline yet
    except FileNotFoundError:
        return []
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    return [record for record in records if kind in (None, record["type"])]


def wait_for(condition, limit, what, pause=0.02):
    end = time.monotonic() + limit * SLOWER
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(pause)


def until(condition, limit, what):
    wait_for(condition, limit, what)
    time.sleep(LATE)


def until_empty(what, limit):
    end = time.monotonic() + limit * SLOWER
    while (found := what()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def read_proc(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def environment_of(pid):
    return dict(entry.split("=", 1) for entry in read_proc(pid, "environ").split("\0") if "=" in entry)


def executable_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def name_of(pid):
    return read_proc(pid, "comm").strip()


def is_zombie(pid):
    return read_proc(pid, "stat").rpartition(")")[2][:2] == " Z"


def is_mapped(path):
    return any(path in read_proc(pid, "maps") for pid in os.listdir("/proc") if pid.isdigit())


def tape(steps=5, rows=((1, 1, 2), (1, 3, 4), (1, 5, 6), (1, 7, 8)), **sections):
    """A job without a model, and the text of its data file tape.csv."""
    width = len(rows[0]) - 1
    text = ",".join(["weight", *(f"g{i}" for i in range(width))]) + "\n"
    text += "".join(",".join(str(number) for number in row) + "\n" for row in rows)
    job = {
        "job": {"name": "tape", "steps": steps},
        "model": {"type": "tape", "size": width},
        "data": {"format": "csv", "train": "tape.csv", "order": "sequential"},
        "batch": {"global": len(rows), "micro": 1},
        "precision": {"compute": "fp32"},
        "optimizer": {"type": "sgd", "lr": 0.1},
    }
    job.update(sections)
    return job, text


def gpt(steps=5, **sections):
    """A small language model on the bytes of text.txt."""
    job = {
        "job": {"name": "gpt", "steps": steps},
        "model": {"type": "gpt", "layers": 2, "heads": 2, "width": 32, "context": 32, "vocab": 256},
        "data": {"format": "bytes", "train": "text.txt"},
        "batch": {"global": 8, "micro": 2},
        "precision": {"compute": "fp32"},
        "optimizer": {"type": "adamw", "lr": 0.001},
    }
    job.update(sections)
    return job, "".join(f"{i} times {i} is {i * i}.\n" for i in range(1000))


def slow_gpt(**sections):
    """One with whose verification three ranks are busy for minutes, however fast the machine."""
    return gpt(model={"type": "gpt", "layers": 8, "heads": 8, "width": 256, "context": 256, "vocab": 256}, **sections)


def main():
    """unittest.main, with a line "skipped: why" for each skip."""
    program = unittest.main(module="__main__", verbosity=2, exit=False)
    for _, why in program.result.skipped:
        print("skipped:", why)
    sys.exit(not program.result.wasSuccessful())
