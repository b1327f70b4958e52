"""The gradient penalty of a critic: λ·(|∂ŷ/∂x| − 1)² in the same average as the loss (H5, case 29)."""

import json

import harness
import toys

REAL, FAKE, BETWEEN = (1, 1, 1), (1, 3, -1), (1, 2, 0)  # weight, x, y


def critic(penalty, batch=3, **keys):
    """ŷ = w·x with w = 2: of REAL the loss is −2 and its slope −1, of FAKE 6 and 3, of BETWEEN λ and 2λ."""
    model = {
        "type": "mlp", "inputs": 1, "hidden": [], "outputs": 1, "bias": False, "loss": "wasserstein",
        "init": {"values": {"layers.0.weight": [2]}}, "penalty": penalty,
    }
    return toys.job_of(model, batch=batch, **keys)


class Penalty(toys.Training):
    def check(self, out, loss, slope, ratio=1e-6):
        self.assert_close(out.column("loss")[:1], [loss], ratio)
        self.assert_close(out.column("grad_norm")[:1], [abs(slope)], ratio)

    def test_it_is_in_the_average_of_the_loss_whatever_k_n_and_s(self):
        """λ = 10: loss (−2 + 6 + 10)/3, gradient (−1 + 3 + 20)/3; twice as many rows, in any split, are the same."""
        for compute, scale, splits in (
            ("fp32", None, ((1, 6), (1, 1), (2, 4), (4, 1))), ("bf16", None, ((2, 4), (4, 1))), ("fp16", 1, ((1, 1),)),
            ("fp16", 1024, ((1, 6), (1, 1), (2, 4), (4, 1))),
        ):
            for ranks, micro in splits:
                job = critic({"lambda": 10}, 6, micro=micro, compute=compute, scale=scale)
                out = self.train(job, [REAL, FAKE, BETWEEN, BETWEEN, REAL, FAKE], ranks)
                self.check(out, 14 / 3, 22 / 3, 1e-6 if compute == "fp32" else 3e-3)

    def test_lambda_is_what_is_written(self):
        for penalty in (1, 2.5, 40):
            self.check(self.train(critic({"lambda": penalty}), [REAL, FAKE, BETWEEN]), (4 + penalty) / 3, (2 + 2 * penalty) / 3)
        job = critic({"lambda": 4})
        del job["model"]["penalty"]
        self.check(self.train(job, [REAL, FAKE, BETWEEN]), 4 / 3, 2 / 3)

    def test_once_a_step_it_is_the_mean_over_the_first_rows(self):
        """λ = 10 over BETWEEN alone, which comes first: 10 and 20 beside (−2 + 6 + 0)/3 and 2/3, at any split of B = 3."""
        for weighting in ("token", "microbatch", "sum"):
            divisor = {"token": 3, "microbatch": 3, "sum": 1}[weighting]
            for compute in ("fp32", "bf16", "fp16") if weighting == "token" else ("fp32",):
                for ranks, micro in ((1, 1), (2, 1)) if weighting == "microbatch" else ((1, 3), (1, 1), (2, 2)):
                    job = critic(
                        {"lambda": 10, "rows": 1}, micro=micro, compute=compute, scale=64 if compute == "fp16" else None,
                        batch_={"weighting": weighting},
                    )
                    out = self.train(job, [BETWEEN, REAL, FAKE], ranks)
                    self.check(out, 4 / divisor + 10, 2 / divisor + 20, 1e-6 if compute == "fp32" else 3e-3)
        out = self.train(critic({"lambda": 10, "rows": 2}), [BETWEEN, REAL, FAKE])
        self.check(out, 4 / 3 + 5, 2 / 3 + 10)  # REAL is one of the two, and is not penalised

    def test_other_losses_are_penalised_at_every_row(self):
        """½(w·x − y)² at w = 2, x = 1, y = 1: 0.5 and 1; λ = 3 adds 3 and 6."""
        job = critic({"lambda": 3}, batch=2, micro=1)
        job["model"]["loss"] = "half_mse"
        self.check(self.train(job, [(1, 1, 1), (1, 1, 1)], 2), 3.5, 7)

    def test_verify_passes_it_and_catches_what_is_not_averaged(self):
        """Both conventions, two hidden layers, masked rows, in fp16."""
        rows = [(i % 3, (i * 7 % 11) / 5 - 1, (i * 5 % 13) / 6 - 1, (-1, 0, 1)[i % 3 - i % 2]) for i in range(40)]
        model = {"type": "mlp", "inputs": 2, "hidden": [8, 4], "outputs": 1, "activation": "tanh", "loss": "wasserstein"}
        for penalty in ({"lambda": 10}, {"lambda": 10, "rows": 9}):
            job = toys.job_of({**model, "penalty": penalty}, batch=20, micro=4, compute="fp16", optimizer="adamw", lr=1e-3, steps=2)
            job["data"]["train"] = "rows"
            self.write("rows", toys.csv_text(job, rows)), self.write("job.yaml", json.dumps(job))
            done = self.call(harness.GACCD, "verify", "job.yaml", "--json", "--sequences", "20", limit=120)
            found = json.loads(done.out)
            self.assertEqual(done.status, 0, [check for check in found["checks"] if not check["pass"]])
            planted = {one["fault"]: one for one in found["negative_controls"]}
            self.assertFalse(planted["penalty in full in every micro-batch"]["skipped"])
            self.assertEqual(planted["penalty in full in every micro-batch"]["caught_by"], "fp32: accumulated = whole")

    def test_what_is_not_offered_is_refused(self):
        def refused(words, **model):
            job = critic({"lambda": 10})
            job["model"].update(model)
            self.write("data", "x0,y0\n1,1\n")
            job["data"]["train"] = "data"
            done = self.run_job(job, 0)
            self.assertEqual((done.status, len(done.own_lines())), (78, 1), done.err)
            self.assertIn(words, done.err)

        refused("model.loss: wasserstein is for model.outputs 1, not 2", outputs=2)
        refused("model.penalty: is for model.outputs 1, not 2", outputs=2, loss="mse")
        refused("model.penalty: does not go with model.norm", hidden=[4], norm="layer")
        refused("model.penalty: does not go with model.loss cross_entropy", loss="cross_entropy")
        refused("model.penalty: does not go with model.lora", lora={"rank": 1})
        refused("model.penalty.rows: is without effect", penalty={"rows": 3})
        refused("model.penalty.lambda", penalty={"lambda": 0})
        job = toys.gpt(model_={"penalty": {"lambda": 1}})
        job["data"]["train"] = "data"
        done = self.run_job(job, 0)
        self.assertEqual(done.status, 78)
        self.assertIn("model.penalty: does not apply with model.type gpt, only with mlp", done.err)


if __name__ == "__main__":
    harness.main()
