"""gaccd verify on simulated GPUs, as mpirun's ranks with NCCL between them: what users are to run on theirs."""
import json

import harness
import toys

MLP = {"type": "mlp", "inputs": 4, "hidden": [8], "outputs": 2, "loss": "mse"}


class Verify(toys.Training):
    def verify(self, model, inputs=4, outputs=lambda x: x[-2:], **keys):
        """Rows of so many numbers x, and what comes out of them."""
        rows = [[((row * 31 + i * 17) % 13 - 6) / 8 for i in range(inputs + 2)] for row in range(60)]
        job = toys.job_of(model, steps=1, batch=12, micro=3, optimizer="adamw", lr=0.01, **keys)
        job["data"]["train"] = self.write("rows.csv", toys.csv_text(job, [(1, *x[:inputs], *outputs(x)) for x in rows]))
        self.write("job.yaml", json.dumps(job))
        done = self.call("mpirun", "-n", "2", harness.GACCD, "verify", "job.yaml", "--output", "run", "--device", "cuda", limit=280)
        self.assertEqual(done.status, 0, done.out + done.err)
        return done.out

    def test_a_job_is_verified_on_its_own_devices(self):
        out = self.verify(MLP, precision_={"reduce": "bf16"})
        self.assertRegex(out, r"verified: \d+ checks passed, 0 failed, 2 skipped")
        self.assertRegex(out, "reduced in every micro-batch +window: collectives and bytes")

    def test_norms_are_verified_there(self):
        split = "fp32: accumulated = whole +"
        self.assertRegex(self.verify({**MLP, "norm": "batch"}), split + "skipped.*norm group or layer, or model.norm_stats window")
        out = self.verify({**MLP, "norm": "batch", "norm_stats": "window"})
        self.assertRegex(out, split + ".* pass")
        self.assertRegex(out, "norm: running statistics move once +.* pass")
        self.assertRegex(self.verify({**MLP, "norm": "group", "norm_groups": 2}), split + ".* pass")

    def test_convolutions_are_verified_there(self):
        model = {"type": "cnn", "image": [2, 4, 5], "channels": [3, 4], "hidden": [6], "outputs": 3, "loss": "cross_entropy"}
        for norm in ({}, {"norm": "group", "norm_groups": 1}):
            out = self.verify({**model, **norm}, 40, lambda x: [int(abs(x[-1]) * 3)])
            self.assertRegex(out, "fp32: accumulated = whole +.* pass")

    def test_critics_are_verified_there(self):
        model = {**MLP, "outputs": 1, "activation": "tanh", "loss": "wasserstein", "penalty": {"lambda": 10}}
        out = self.verify(model, 4, lambda x: [(x[-1] > 0.25) - (x[-1] < -0.25)])
        self.assertRegex(out, "fp32: accumulated = whole +.* pass")
        self.assertRegex(out, "penalty in full in every micro-batch +fp32: accumulated = whole")


if __name__ == "__main__":
    harness.main()
