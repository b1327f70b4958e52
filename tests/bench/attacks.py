#!/usr/bin/python3
"""What attacks on a job's addresses cost its training: those of tests/fault/attacks.py, one after the other.

    tests/bench/attacks.py [--build build] [--only NAME,…] [--seconds 2] [--rounds 5] [--tiny]

Wants two cores, and kernel.sched_autogroup_enabled=0. The rank has one core alone; the coordinator and the attackers, who only run
when it does not, share another: so what is measured is what the server's work costs the worker, not what the attackers' own takes.
Where each session has its own share of a core (autogroup), they would have as much as the coordinator. Stretches without and with an attack, which
is repeated or held meanwhile, follow each other; a stretch's time of a step is compared with the mean of its two neighbours',
and so is that of each stretch without. Prints one JSON object:
  load                  the machine's load average (1 minute), before and after: whatever else runs falls on these figures
  over_tcp, over_unix   a job whose operators and workers come over TCP (attackers have the operators' token, but not the workers'
                        secret), and one with its private socket alone (attackers are its user):
    step_ms             of a step without an attack: median, mean and longest, the median of all stretches
    noise               of median and mean: what chance alone stays below in 19 of 20 such measurements. The largest of as many medians,
                        as there are attacks, of as many ratios of stretches without one, as there are rounds
    coordinator         its CPU without an attack, as a share of a core
    attacks             by address and name, the median of the rounds:
      median, mean      the time of a step under attack: the ratio of the stretch's median, and of its mean
      longest_ms        the longest step of all rounds
      coordinator       its CPU
      within_noise      whether neither ratio is above that of the noise
"""
import argparse
import concurrent.futures
import json
import os
import random
import socket
import statistics
import sys
import threading
import time
import types

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("scenario", "fault"):
    sys.path.insert(0, os.path.join(HERE, "..", folder))
import attacks  # noqa: E402
import harness  # noqa: E402
from control_port import Job  # noqa: E402

