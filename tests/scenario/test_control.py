"""What operators ask a running job for, through its gRPC port: checkpoints and the end, each at a step boundary."""
import os
import signal
import time

import checkpoints
import control
import harness
import toys
from control import REFUSED, slow_tape
from stubs import control_pb2


class Asking(control.Steered):
    def test_a_checkpoint_is_that_of_the_boundary_it_names(self):
        for ranks in (1, 2):
            output = f"run{ranks}"
            running = self.begin(slow_tape(ranks=ranks), ranks=ranks, output=output)
            stub, before = self.stub(running), time.time()
            reply = self.checkpoint(stub)
            self.assertEqual(reply.name, checkpoints.name_of(reply.effect.optimizer_steps))
            self.assertEqual(checkpoints.manifest(running.output, reply.name)["step"], reply.effect.step)
            self.assertGreater(reply.effect.step, 1)
            later = self.checkpoint(stub, wait=False)
            self.assertGreater(later.effect.step, reply.effect.step)
            harness.until(lambda: later.name in checkpoints.names(running.output), 20, later.name)
            harness.until(lambda: self.status(stub).checkpoint == later.name, 20, "status")
            status = self.status(stub)
            self.assertEqual(status.checkpoint_optimizer_steps, later.effect.optimizer_steps)
            self.assertTrue(before <= status.checkpoint_unix_seconds <= time.time())
            first, second = self.controls(running)
            self.assertEqual((first["method"], first["role"], first["accepted"], first["reason"], first["changes"]),
                             ("Checkpoint", "control", True, None, []))
            self.assertEqual((second["step"], second["optimizer_steps"]), (later.effect.step, later.effect.optimizer_steps))
            self.assertIn(f"uid {os.getuid()} (", first["by"])
            self.assertIn(f", pid {os.getpid()}", first["by"])
            self.assertTrue(before <= first["at"] <= time.time())

    def test_all_who_ask_in_one_window_get_the_same_one(self):
        running = self.begin(slow_tape())
        stub = self.stub(running)
        with running.held():
            calls = [stub.Checkpoint.future(control_pb2.CheckpointRequest(wait=True), timeout=60) for _ in range(8)]
            self.status(stub)
        replies = [call.result() for call in calls]
        self.assertEqual(len({(reply.name, reply.effect.step) for reply in replies}), 1)
        self.assertEqual(checkpoints.names(running.output), [replies[0].name])

    def test_a_checkpoint_that_fails_says_why(self):
        running = self.begin(slow_tape(checkpoint={"every": 0}))
        stub = self.stub(running)
        self.write("run/checkpoints", "in the way")
        words = self.refused(control.grpc.StatusCode.INTERNAL, lambda: self.checkpoint(stub))
        self.assertIn("Not a directory", words)
        self.assertEqual(self.status(stub).phase, "training")
        self.assertIn("checkpoint_failed", [event["event"] for event in running.log("event")])

    def test_stop_saves_and_ends_with_75_and_the_same_command_goes_on(self):
        job = slow_tape(steps=12, lr=1, batch=2 * control.SLOW)
        whole = self.train_into("whole", job, [(1, 1.0, 1.0)] * 2 * control.SLOW, 2)
        running = self.begin(job, ranks=2)
        stub = self.stub(running)
        effect = self.stop(stub)
        self.assertLess(effect.step, 12)
        self.end(running, 75)
        result, name = self.result(), checkpoints.name_of(effect.optimizer_steps)
        self.assertEqual((result["status"], result["optimizer_steps"], result["checkpoint"]),
                         ("again", effect.optimizer_steps, name))
        self.assertIn(f"uid {os.getuid()} (", result["reason"])
        self.assertIn(f"asked to stop: checkpoint {name} is complete", result["reason"])
        self.assertFalse(os.path.exists(os.path.join(running.output, "final")))
        rest = self.train_into("run", job, [(1, 1.0, 1.0)] * 2 * control.SLOW, 2)
        self.assertEqual(rest.weight.tobytes(), whole.weight.tobytes())
        self.assertEqual(rest.column("step"), list(range(1, 13)))

    def test_finish_writes_what_there_is_and_is_not_gone_on_from(self):
        job = slow_tape(lr=1, batch=2 * control.SLOW, checkpoint={"every": 2})
        running = self.begin(job, ranks=2, step=3)
        effect = self.stop(self.stub(running), finish=True)
        self.end(running, 0)
        self.assert_near(self.weight(), -effect.optimizer_steps, 0)
        self.assertEqual((self.result()["status"], self.result()["optimizer_steps"], self.result()["reason"]),
                         ("done", effect.optimizer_steps, None))
        log = running.log()
        self.assertEqual(log[-1]["type"], "end")
        self.assertEqual(max(record["step"] for record in running.log("step")), effect.step)
        self.assertEqual(self.run_job("job.yaml").status, 0)
        self.assertEqual(harness.read_log(running.output), log)

    def test_a_job_that_went_on_and_finished_early_is_done_as_well(self):
        """Its optimizer stayed as it was, so that the job that ran is not quite the one of the command."""
        job = slow_tape(lr=1)
        running = self.begin(job)
        self.stop(self.stub(running))
        self.end(running, 75)
        job["optimizer"]["lr"] = 0.5
        running = self.begin(job, step=0)
        harness.until(lambda: len(running.log("header")) == 2, 20, "the second start")
        stub = self.stub(running)
        self.until_phase(stub, "training")
        self.stop(stub, finish=True)
        self.end(running, 0)
        log = running.log()
        self.assertEqual(self.run_job("job.yaml", ranks=0).status, 0)
        self.assertEqual(harness.read_log(running.output), log)

    def test_asking_twice(self):
        """Stop, and stop; stop, and finish."""
        running = self.begin(slow_tape())
        stub = self.stub(running)
        with running.held():
            calls = [stub.Stop.future(control_pb2.StopRequest(), timeout=60) for _ in range(3)]
            harness.until(lambda: "stop" in self.status(stub).requests, 20, "the request")
            self.assertEqual(self.status(stub).phase, "stopping")
            self.assertIn("asked to stop behind a checkpoint already", self.refused(REFUSED, lambda: self.stop(stub, finish=True)))
        self.assertEqual(len({call.result().step for call in calls}), 1)
        self.end(running, 75)
        self.assertEqual([record["accepted"] for record in self.controls(running)], [False, True, True, True])
        running = self.begin(slow_tape(), output="second")
        stub = self.stub(running)
        with running.held():
            finish = stub.Stop.future(control_pb2.StopRequest(finish=True), timeout=60)
            harness.until(lambda: "stop --finish" in self.status(stub).requests, 20, "the request")
            self.assertIn("asked to finish already", self.refused(REFUSED, lambda: self.stop(stub)))
        self.assertGreater(finish.result().step, 1)
        self.end(running, 0)

    def test_before_the_first_step(self):
        running, late = self.held_back(slow_tape(ranks=2, steps=3))
        stub = self.stub(running)
        early = stub.Checkpoint.future(control_pb2.CheckpointRequest(wait=True), timeout=60)
        harness.until(lambda: list(self.status(stub).requests) == ["checkpoint"], 5, "the request")
        self.assertEqual(self.status(stub).phase, "starting")
        self.assertIn("before the first step", self.refused(REFUSED, lambda: self.stop(stub, finish=True)))
        os.kill(late, signal.SIGCONT)
        self.assertEqual((early.result().effect.step, early.result().name), (1, checkpoints.name_of(1)))
        self.end(running, 0)

    def test_a_stop_before_the_first_step_is_the_end_at_once(self):
        running, _ = self.held_back(slow_tape(ranks=2))
        effect = self.stop(self.stub(running))
        self.assertEqual((effect.step, effect.optimizer_steps), (0, 0))
        running.wait_without_mpirun()
        self.assertEqual((self.result()["exit"], self.result()["checkpoint"]), (75, None))
        self.assertIn("asked to stop before the first step", self.result()["reason"])

    def test_who_has_hung_up_gets_no_answer_and_what_he_asked_for(self):
        running = self.begin(slow_tape())
        stub = self.stub(running)
        with running.held():
            call = stub.Stop.future(control_pb2.StopRequest(), timeout=60)
            harness.until(lambda: "stop" in self.status(stub).requests, 20, "the request")
            call.cancel()
            self.status(stub)
        self.end(running, 75)
        self.assertEqual([record["method"] for record in self.controls(running)], ["Stop"])

    def test_whoever_waits_hears_of_the_end(self):
        running = self.begin(slow_tape(ranks=2), ranks=2)
        stub = self.stub(running)
        os.kill(running.ranks()[0], signal.SIGSTOP)
        call = stub.Checkpoint.future(control_pb2.CheckpointRequest(), timeout=60)
        harness.until(lambda: "checkpoint" in self.status(stub).requests, 20, "the request")
        os.kill(running.ranks()[0], signal.SIGKILL)
        words = self.refused(control.grpc.StatusCode.ABORTED, call.result)
        self.assertIn("the job has ended before: rank 0", words)
        running.wait()
        self.assertEqual([(record["accepted"], record["reason"]) for record in self.controls(running)], [(False, words)])


