"""What the GPU backend does not have is refused by name, before anything is trained."""
import os

import harness
import toys

ROWS = [(1, 0.5, 1.0, 0), (1, -1.0, 0.25, 1)]


class NotYet(toys.Training):
    def test_convolutions(self):
        images = {"image": [1, 1, 2], "channels": [2], "pool": "none", "hidden": [], "outputs": 2, "loss": "cross_entropy"}
        job = toys.job_of({"type": "cnn", **images}, batch=2, micro=2, steps=1)
        self.write("data", toys.csv_text(job, ROWS))
        job["data"]["train"] = "data"
        done = self.run_job(job, ranks=0, output="refused")
        self.assertEqual(done.status, 78, done.err)
        self.assertIn("model.type: cnn: not on --device cuda yet", done.err)
        self.assertFalse(os.path.exists(os.path.join(self.directory, "refused", "checkpoints")))


if __name__ == "__main__":
    harness.main()