SETTLING = 0.3  # seconds, in which the coordinator forgets who has gone
DRAWS = 2000
FIGURES = ("median", "mean")
STRANGERS = types.SimpleNamespace(secret=bytes(32))  # what they think they were invited with


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def on_two_cores(options, job, **control):
    """The job under way, its rank alone on one core; this process and the coordinator on the other."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {first})
    try:
        running = Job(options, *job, **control)
    finally:
        os.sched_setaffinity(0, {second})
    for thread in os.listdir(f"/proc/{running.connection['pid']}/task"):
        os.sched_setaffinity(int(thread), {second})
    return running


def step_times(log):
    """Of the whole lines of steps from where `log` stands, but for the first: some of it was before."""
    lines = log.read().split(b"\n")[1:-1]
    return [json.loads(line)["seconds"]["since_last_step"] for line in lines if line.startswith(b'{"type":"step"')][1:]


def stretch(job, seconds, attack=None):
    """What became of steps meanwhile."""
    with open(os.path.join(job.output, "log.jsonl"), "rb") as log:
        log.seek(0, os.SEEK_END)
        cpu, began = job.cpu(), time.monotonic()
        if attack:
            attack(began + seconds)
        else:
            time.sleep(seconds)
        took = time.monotonic() - began
        times = step_times(log) or [took]  # it stood still
    found = {"median": statistics.median(times), "mean": statistics.mean(times), "longest": max(times), "cpu": (job.cpu() - cpu) / took}
    time.sleep(SETTLING)
    return found


def lasting(attack, target, pool):
    """The attack again and again; what it holds is held to the end."""
    def until(end):
        while time.monotonic() < end:
            how = attacks.How(seconds=60)
            try:
                under_way = pool.submit(attack, target, how)
                while not under_way.done() or (how.held and time.monotonic() < end):
                    time.sleep(0.02)
                    how.tick()
                assert under_way.result(), f"{attack.__name__} on {target.address}: not what it says"
            finally:
                how.close()
    return until


def run_idle():
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))


def measure(job, targets, options):
    """{(address, attack): [stretch]}, and [(stretch, the mean of its neighbours)] of both kinds."""
    kinds = [(name, target, attack) for name, target in targets for whom, attack in attacks.ATTACKS
             if target.trust in whom and (not options.only or attack.__name__ in options.only)]
    quiet, attacked = [stretch(job, options.seconds)], {}
    with concurrent.futures.ThreadPoolExecutor(1, initializer=run_idle) as pool:
        for _ in range(options.rounds):
            for name, target, attack in kinds:
                found = stretch(job, options.seconds, lasting(attack, target, pool))
                quiet.append(stretch(job, options.seconds))
                found.update({figure: found[figure] / statistics.mean(one[figure] for one in quiet[-2:]) for figure in FIGURES})
                attacked.setdefault(f"{name} {attack.__name__}", []).append(found)
    return quiet, attacked


def noise_of(quiet, figure, attacks_made, rounds):
    ratios = [quiet[i][figure] / statistics.mean((quiet[i - 1][figure], quiet[i + 1][figure])) for i in range(1, len(quiet) - 1)]
    chance = random.Random(1337)
    largest = (max(statistics.median(chance.choices(ratios, k=rounds)) for _ in range(attacks_made)) for _ in range(DRAWS))
    return statistics.quantiles(largest, n=20)[18]


def judge(quiet, attacked, rounds):
    noise = {figure: noise_of(quiet, figure, len(attacked), rounds) for figure in FIGURES}
    rows = {}
    for name, found in attacked.items():
        ratios = {figure: statistics.median(one[figure] for one in found) for figure in FIGURES}
        rows[name] = {**{figure: round(ratio, 3) for figure, ratio in ratios.items()},
                      "longest_ms": round(1e3 * max(one["longest"] for one in found), 1),
                      "coordinator": round(statistics.median(one["cpu"] for one in found), 3),
                      "within_noise": all(ratios[figure] <= noise[figure] for figure in FIGURES)}
    return {"step_ms": {figure: round(1e3 * statistics.median(one[figure] for one in quiet), 3) for figure in (*FIGURES, "longest")},
            "noise": {figure: round(value, 3) for figure, value in noise.items()},
            "coordinator": round(statistics.median(one["cpu"] for one in quiet), 3), "attacks": rows}


def has_autogroups():
    try:
        with open("/proc/sys/kernel/sched_autogroup_enabled") as file:
            return file.read().strip() != "0"
    except FileNotFoundError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=os.path.abspath, default=os.path.join(harness.ROOT, "build"))
    parser.add_argument("--only", type=lambda names: names.split(","))
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="steps that are little more than their decision")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("--rounds: at least 3, or nothing is known about noise")
    options.ranks = 1
    work = (harness.tape(steps=10**9), "tape.csv") if options.tiny else (harness.gpt(steps=10**9), "text.txt")
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("this wants two cores")
    if has_autogroups():
        parser.error("this wants kernel.sched_autogroup_enabled=0")
    found = {"load": [os.getloadavg()[0]]}
    workers = f"tcp://127.0.0.1:{free_port()}"
    with on_two_cores(options, work, listen="tcp://127.0.0.1:0", workers=workers) as job:
        targets = (("tcp", attacks.Target(job.connection["endpoint"], attacks.OPERATOR, job.connection["token"])),
                   ("workers", attacks.Target(workers, attacks.WORKER, invitation=STRANGERS)))
        found["over_tcp"] = judge(*measure(job, targets, options), options.rounds)
    os.sched_setaffinity(0, range(os.cpu_count()))
    with on_two_cores(options, work) as job:
        targets = (("unix", attacks.Target(job.connection["endpoint"], attacks.OWNER)),)
        found["over_unix"] = judge(*measure(job, targets, options), options.rounds)
    found["load"].append(os.getloadavg()[0])
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
