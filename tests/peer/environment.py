"""Python packages that Debian does not have, in a virtual environment under the build directory, made once."""
import os
import subprocess
import sys

# The newest of each: what users have. numpy: the harness.
GRPC = ("grpc", [["install", "grpcio", "grpcio-reflection", "grpcio-health-checking", "prometheus-client", "numpy"]])


def skip(why):
    print("skipped:", why, flush=True)
    sys.exit(77)


def last_words(done):
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no output")


def pip(python, steps):
    """Each of steps: the arguments of one call."""
    for step in steps:
        done = subprocess.run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", *step],
                              capture_output=True, text=True, env={**os.environ, "DS_BUILD_OPS": "0"})
        if done.returncode != 0:
            skip(f"pip {' '.join(step)}: {last_words(done)}")


def enter(name, steps, system=False):
    """Goes on in the environment `name`, or ends the test as skipped. steps: the arguments of pip, one list a call; others
    than those it was made from make it anew. system: Debian's packages are seen."""
    build = os.environ["GACC_BUILD"]
    directory = os.path.join(build, "environments", name)
    python, stamp = os.path.join(directory, "bin", "python"), os.path.join(directory, "made-from")
    if os.path.realpath(sys.prefix) == os.path.realpath(directory):
        return
    wanted = repr((steps, system))
    if not os.path.exists(stamp) or open(stamp).read() != wanted:
        arguments = ["--clear", directory] + (["--system-site-packages"] if system else [])
        done = subprocess.run(["/usr/bin/python3", "-m", "venv", *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            skip(f"no virtual environment: {last_words(done)}")
        pip(python, steps)
        with open(stamp, "w") as file:
            file.write(wanted)
    os.execv(python, [python, *sys.argv])
