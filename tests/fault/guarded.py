"""Jobs whose doors are tried."""
import os
import signal

import grpc

import harness

TCP = {"listen": "tcp://127.0.0.1:0"}


class Guarded(harness.Scenario):
    """Jobs that train until the end of a test."""

    RANKS = 2  # 0: one, without mpirun

    def setUp(self):
        super().setUp()
        self.job, text = harness.gpt(steps=10**9)
        self.write("text.txt", text)

    def tearDown(self):
        for running in self.running:
            if running.process.poll() is None:
                os.kill(running.ranks()[1] if self.RANKS else running.process.pid, signal.SIGKILL)
                running.wait(20)
        super().tearDown()

    def begin(self, **control):
        return self.start(dict(self.job, control=control), ranks=self.RANKS).until_step(3)

    def channel(self, running):
        channel = grpc.insecure_channel(running.connection()["endpoint"])
        self.addCleanup(channel.close)
        return channel

    def code(self, call):
        """The name of the status, and the words that came with it."""
        try:
            call()
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""

    def goes_on(self, running):
        running.until_step(len(running.log("step")) + 5)
        self.assertEqual({record["verdict"] for record in running.log("step")}, {"apply"})

    def refusals(self, running, count=1):
        """Those of the log; `count` calls at least are in them within two seconds."""
        def there():
            return [record for record in running.log("control") if "count" in record]

        harness.until(lambda: sum(record["count"] for record in there()) >= count, 3, f"{count} refusals in the log")
        return there()


def bearer(token):
    return [("authorization", f"Bearer {token}")]
