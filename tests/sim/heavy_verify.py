"""gaccd verify on simulated GPUs, as mpirun's ranks with NCCL between them: what users are to run on theirs."""
import json

import harness
import toys


class Verify(toys.Training):
    def test_a_job_is_verified_on_its_own_devices(self):
        rows = [(1, *[((row * 31 + i * 17) % 13 - 6) / 8 for i in range(6)]) for row in range(60)]
        job = toys.job_of({"type": "mlp", "inputs": 4, "hidden": [8], "outputs": 2, "loss": "mse"}, steps=1, batch=12, micro=3,
                          optimizer="adamw", lr=0.01, precision_={"reduce": "bf16"})
        header = "weight,x0,x1,x2,x3,y0,y1\n"
        job["data"]["train"] = self.write("rows.csv", header + "".join(",".join(map(str, row)) + "\n" for row in rows))
        self.write("job.yaml", json.dumps(job))
        done = self.call("mpirun", "-n", "2", harness.GACCD, "verify", "job.yaml", "--output", "run", "--device", "cuda", limit=280)
        self.assertEqual(done.status, 0, done.out + done.err)
        self.assertRegex(done.out, r"verified: \d+ checks passed, 0 failed, 2 skipped")
        self.assertRegex(done.out, "reduced in every micro-batch +window: collectives and bytes")


if __name__ == "__main__":
    harness.main()