class Looking(control.Steered):
    def test_the_last_steps_are_there(self):
        job = slow_tape(compute="fp16", scale=8, batch=400)
        running = self.begin(job, rows=[(1, 1.0, 1.0)] * 399 + [(1, 60000.0, 1.0)], step=130)  # 8 · 60000/400 is finite
        stub = self.stub(running)
        status, log = self.status(stub), running.log("step")
        self.assertEqual(len(status.last), 120)
        self.assertEqual([last.step for last in status.last], list(range(status.last[0].step, status.last[0].step + 120)))
        for last in status.last[:100]:
            wanted = log[last.step - 1]
            self.assertEqual((last.verdict, last.loss, last.loss_scale, last.grad_norm, last.seconds),
                             (1, wanted["loss"], wanted["loss_scale"], wanted["grad_norm"], wanted["seconds"]["step"]))
        self.assertGreater(status.steps_per_second, 0)
        self.assertTrue(0 < status.ranks[0].step_seconds <= max(last.seconds for last in status.last))
        self.assertEqual(status.checkpoint, "")
        self.assertEqual(status.epoch, status.step)  # the one of the window under way

    def test_every_ranks_state_is_there_at_once_in_a_long_micro_batch(self):
        """E1: within 100 ms; on a machine that others load it only has to be seen that nothing hangs."""
        job = toys.gpt(256, context=256, width=192, layers=4, heads=4, steps=1000, batch=48, micro=24, lr=1e-3)
        self.write("data", toys.tokens(5000, 256))
        job["data"]["train"] = "data"
        running = self.start(job).until_step(1, limit=60)
        stub, slowest, longest, states = self.stub(running), 0, 0, set()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            began = time.monotonic()
            status = self.status(stub)
            slowest = max(slowest, time.monotonic() - began)
            for rank in status.ranks:
                states.add(rank.state)
                if rank.state in (2, 3):
                    longest = max(longest, rank.seconds_in_state)
                self.assertLess(rank.seconds_since_heard, 1 + harness.PROMPT)
            time.sleep(0.01)
        print(f"slowest answer {1000 * slowest:.1f} ms, longest state {longest:.2f} s")
        self.assertLess(slowest, 0.1 if harness.PROMPT <= 2 else 2)
        self.assertGreater(longest, 0.1)  # such a micro-batch there was
        self.assertTrue(states & {2, 3})


if __name__ == "__main__":
    harness.main()
