"""Ten thousand calls from h2load while a job trains: all are answered, and the job is the one that it is without them."""
import os
import re
import shutil
import sys

if not shutil.which("h2load"):
    print("skipped: no h2load (nghttp2-client)")
    sys.exit(77)

import control
import harness
import toys

CALLS = 10000


class H2load(control.Steered):
    def run_gpt(self, steps, output):
        job, text = harness.gpt(steps=steps)
        self.write("text.txt", text)
        return self.start(job, ranks=2, output=output)

    def test_ten_thousand_calls_change_nothing(self):
        running = self.run_gpt(10**9, "called").until_step(3)
        stub = self.stub(running)
        before = self.status(stub).step
        self.write("request", bytes(5))  # gRPC's frame of an empty message
        socket = running.connection()["endpoint"]
        done = self.call("h2load", "-n", str(CALLS), "-c", "8", "-m", "8", "-B", socket, "-d", "request", "-H", "te: trailers",
                         "-H", "content-type: application/grpc", "http://localhost/gacc.v1.Control/GetStatus", limit=120)
        after = self.stop(stub, finish=True).step
        self.assertIn(f"{CALLS} done, {CALLS} succeeded, 0 failed, 0 errored, 0 timeout", done.out, done.err)
        # A call that was refused would have headers alone.
        octets = int(re.search(r"\((\d+)\) data", done.out).group(1))
        self.assertGreater(octets, 100 * CALLS)
        self.assertGreater(after, before)
        self.end(running, 0)

        self.assertEqual(self.run_gpt(after, "alone").wait(120).status, 0)
        called, alone = (harness.read_log(os.path.join(self.directory, output), "step") for output in ("called", "alone"))
        self.assertEqual([without_seconds(record) for record in called], [without_seconds(record) for record in alone])
        model = {output: toys.read_safetensors(os.path.join(self.directory, output, "final", "model.safetensors"))
                 for output in ("called", "alone")}
        for name, values in model["alone"].items():
            self.assertEqual(model["called"][name].tobytes(), values.tobytes(), name)
        print(f"{re.search(r'finished in .*', done.out).group(0)}; {after - before} steps meanwhile")


def without_seconds(record):
    return {key: value for key, value in record.items() if key != "seconds"}


if __name__ == "__main__":
    harness.main()
