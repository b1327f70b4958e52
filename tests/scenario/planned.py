"""What gaccd plan says a job takes, and what it then takes."""
import json
import os
import signal

import numpy

import harness
from memory import peak


def gpt(width, layers, context, micro, ranks=1, **keys):
    model = {"type": "gpt", "layers": layers, "heads": 4, "width": width, "context": context, "vocab": 256}
    return harness.gpt(steps=10**9, model=model, batch={"global": 2 * micro * ranks, "micro": micro}, checkpoint={"every": 1}, **keys)


class Planned(harness.Scenario):
    count = 0

    def plan(self, job, *arguments, status=0):
        self.write("job.yaml", json.dumps(job))
        done = self.call(harness.GACCD, "plan", "job.yaml", "--json", *arguments, limit=120)
        self.assertEqual(done.status, status, done.err)
        return json.loads(done.out) if done.out else done

    def measure(self, job, text, ranks):
        """What was planned for a rank, and the peak of every rank once it has saved a checkpoint."""
        if harness.SANITIZER:
            self.skipTest("a sanitizer takes and keeps memory of its own")
        tokens = job["batch"]["global"] * job["model"]["context"]
        text = (1 + 4 * tokens // len(text)) * text
        self.write(job["data"]["train"], text if job["data"]["format"] == "bytes" else numpy.frombuffer(text.encode(), "u1").astype("<u2").tobytes())
        planned = self.plan(job, "-n", str(ranks))["memory"]["all"]
        self.count += 1
        running = self.start(job, ranks, output=f"run{self.count}")
        harness.until(lambda: len(running.log("checkpoint")) >= 2, 120, "two checkpoints")
        pids = running.ranks()
        found = [peak(pids[rank]) for rank in range(ranks)]
        os.kill(pids[0], signal.SIGKILL)
        running.wait()
        return planned, found

    def check_measured(self, job, text, ranks):
        """Within a tenth."""
        planned, found = self.measure(job, text, ranks)
        for bytes_ in found:
            self.assertLess(abs(bytes_ / planned - 1), 0.1, (found, planned))
