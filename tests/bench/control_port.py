#!/usr/bin/python3
"""What the control port costs, and what it costs training: calls, and 64 watchers, while jobs of tiny steps run.

    tests/bench/control_port.py [--build build] [--calls 3000] [--seconds 3] [--rounds 5] [--ranks 1]

Prints one JSON object; of each figure the median of the rounds is said where there are rounds:
  load               the machine's load average (1 minute), before and after: whatever else runs falls on these figures
  get_status_us      p50 and p99 of GetStatus from grpcio, one call after the other, over the unix socket and over TCP
  h2load_calls       calls a second from h2load over 8 connections of 8 streams each, over the unix socket; null without h2load
  tiny, small        a job of tiny steps (tape), and a small language model, alone and with 64 watchers, in turns:
    steps            steps a second alone and with watchers, and the ratio of the two, of the rounds' own ratios
    message_us       the coordinator's CPU per message of a watcher, all that it did in that time included; and without what
                     its steps cost while nobody watched
    delivered        messages that came, of those that the steps make for 64
"""
import argparse
import concurrent.futures
import json
import os
import re
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "scenario"))
import harness  # noqa: E402
import http2  # noqa: E402

WATCHERS = 64


class Job:
    """One that trains until it is ended."""

    def __init__(self, options, job, data, **control):
        self.directory = tempfile.mkdtemp(prefix="gacc-port-")
        text = dict(job[0], control=dict(control))
        with open(os.path.join(self.directory, data), "w") as file:
            file.write(job[1])
        with open(os.path.join(self.directory, "job.yaml"), "w") as file:
            json.dump(text, file)
        environment = dict(os.environ, XDG_RUNTIME_DIR=self.directory, OPENBLAS_NUM_THREADS="1", **harness.MPI)
        launcher = ["mpirun", "-n", str(options.ranks)] if options.ranks > 1 else []
        command = [*launcher, os.path.join(options.build, "daemon", "gaccd"), "job.yaml", "--output", "run"]
        self.process = subprocess.Popen(command, cwd=self.directory, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.output = os.path.join(self.directory, "run")
        harness.until(lambda: os.path.exists(os.path.join(self.output, "connection.json")) and self.steps() > 3, 60, "the first steps")
        with open(os.path.join(self.output, "connection.json")) as file:
            self.connection = json.load(file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def steps(self):
        """Of the log's last whole line of a step."""
        try:
            with open(os.path.join(self.output, "log.jsonl"), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
                lines = file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return 0
        return max((json.loads(line)["step"] for line in lines if line.startswith(b'{"type":"step"')), default=0)

    def cpu(self):
        """Seconds of the coordinator, all its threads."""
        pid, seconds = self.connection["pid"], 0.0
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                seconds += int(file.read().split()[0]) * 1e-9
        return seconds


def get_status(job, calls):
    import grpc
    from stubs import control_pb2, control_pb2_grpc
    metadata = [("authorization", f"Bearer {job.connection['token']}")] if job.connection["token"] else None
    times = []
    with grpc.insecure_channel(job.connection["endpoint"]) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        for _ in range(calls):
            began = time.perf_counter()
            stub.GetStatus(control_pb2.GetStatusRequest(), metadata=metadata)
            times.append(1e6 * (time.perf_counter() - began))
    times.sort()
    return {"p50": round(times[len(times) // 2], 1), "p99": round(times[len(times) * 99 // 100], 1)}


def h2load(job, calls):
    if not shutil.which("h2load"):
        return None
    with open(os.path.join(job.directory, "request"), "wb") as file:
        file.write(http2.message())
    command = ["h2load", "-n", str(calls), "-c", "8", "-m", "8", "-B", job.connection["endpoint"], "-d", file.name, "-H", "te: trailers",
               "-H", "content-type: application/grpc", "http://localhost/gacc.v1.Control/GetStatus"]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert f"{calls} succeeded" in said, said
    return float(re.search(r"([0-9.]+) req/s", said).group(1))


def watch(job, count, seconds):
    """Steps, messages that came, and the coordinator's seconds in a stretch with so many watchers."""
    watchers, selector, buffer = [http2.Watcher(job.connection["endpoint"]) for _ in range(count)], selectors.DefaultSelector(), bytearray(1 << 20)
    for watcher in watchers:
        selector.register(watcher.sock, selectors.EVENT_READ, watcher)

    def read(until):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread: what watchers do is not what is measured
        messages = 0
        while time.monotonic() < until:
            for key, _ in selector.select(0.05):
                messages += key.data.take(buffer)
        return messages

    with concurrent.futures.ThreadPoolExecutor(1) as reader:
        if count:
            reader.submit(read, time.monotonic() + 0.3).result()
        began, steps, cpu = time.monotonic(), job.steps(), job.cpu()
        messages = reader.submit(read, began + seconds).result() if count else time.sleep(seconds)
    found = {"rate": (job.steps() - steps) / (time.monotonic() - began), "steps": job.steps() - steps, "cpu": job.cpu() - cpu, "messages": messages}
    for watcher in watchers:
        watcher.close()
    return found


def median(values):
    return round(statistics.median(values), 3)


def watchers(job, options):
    rounds = [(watch(job, 0, options.seconds), watch(job, WATCHERS, options.seconds)) for _ in range(options.rounds)]
    own = statistics.median(alone["cpu"] / alone["steps"] for alone, _ in rounds)
    return {
        "steps": {"alone": median(alone["rate"] for alone, _ in rounds), "watched": median(watched["rate"] for _, watched in rounds),
                  "ratio": median(watched["rate"] / alone["rate"] for alone, watched in rounds)},
        "message_us": {"all": median(1e6 * watched["cpu"] / watched["messages"] for _, watched in rounds),
                       "without_steps": median(1e6 * (watched["cpu"] - own * watched["steps"]) / watched["messages"] for _, watched in rounds)},
        "delivered": median(watched["messages"] / (WATCHERS * watched["steps"]) for _, watched in rounds),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=os.path.abspath, default=os.path.join(harness.ROOT, "build"))
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    found = {"load": [os.getloadavg()[0]], "get_status_us": {}}
    tiny, small = (harness.tape(steps=10**9), "tape.csv"), (harness.gpt(steps=10**9), "text.txt")
    with Job(options, *small) as job:
        found["get_status_us"]["unix"] = get_status(job, options.calls)
        found["h2load_calls"] = h2load(job, 20 * options.calls)
        found["small"] = watchers(job, options)
    with Job(options, *small, listen="tcp://127.0.0.1:0") as job:
        found["get_status_us"]["tcp"] = get_status(job, options.calls)
    with Job(options, *tiny) as job:
        found["tiny"] = watchers(job, options)
    found["load"].append(os.getloadavg()[0])
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
