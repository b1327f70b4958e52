"""A rank in Python that has nothing to say for longer than control.timeout says so, and is not taken for lost."""
import time

import harness
import test_worker


class Silence(test_worker.Mixed):
    def test_a_pause_may_be_longer_than_the_timeout(self):
        job = self.linear(optimizer_=test_worker.SGD, control={"timeout": 8})
        job["job"]["steps"] = 10**9
        running = self.mpirun(job, ["gaccd", "linear"], "run").until_step(1)
        stub = self.stub(running)
        self.pause(stub)
        time.sleep(20)
        self.assertEqual(self.status(stub).phase, "paused")
        running.until_step(self.resume(stub).step + 1)
        self.stop(stub)
        self.end(running, 75)


if __name__ == "__main__":
    harness.main()
