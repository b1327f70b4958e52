"""What the GPU backend does not have is refused by name, before anything is trained."""
import os

import harness
import toys

ROWS = [(1, 0.5, 1.0, 0), (1, -1.0, 0.25, 1)]


class NotYet(toys.Training):
    def test_norms_over_groups_and_sets_and_convolutions(self):
        layers = {"inputs": 2, "hidden": [2], "outputs": 2, "loss": "cross_entropy"}
        images = {"image": [1, 1, 2], "channels": [2], "pool": "none", "hidden": [], "outputs": 2, "loss": "cross_entropy"}
        for model, said in (({"type": "mlp", "norm": "group", "norm_groups": 1, **layers}, "model.norm: group: not on --device cuda yet"),
                            ({"type": "mlp", "norm": "batch", **layers}, "model.norm: batch: not on --device cuda yet"),
                            ({"type": "cnn", **images}, "model.type: cnn: not on --device cuda yet")):
            job = toys.job_of(model, batch=2, micro=2, steps=1)
            self.write("data", toys.csv_text(job, ROWS))
            job["data"]["train"] = "data"
            done = self.run_job(job, ranks=0, output="refused")
            self.assertEqual(done.status, 78, done.err)
            self.assertIn(said, done.err)
            self.assertFalse(os.path.exists(os.path.join(self.directory, "refused", "checkpoints")))


if __name__ == "__main__":
    harness.main()
