"""The machine that tests/gpu/run finds: its GPU, the packages it was sent, and commands that end in time."""
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "..", "scenario"))
from harness import MPI  # noqa: E402


class OutOfTime(Exception):
    """The run's time is over."""


class Failed(Exception):
    pass


class TooSlow(Failed):
    """A command was stopped at its own limit."""


def attempt(results, part, name, work, *arguments):
    """Calls work and returns what it does. What it raises is a row instead, so that one mistake does not cost the other parts."""
    try:
        return work(*arguments)
    except OutOfTime as why:
        results.add(part, name, "skip", note=str(why))
    except Failed as why:
        results.add(part, name, "fail", note=str(why))
    except Exception as why:  # pylint: disable=broad-except
        traceback.print_exc()
        results.add(part, name, "fail", note=f"{type(why).__name__}: {why}")
    return None


class Clock:
    """Seconds until everything must have ended."""

    def __init__(self, seconds):
        self.began = time.monotonic()
        self.end = self.began + seconds

    def left(self):
        return max(self.end - time.monotonic(), 0)

    def used(self):
        return time.monotonic() - self.began

    def limit(self, seconds):
        """(how long what may take so many seconds can take, what to raise when it takes longer)."""
        left = self.left()
        if left < 1:
            raise OutOfTime("no time was left")
        return (seconds, TooSlow) if seconds <= left else (left, OutOfTime)


class Gpu:
    def __init__(self, name, capability, memory_mib, driver):
        self.name, self.driver = name, driver
        self.architecture = capability.replace(".", "")  # 90: sm_90
        self.memory_mib = int(memory_mib)


def query(what):
    """nvidia-smi's answers for the first GPU, or None."""
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"], capture_output=True,
                              text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return [field.strip() for field in lines[0].split(",")] if done.returncode == 0 and lines else None


def find_gpu():
    found = query("name,compute_cap,memory.total,driver_version")
    return Gpu(*found) if found and len(found) == 4 else None


def count_gpus():
    try:
        done = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return 1
    return max(done.stdout.count("\n"), 1)


class MemoryWatch:
    """The most memory that was in use on the GPU (MiB) while in the with block, beyond what was before."""

    def __enter__(self):
        self.before, self.most, self.over = self.used(), 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    @staticmethod
    def used():
        found = query("memory.used")
        return int(found[0]) if found else 0

    def watch(self):
        while not self.over.wait(0.5):
            self.most = max(self.most, self.used() - self.before)


def module_file(build):
    """The GPU backend, where the program of that build looks for it."""
    return os.path.join(build, "daemon", "gacc_cuda.so")


def build_command(build, *targets):
    """targets: none are all."""
    return ["cmake", "--build", build, "-j", str(len(os.sched_getaffinity(0))), *(["--target", *targets] if targets else [])]


def find_tool(name):
    """A program of the CUDA toolkit, or None."""
    usual = os.path.join("/usr/local/cuda/bin", name)
    return shutil.which(name) or (usual if os.path.exists(usual) else None)


# Headers that a toolkit may come without, and their libraries; PyTorch brings both.
FROM_PYTORCH = {"cublas*.h": "libcublasLt.so", "nccl*.h": "libnccl.so"}


def link_libraries(into):
    """Links in into/include and into/lib to what of FROM_PYTORCH neither the toolkit nor the system has."""
    shutil.rmtree(into, ignore_errors=True)
    for part in ("include", "lib"):
        os.makedirs(os.path.join(into, part))
    nvcc = find_tool("nvcc")
    tops = ["/usr", "/usr/local", "/usr/local/cuda"] + ([os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))] if nvcc else [])
    packages = [os.path.join(top, "nvidia", "*") for top in sys.path]
    for headers, library in FROM_PYTORCH.items():
        there = [os.path.join(top, place) for top in tops
                 for place in (f"lib64/{library}", f"lib/{library}", f"lib/x86_64-linux-gnu/{library}")]
        if any(glob.glob(os.path.join(top, "include", headers)) for top in tops) and any(map(os.path.exists, there)):
            continue
        for package in packages:
            for path in glob.glob(os.path.join(package, "include", headers)):
                os.symlink(path, os.path.join(into, "include", os.path.basename(path)))
            for path in glob.glob(os.path.join(package, "lib", library + ".*")):
                for name in (os.path.basename(path), library):
                    os.symlink(path, os.path.join(into, "lib", name))


