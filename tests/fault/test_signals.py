"""A signal asks for a checkpoint, or for the end behind one: to a rank, to all, to mpirun, to the coordinator; at any time."""
import json
import os
import random
import shutil
import signal
import time

import checkpoints
import faults
import harness

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


class Signals(faults.Faults):
    def run_of(self, output="run"):
        return os.path.join(self.directory, output)

    def check_stopped(self, done, status, words, output="run"):
        """With a checkpoint of the step that the result names, which is the newest, and with which everybody agrees."""
        result = self.result(output)
        newest = checkpoints.names(self.run_of(output))[-1]
        self.check_line(done, status, words, f"checkpoint {newest} is complete")
        self.check_result(75, words, output)
        self.assertEqual(result["checkpoint"], newest)
        manifest = checkpoints.manifest(self.run_of(output), newest)
        for counter in ("step", "optimizer_steps", "tokens_seen"):
            self.assertEqual(manifest[counter], result[counter])
        self.assertEqual(len(self.log("step", output)), manifest["step"])
        self.assertEqual(self.call(harness.GACCD, "inspect", checkpoints.path(self.run_of(output), newest)).status, 0)

    def test_a_rank_stops_all(self):
        job = self.gpt(steps=faults.FOREVER)
        for number in STOPS:
            running = self.start(job, output=f"run{number}").until_step(3)
            os.kill(running.ranks()[1], number)
            done = self.ended(running, time.monotonic())
            self.check_stopped(done, 75, f"rank 1: interrupted by {number.name}: ", f"run{number}")

    def test_the_only_rank(self):
        running = self.start(self.gpt(steps=faults.FOREVER), ranks=0).until_step(3)
        os.kill(running.process.pid, signal.SIGINT)
        self.check_stopped(self.ended(running, time.monotonic()), 75, "rank 0: interrupted by SIGINT: ")

    def test_the_coordinator_stops_all(self):
        running = self.start(self.gpt(steps=faults.FOREVER)).until_step(3)
        os.kill(running.connection()["pid"], signal.SIGTERM)
        self.check_stopped(self.ended(running, time.monotonic()), 75, "the coordinator: interrupted by SIGTERM: ")

    def test_the_launcher_stops_all(self):
        """case 38-1: mpirun tells the ranks a second later, and that one or another ends them with 1; USR2 is passed on at once."""
        job = self.gpt(steps=faults.FOREVER)
        for number in STOPS:
            for ranks in (2, 4) if number == signal.SIGTERM else (3,):
                output = f"run{number}.{ranks}"
                running = self.start(job, ranks=ranks, output=output).until_step(3)
                os.kill(running.process.pid, number)
                done = self.ended(running, time.monotonic())
                told = "SIGUSR2" if number == signal.SIGUSR2 else "SIGTERM"
                self.check_stopped(done, 75 if number == signal.SIGUSR2 else 1, f"interrupted by {told}: ", output)

    def test_usr1_saves_and_goes_on(self):
        job = self.gpt(steps=faults.FOREVER)
        for ranks, whom in ((2, "rank"), (2, "launcher"), (2, "coordinator"), (0, "rank")):
            output = f"{whom}{ranks}"
            running = self.start(job, ranks=ranks, output=output).until_step(3)
            pid = {"rank": lambda: running.ranks()[max(running.ranks())], "launcher": lambda: running.process.pid,
                   "coordinator": lambda: running.connection()["pid"]}[whom]()
            for count in (1, 2):
                os.kill(pid, signal.SIGUSR1)
                # mpirun passes it on to each rank, and what the second one asks for may be a checkpoint of its own
                harness.until(lambda: len(running.log("checkpoint")) >= count, 10, f"checkpoint {count}")
            running.until_step(running.log("step")[-1]["step"] + 3)
            harness.until(lambda: checkpoints.names(self.run_of(output)) == [record["name"] for record in running.log("checkpoint")][-3:],
                          10, "every checkpoint is in the log")
            os.kill(running.ranks()[0], signal.SIGKILL)
            self.ended(running, time.monotonic(), harness.PROMPT + 1)

    def test_the_result_names_the_newest_whoever_writes_it(self):
        """The coordinator, of a start that makes none itself; or rank 0, when the coordinator is killed."""
        job = self.gpt(steps=faults.FOREVER)
        running = self.start(job, ranks=0).until_step(3)
        os.kill(running.process.pid, signal.SIGUSR2)
        self.ended(running, time.monotonic())
        newest = checkpoints.names(self.run_of())[-1]
        for victim in ("rank", "coordinator"):
            running = self.start(job, ranks=0)
            running.until_step(self.log("step")[-1]["step"] + 3)
            os.kill(running.process.pid if victim == "rank" else running.connection()["pid"], signal.SIGKILL)
            self.ended(running, time.monotonic(), harness.PROMPT + 1)
            self.assertEqual((self.result()["exit"], self.result()["checkpoint"]), (70, newest), victim)

    def has_result(self, running):
        return os.path.exists(os.path.join(running.output, "result.json"))

    def told_while_held(self, output="run"):
        """A job whose rank 1 has been told to stop, while rank 0 keeps the step from its end."""
        running = self.start(self.gpt(steps=faults.FOREVER), output=output).until_step(3)
        os.kill(running.ranks()[0], signal.SIGSTOP)
        os.kill(running.ranks()[1], signal.SIGTERM)
        time.sleep(0.2)
        return running

    def check_ended_at_once(self, running, told, output="run"):
        began = time.monotonic()
        harness.until(lambda: self.has_result(running), 5, "a result")
        os.kill(running.ranks()[0], signal.SIGCONT)
        self.check_line(self.ended(running, began), 70, f"rank 1: interrupted by {told}, a second time, at step ")
        self.check_result(70, "a second time", output)

    def test_a_second_signal_ends_at_once(self):
        """The checkpoint is not waited for, which a stopped rank keeps from its step."""
        running = self.told_while_held()
        os.kill(running.ranks()[1], signal.SIGINT)
        self.check_ended_at_once(running, "SIGINT")

    def test_what_the_launcher_passes_on_is_no_second_signal(self):
        """Who ends every process of a job, as scancel does, tells a rank, and mpirun, which tells that rank again."""
        running = self.told_while_held()
        os.kill(running.process.pid, signal.SIGUSR2)
        began = time.monotonic()
        time.sleep(0.2)
        self.assertFalse(self.has_result(running))
        os.kill(running.ranks()[0], signal.SIGCONT)
        self.check_stopped(self.ended(running, began), 75, "rank 1: interrupted by SIGTERM: ")
        running = self.told_while_held(output="twice")
        os.kill(running.process.pid, signal.SIGUSR2)
        time.sleep(0.2)
        os.kill(running.process.pid, signal.SIGUSR2)
        self.check_ended_at_once(running, "SIGUSR2", "twice")

    def test_at_any_moment_all_ranks_save_the_same_step(self):
        """While ranks start, in steps, evaluations and saves, in the last step; then the same command finishes the job, with the
        bytes of the run that was never stopped (cases 38-1, 38-4)."""
        job = self.gpt(steps=300, evaluation={"every": 4, "sequences": 40}, checkpoint={"every": 3})
        job["data"]["validation"] = 0.3
        whole = self.run_job(job, output="whole")
        self.assertEqual(whole.status, 0)
        chance = random.Random(int(os.environ.get("GACC_SEED", "1")))
        stopped = trials = 0
        while trials < int(os.environ.get("GACC_TRIALS", "3")) or (stopped == 0 and trials < 30):
            trials += 1
            shutil.rmtree(self.run_of(), ignore_errors=True)
            starts = 0
            while True:
                running = self.start("job.yaml", ranks=2)
                starts += 1
                time.sleep(whole.seconds * chance.random())
                whom = chance.choice(("rank", "launcher", "all", "coordinator"))
                found = running.ranks()
                pids = {"rank": [chance.choice(list(found.values()))] if found else [], "all": list(found.values()),
                        "launcher": [running.process.pid],
                        "coordinator": [pid for pid in self.processes() if harness.name_of(pid) == "gaccd-coord"]}[whom]
                number = chance.choice(STOPS)
                for pid in pids:
                    try:
                        os.kill(pid, number)
                    except ProcessLookupError:
                        pass
                done = running.wait(20)
                self.assertEqual(harness.until_empty(self.processes, 10), [], (whom, number))
                if not os.path.exists(os.path.join(self.run_of(), "result.json")):
                    continue  # it had not begun
                result = self.result()
                self.assertIn((result["status"], result["exit"]), (("done", 0), ("again", 75)), (whom, number, done.err))
                if result["exit"] == 75 and result["step"]:
                    newest = checkpoints.names(self.run_of())[-1]
                    if "before the first step" not in result["reason"]:
                        self.assertEqual(checkpoints.manifest(self.run_of(), newest)["step"], result["step"])
                        stopped += 1
                if result["status"] == "done":
                    break
                self.assertLess(starts, 60)
            for file in ("final/model.safetensors", "final/config.json"):
                with open(os.path.join(self.run_of(), file), "rb") as one, open(os.path.join(self.run_of("whole"), file), "rb") as other:
                    self.assertEqual(one.read(), other.read())
        self.assertGreater(stopped, 0)


if __name__ == "__main__":
    harness.main()
