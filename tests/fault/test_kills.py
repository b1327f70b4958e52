"""SIGKILL at any instant, to a rank, the coordinator, mpirun or all of them: the same command goes on, and the end has the bytes of
the run that was never disturbed. GACC_KILLS of them at random moments (40), by GACC_SEED; and one in every state of a step."""
import collections
import json
import os
import random
import shutil
import signal
import time

import breakpoint
import checkpoints
import faults
import harness

EVERY = 5
STATES = ("ENTER_STEP MICRO_FORWARD MICRO_BACKWARD MAYBE_OVERFLOW_SIGNAL REDUCE UNSCALE CLIP STEP_OR_SKIP UPDATE_SCALE EXIT_STEP "
          "EVALUATE FINISHED").split()


class Kills(faults.Faults):
    def setUp(self):
        super().setUp()
        self.environment["OMPI_MCA_odls_base_sigkill_timeout"] = "0"
        self.histogram = collections.Counter()

    def make(self, steps, **checkpoint):
        job = self.gpt(steps=steps, evaluation={"every": 4, "sequences": 20}, checkpoint={"every": EVERY, "keep": 2, **checkpoint},
                       precision={"compute": "fp16", "loss_scale": {"initial": 2**21, "interval": 3}})
        job["data"]["validation"] = 0.3
        job["model"]["dropout"] = 0.1
        self.write("job.yaml", json.dumps(job))

    def whole(self, ranks):
        done = self.run_job("job.yaml", ranks=ranks, output=f"whole{ranks}")
        self.assertEqual(done.status, 0, done.err)
        self.wanted_records = self.records(f"whole{ranks}")
        with open(os.path.join(self.directory, f"whole{ranks}", "final", "model.safetensors"), "rb") as file:
            return file.read()

    def records(self, output="run"):
        """Of all steps and evaluations; where a later start made one again, that one."""
        last = {}
        for record in self.log(output=output):
            record.pop("seconds", None)
            if record["type"] in ("step", "eval"):
                last[record["step"], record["type"]] = record
        return [last[key] for key in sorted(last)]

    def check_end(self, wanted, what=None):
        with open(os.path.join(self.directory, "run", "final", "model.safetensors"), "rb") as file:
            self.assertEqual(file.read(), wanted, what)
        self.assertEqual(self.records(), self.wanted_records, what)

    def logged(self):
        return harness.read_log(os.path.join(self.directory, "run"))

    def state(self):
        """What the job was about, as far as it has left a trace."""
        folder = os.path.join(self.directory, "run", "checkpoints")
        names = [name for name in (os.listdir(folder) if os.path.exists(folder) else []) if name.startswith("step-")]
        if any(not os.path.exists(os.path.join(folder, name, "manifest.json")) for name in names):
            return "saving"
        kinds = [record["type"] for record in self.logged()]
        if not kinds or kinds[-1] == "header" or kinds[-1] == "end":
            return "starting"
        steps = [record for record in self.logged() if record["type"] == "step"]
        return "finishing" if steps and steps[-1]["optimizer_steps"] == self.total else "training"

    def check_resumption(self, before, err):
        """Nothing torn was taken, and no more lost than one interval and what was being written."""
        self.assertNotIn("damaged", err)
        header = next((record for record in self.logged()[len(before):] if record["type"] == "header"), None)
        if header is None:
            return
        resumed = header["resumed"]["optimizer_steps"] if header["resumed_from"] else 0
        made = max([r["optimizer_steps"] for r in before if r["type"] == "step"], default=0)
        told = max([r["optimizer_steps"] for r in before if r["type"] == "checkpoint"], default=0)
        self.assertGreaterEqual(resumed, told)
        self.assertGreater(resumed, made - 2 * EVERY - 1)

    def end_of(self, running):
        done = running.wait_without_mpirun()
        self.histogram["mpirun hung"] += running.mpirun_hung
        return done

    def kill_and_go_on(self, ranks, count, chance):
        """Starts and kills until the job is done, again and again, `count` kills in all."""
        wanted = self.whole(ranks)
        victims = ["rank", "coordinator", "all"] + (["mpirun"] if ranks else [])
        done = 0
        while done < count:
            shutil.rmtree(os.path.join(self.directory, "run"), ignore_errors=True)
            finished = False
            while not finished:
                before = self.logged()
                running = self.start("job.yaml", ranks=ranks)
                if done < count:
                    time.sleep(harness.SLOWER * chance.uniform(0.05, 0.9 if ranks else 0.5))
                    who = chance.choice(victims)
                    found = running.ranks()
                    pids = {"rank": [chance.choice(sorted(found.values()))] if found else [], "mpirun": [running.process.pid],
                            "coordinator": [pid for pid in self.processes() if harness.name_of(pid) == "gaccd-coord"],
                            "all": self.processes()}[who]
                    state = self.state()
                    for pid in pids:
                        try:
                            os.kill(pid, signal.SIGKILL)
                            done += 1 if pid == pids[-1] else 0
                        except ProcessLookupError:
                            pass
                    self.histogram[state] += 1
                ended = self.end_of(running)
                self.assertEqual(harness.until_empty(self.processes, 10), [])
                self.clear_up()
                self.check_resumption(before, ended.err)
                try:
                    finished = self.result()["status"] == "done"
                except FileNotFoundError:
                    pass
            self.check_end(wanted)

    def test_at_random(self):
        count = int(os.environ.get("GACC_KILLS", "40"))
        chance = random.Random(int(os.environ.get("GACC_SEED", "1")))
        self.total = 40
        for ranks, share in ((0, count // 2), (2, count - count // 2)):
            self.make(self.total, **{"async": chance.random() < 0.7})
            self.kill_and_go_on(ranks, share, chance)
        print("killed while", dict(self.histogram), flush=True)
        for state in ("training", "saving"):
            self.assertGreater(self.histogram[state], 0)

    def test_in_every_state(self):
        """At the third time, or so, that it is entered behind the start."""
        why = breakpoint.unusable()
        if why:
            self.skipTest(why)
        self.make(24)
        self.total = 24
        wanted = self.whole(0)
        for number, state in enumerate(STATES, 1):
            shutil.rmtree(os.path.join(self.directory, "run"), ignore_errors=True)
            running = self.start("job.yaml", ranks=0)
            harness.wait_for(lambda: harness.executable_of(running.process.pid) == os.path.realpath(harness.GACCD), 5, "gaccd")
            trap = breakpoint.Breakpoint(running.process.pid, harness.GACCD, "state")  # of control_client.c: told of each
            left = 1 if state in ("EVALUATE", "FINISHED") else 8 if state.startswith("MICRO_") else 3
            while (registers := trap.hit()) is not None:
                left -= registers.rdx == number
                if left == 0:
                    break
                trap.step_over(registers)
            self.assertIsNotNone(registers, f"{state} is not entered so often")
            os.kill(running.process.pid, signal.SIGKILL)
            trap.wait()
            running.process.returncode = -signal.SIGKILL  # breakpoint.py has waited for it
            self.assertEqual(harness.until_empty(self.processes, 10), [])
            self.check_result(70, "rank 0")
            before = self.logged()
            done = self.run_job("job.yaml", ranks=0)
            self.assertEqual(done.status, 0, (state, done.err))
            self.check_resumption(before, done.err)
            self.check_end(wanted, state)

    def test_a_checkpoint_is_complete_behind_the_records_of_its_step(self):
        """Killed while it evaluates, when its part of that step's checkpoint is on disk: neither is missing in the log later."""
        why = breakpoint.unusable()
        if why:
            self.skipTest(why)
        job = self.gpt(steps=40, evaluation={"every": 4, "sequences": 20}, checkpoint={"every": 4, "keep": 0})
        job["data"]["validation"] = 0.3
        self.write("job.yaml", json.dumps(job))
        wanted = self.whole(0)
        running = self.start("job.yaml", ranks=0)
        harness.wait_for(lambda: harness.executable_of(running.process.pid) == os.path.realpath(harness.GACCD), 5, "gaccd")
        trap = breakpoint.Breakpoint(running.process.pid, harness.GACCD, "state")
        registers = trap.hit_in(1 + STATES.index("EVALUATE"))
        part, whole = (checkpoints.path(running.output, checkpoints.name_of(registers.rsi), name)  # in fp32 every step is applied
                       for name in ("optimizer-00000-of-00001.safetensors", "manifest.json"))
        harness.wait_for(lambda: os.path.exists(part), 10, "the rank's part")
        time.sleep(1)
        is_complete = os.path.exists(whole)
        os.kill(running.process.pid, signal.SIGKILL)
        trap.wait()
        running.process.returncode = -signal.SIGKILL  # breakpoint.py has waited for it
        self.assertEqual(harness.until_empty(self.processes, 10), [])
        self.assertFalse(is_complete)
        done = self.run_job("job.yaml", ranks=0)
        self.assertEqual((done.status, done.err), (0, ""))
        self.check_end(wanted)


if __name__ == "__main__":
    harness.main()
