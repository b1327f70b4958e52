"""gaccd verify on simulated GPUs, as mpirun's ranks with NCCL between them: what users are to run on theirs."""
import json

import harness
import toys


class Verify(toys.Training):
    def verify(self, model, **keys):
        rows = [(1, *[((row * 31 + i * 17) % 13 - 6) / 8 for i in range(6)]) for row in range(60)]
        job = toys.job_of({"type": "mlp", "inputs": 4, "hidden": [8], "outputs": 2, "loss": "mse", **model}, steps=1, batch=12,
                          micro=3, optimizer="adamw", lr=0.01, **keys)
        header = "weight,x0,x1,x2,x3,y0,y1\n"
        job["data"]["train"] = self.write("rows.csv", header + "".join(",".join(map(str, row)) + "\n" for row in rows))
        self.write("job.yaml", json.dumps(job))
        done = self.call("mpirun", "-n", "2", harness.GACCD, "verify", "job.yaml", "--output", "run", "--device", "cuda", limit=280)
        self.assertEqual(done.status, 0, done.out + done.err)
        return done.out

    def test_a_job_is_verified_on_its_own_devices(self):
        out = self.verify({}, precision_={"reduce": "bf16"})
        self.assertRegex(out, r"verified: \d+ checks passed, 0 failed, 2 skipped")
        self.assertRegex(out, "reduced in every micro-batch +window: collectives and bytes")

    def test_norms_are_verified_there(self):
        split = "fp32: accumulated = whole +"
        self.assertRegex(self.verify({"norm": "batch"}), split + "skipped.*norm group or layer, or model.norm_stats window")
        out = self.verify({"norm": "batch", "norm_stats": "window"})
        self.assertRegex(out, split + ".* pass")
        self.assertRegex(out, "norm: running statistics move once +.* pass")
        self.assertRegex(self.verify({"norm": "group", "norm_groups": 2}), split + ".* pass")


if __name__ == "__main__":
    harness.main()
