"""Jobs that are steered while they run: slow enough to be met in a window, and so simple that a hand can work them out."""
import os
import signal
import time

import grpc

import checkpoints
import harness
import toys
from stubs import control_pb2, control_pb2_grpc

OK, REFUSED, INVALID = "OK", grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT
SLOW = 4096  # weights 1/SLOW add up exactly


def slow_tape(steps=10**6, ranks=1, **keys):
    """Every window has the gradient 1 of both weights, which two ranks share, in thousands of micro-batches."""
    keys.setdefault("batch", SLOW * ranks)
    return toys.tape((0, 0), steps=steps, micro=1, **{"lr": 2.0**-10, **keys})


class Steered(checkpoints.Checkpoints):
    """Jobs are ended at the end of a test."""

    def setUp(self):
        super().setUp()
        self.stubs = {}

    def tearDown(self):
        for running in self.running:
            if running.process.poll() is None:
                os.kill(running.process.pid, signal.SIGKILL)  # a launcher takes its ranks along
                running.process.wait()
        super().tearDown()

    def begin(self, job, rows=None, ranks=1, step=1, output="run", arguments=(), mpirun=()):
        columns = job["model"].get("size", 2)
        self.write("data", toys.csv_text(job, rows or [(1,) + (1.0,) * columns] * job["batch"]["global"]))
        job["data"].setdefault("train", "data")
        return self.met(self.start(job, ranks=0 if ranks == 1 else ranks, output=output, arguments=arguments, mpirun=mpirun), step)

    def met(self, running, step=0):
        """Has a connection before the job begins, and hears of its step at once: so a job of few steps is met in time."""
        stub = self.stub(running.meet())
        watching = stub.WatchSteps(control_pb2.WatchStepsRequest(from_step=1), timeout=60) if step else ()
        running.let_go()
        for record in watching:
            if record.step >= step:
                watching.cancel()
                break
        return running

    def stub(self, running):
        """The one of this job."""
        if running not in self.stubs:
            harness.wait_for(lambda: os.path.exists(os.path.join(running.output, "connection.json")), 20, "connection.json")
            channel = grpc.insecure_channel(running.connection()["endpoint"])
            self.addCleanup(channel.close)
            grpc.channel_ready_future(channel).result(20 * harness.SLOWER)
            self.stubs[running] = control_pb2_grpc.ControlStub(channel)
        return self.stubs[running]

    def status(self, stub):
        return stub.GetStatus(control_pb2.GetStatusRequest(), timeout=20)

    def checkpoint(self, stub, wait=True):
        return stub.Checkpoint(control_pb2.CheckpointRequest(wait=wait), timeout=60)

    def stop(self, stub, finish=False):
        return stub.Stop(control_pb2.StopRequest(finish=finish), timeout=60)

    def pause(self, stub):
        return stub.Pause(control_pb2.PauseRequest(), timeout=60)

    def resume(self, stub):
        return stub.Resume(control_pb2.ResumeRequest(), timeout=60)

    def set(self, stub, timeout=60, **settings):
        """optimizer__lr=0.5: two underscores for a dot."""
        return self.set_paths(stub, {key.replace("__", "."): value for key, value in settings.items()}, timeout)

    def set_paths(self, stub, settings, timeout=60):
        listed = [control_pb2.Setting(path=path, value=str(value)) for path, value in settings.items()]
        return stub.SetParameters(control_pb2.SetParametersRequest(settings=listed), timeout=timeout)

    def config(self, stub):
        return stub.GetConfig(control_pb2.GetConfigRequest(), timeout=20)

    def refused(self, code, call):
        """The words of the refusal."""
        with self.assertRaises(grpc.RpcError) as caught:
            call()
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        return caught.exception.details()

    def controls(self, running):
        return running.log("control")

    def until_phase(self, stub, phase, limit=20):
        harness.until(lambda: self.status(stub).phase == phase, limit, phase)

    def end(self, running, status, limit=60):
        done = running.wait(limit)
        self.assertEqual(done.status, status, done.err)
        return done

    def weight(self, output="run"):
        return toys.read_safetensors(os.path.join(self.directory, output, "final", "model.safetensors"))["weight"].ravel()

    def held_back(self, job):
        """Two ranks, the second of which does not join before it is let go: SIGCONT."""
        job["data"]["train"] = "data"
        self.write("data", toys.csv_text(job, [(1, 1.0, 1.0)] * job["batch"]["global"]))
        running = self.start(job)
        harness.wait_for(lambda: 1 in running.ranks(), 20, "rank 1")
        late = running.ranks()[1]
        os.kill(late, signal.SIGSTOP)
        return running, late