def unpack(pack, into):
    """What tests/gpu/pack left in `pack`, unpacked once."""
    archive = os.path.join(pack, "packages.tar.gz")
    mark = os.path.join(into, "made-from")
    made_from = f"{os.path.getsize(archive)} {os.path.getmtime(archive)}"
    if not os.path.exists(mark) or open(mark).read() != made_from:
        shutil.rmtree(into, ignore_errors=True)
        os.makedirs(into)
        with tarfile.open(archive) as tar:
            tar.extractall(into)
        with open(mark, "w") as file:
            file.write(made_from)
    return os.path.join(into, "pack")


def prepend(variables, name, *places):
    variables[name] = os.pathsep.join([*places, *filter(None, [variables.get(name)])])


def environment(tree, linked=None):
    """The environment for builds and runs with the packages in `tree` (None: with what is installed) and the links in
    `linked`."""
    variables = dict(os.environ, **MPI)
    nvcc = find_tool("nvcc")
    if nvcc:
        prepend(variables, "PATH", os.path.dirname(nvcc))
    if linked:
        prepend(variables, "CPATH", os.path.join(linked, "include"))
        prepend(variables, "CMAKE_PREFIX_PATH", linked)
    if not tree:
        return variables
    libraries = os.path.join(tree, "usr", "lib", "x86_64-linux-gnu")
    headers = os.path.join(tree, "usr", "include")
    blas = os.path.join(libraries, "openblas-openmp")
    prepend(variables, "PATH", os.path.join(tree, "usr", "bin"))
    prepend(variables, "CPATH", headers, os.path.join(headers, "x86_64-linux-gnu"))
    prepend(variables, "LIBRARY_PATH", libraries)
    prepend(variables, "CMAKE_PREFIX_PATH", os.path.join(tree, "usr"))
    variables.update({
        # RPATH, not RUNPATH: it holds for the libraries' own libraries, and comes before LD_LIBRARY_PATH.
        "LDFLAGS": f"-Wl,--disable-new-dtags,-rpath,{libraries}:{blas}",
        "PKG_CONFIG_SYSROOT_DIR": tree,
        "PKG_CONFIG_LIBDIR": os.path.join(libraries, "pkgconfig"),
        "OPAL_PREFIX": os.path.join(tree, "usr"),
        "PMIX_MCA_mca_base_component_path": os.path.join(libraries, "pmix2", "lib", "pmix"),
    })
    return variables


class Done:
    def __init__(self, status, out, seconds):
        self.status, self.out, self.seconds = status, out, seconds

    def why(self):
        """The line that most likely says what was wrong."""
        lines = [line.strip() for line in self.out.splitlines() if line.strip()]
        telling = [line for line in lines if re.search(r"error:|gaccd: |undefined reference|CMake Error", line)]
        return (telling[0] if telling else lines[-1] if lines else "no output")[:200]


class Runner:
    """Runs commands in one environment, each for at most its limit and never beyond the clock's end; a log has their output."""

    def __init__(self, clock, variables, log):
        self.clock, self.environment = clock, variables
        self.log = open(log, "w", encoding="utf-8", errors="replace")

    def run(self, command, limit, extra=(), separate=False, directory=None, plain=False):
        """separate: only standard output is returned; the log has both. plain: in the environment that this program was started
        in. Raises OutOfTime and TooSlow."""
        limit, over = self.clock.limit(limit)
        began = time.monotonic()
        self.log.write(f"\n$ {' '.join(command)}\n")
        self.log.flush()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace",
                                   stderr=self.log if separate else subprocess.STDOUT, cwd=directory or ROOT,
                                   env=dict(os.environ if plain else self.environment, **dict(extra)),
                                   start_new_session=True)
        try:
            out, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            self.log.write(out)
            raise over(f"{os.path.basename(command[0])} was not done within {limit:.0f} s") from None
        self.log.write(out)
        self.log.write(f"[{process.returncode} after {time.monotonic() - began:.1f} s]\n")
        self.log.flush()
        return Done(process.returncode, out, time.monotonic() - began)
