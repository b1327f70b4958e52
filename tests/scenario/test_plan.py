"""gaccd plan: what a job takes of memory, as measured, and what fits a limit (L1)."""
import json
import os

import harness
import planned
from planned import gpt

MIB = 2**20


class Plan(planned.Planned):
    def test_a_million_parameters_take_what_was_planned(self):
        for ranks, keys in ((1, {}), (2, {}), (1, {"recompute": "block"})):
            with self.subTest(ranks=ranks, **keys):
                job, text = gpt(128, 4, 128, 4, ranks, **keys)
                self.check_measured(job, text, ranks)

    def test_ten_million_parameters_take_what_was_planned(self):
        job, text = gpt(384, 6, 256, 4, precision={"compute": "bf16"})
        self.check_measured(job, text, 1)

    def test_memory_does_not_depend_on_the_global_batch(self):
        """L2: b = 8, B = 8 … 512."""
        job, text = gpt(64, 2, 64, 8)
        self.write("text.txt", text)
        planned = {self.plan({**job, "batch": {"global": 8 << i, "micro": 8}})["memory"]["all"] for i in range(7)}
        self.assertEqual(len(planned), 1)

    def test_what_fits_is_proposed_in_order(self):
        """The largest b first, then recomputation; K makes up for B; what is proposed takes what was said, and trains."""
        job, text = gpt(128, 4, 128, 4)
        job["batch"]["global"] = 64
        job["job"]["steps"] = 1
        self.write("text.txt", 20 * text)
        roomy = self.plan(job, "--memory", "4GiB")
        self.assertEqual([(p["recompute"], p["micro"], p["accumulate"]) for p in roomy["proposals"]], [("none", 64, 1), ("block", 64, 1)])
        tight = self.plan(job, "--memory", "80 MiB", "-n", "2")
        self.assertEqual((tight["limit"], tight["proposed"], tight["ranks"]), (80 * MIB, 0, 2))
        for proposal in tight["proposals"]:
            self.assertLessEqual(proposal["bytes"], 80 * MIB)
            sets = [f"batch.micro={proposal['micro']}", f"recompute={proposal['recompute']}"]
            arguments = [word for one in sets for word in ("--set", one)]
            again = self.plan(job, "-n", "2", *arguments)
            self.assertEqual(again["memory"]["all"], proposal["bytes"])
            output = proposal["recompute"]
            self.assertEqual(self.run_job(job, 2, arguments, output).status, 0)
            header = self.log("header", output)[0]
            self.assertEqual((header["effective_batch"], header["accumulate"]), (64, 2 * [proposal["accumulate"]]))
        self.assertGreater(tight["proposals"][1]["micro"], tight["proposals"][0]["micro"])

    def test_a_shorter_context_where_nothing_else_helps(self):
        job, text = gpt(128, 4, 1024, 1, precision={"compute": "fp64"})
        self.write("text.txt", 20 * text)
        least = self.plan(job, "--set", "recompute=block")["memory"]["all"]
        planned = self.plan(job, "--memory", str(least - 1))
        self.assertEqual({proposal["context"] for proposal in planned["proposals"]}, {512})

    def test_nothing_fits(self):
        job, text = gpt(128, 4, 128, 4)
        self.write("text.txt", text)
        done = self.call(harness.GACCD, "plan", self.write("job.yaml", json.dumps(job)), "--memory", "30MiB")
        self.assertEqual((done.status, len(done.own_lines())), (78, 1))
        self.assertIn("nothing fits 30.0 MiB", done.own_lines()[0])
        for size in ("0", "x", "-1GiB", "3 apples", "1e400", "nan", ""):
            done = self.call(harness.GACCD, "plan", "job.yaml", "--memory", size)
            self.assertEqual((done.status, done.own_lines()), (64, [f"gaccd: --memory {size}: a size such as 80GiB is wanted"]))

    def test_a_probe_measures_and_chooses(self):
        job, text = harness.gpt()
        self.write("text.txt", text)
        planned = self.plan(job, "--probe")
        rates = [proposal["sequences_per_second"] for proposal in planned["proposals"]]
        self.assertEqual(len(rates), 3)
        self.assertEqual(planned["proposed"], rates.index(max(rates)))
        self.assertFalse(os.path.exists(os.path.join(self.directory, "runs")))

    def test_rows_are_planned_for_too(self):
        job = {"job": {"steps": 1}, "model": {"type": "mlp", "inputs": 2, "hidden": [4], "outputs": 1}, "data": {"format": "csv", "train": "rows.csv"},
               "batch": {"global": 4, "micro": 1}, "optimizer": {"lr": 0.1}}
        self.write("rows.csv", "x0,x1,y0\n1,2,3\n")
        self.assertEqual(self.plan(job)["proposals"], [{"recompute": "none", "micro": 4, "accumulate": 1, "bytes": self.plan(job, "--set", "batch.micro=4")["memory"]["all"]}])

    def check_proposed(self, job, *arguments):
        """The command that is proposed makes a job, of the same B."""
        path = self.write("job.yaml", json.dumps(job))
        done = self.call(harness.GACCD, "plan", path, *arguments, limit=120)
        self.assertEqual(done.status, 0, done.err)
        sets = done.out.split("* is proposed:\n")[1].split()
        ranks = arguments[arguments.index("-n") :] if "-n" in arguments else []
        checked = self.call(harness.GACCD, "check", path, *ranks[:2], *sets)
        self.assertEqual(checked.status, 0, checked.err)
        self.assertIn("global: %d " % job["batch"]["global"] if "global" in job["batch"] else "global: 8 ", checked.out + " ")
        return sets

    def test_what_is_proposed_is_a_job(self):
        """Of every model; in a ramp; with statistics of micro-batches; where the context is halved and B was given as tokens."""
        rest = {"job": {"steps": 3}, "batch": {"global": 8, "micro": 2}, "optimizer": {"lr": 0.1}, "data": {"format": "csv", "train": "rows.csv"}}
        self.write("rows.csv", "x0\n")
        self.write("text.txt", "to be or not to be")
        text = {"format": "bytes", "train": "text.txt"}
        transformer = {"type": "gpt", "layers": 1, "heads": 2, "width": 64, "context": 256}
        mlp = {"type": "mlp", "inputs": 4, "hidden": [4], "outputs": 1}
        for model, words in (
            (transformer, ["batch.micro=8", "recompute=none"]),
            (mlp, ["batch.micro=8"]),
            ({"type": "cnn", "image": [1, 4, 4], "channels": [2], "hidden": [], "outputs": 2}, ["batch.micro=8"]),
            ({"type": "linear", "inputs": 2}, ["batch.micro=8"]),
            ({"type": "tape", "size": 2}, ["batch.micro=8"]),
        ):
            job = {**rest, "model": model, "data": text if model is transformer else rest["data"]}
            self.assertEqual(self.check_proposed(job, "--memory", "4GiB")[1::2], words)
        ramp = {**rest, "model": mlp, "batch": {"global": 8, "micro": 1, "ramp": {"from": 2, "steps": 2}}}
        self.assertEqual(self.check_proposed(ramp, "--memory", "4GiB", "-n", "2")[1::2], ["batch.micro=1"])
        normed = {**rest, "model": {**mlp, "norm": "batch", "norm_stats": "micro", "hidden": [1 << 16]}}
        two = self.plan(normed)["memory"]["all"]
        self.assertEqual(self.check_proposed(normed, "--memory", str(two))[1::2], ["batch.micro=2"])
        done = self.call(harness.GACCD, "plan", "job.yaml", "--memory", str(two - 1))
        self.assertEqual(done.status, 78, done.err)
        tokens = {**rest, "model": transformer, "data": text, "batch": {"tokens": 8 * 256, "micro": 1}}
        least = self.plan(tokens, "--set", "recompute=block")["memory"]["all"]
        sets = self.check_proposed(tokens, "--memory", str(least - 1))[1::2]
        self.assertEqual(sets[2:], ["model.context=128", "batch.global=8"])


if __name__ == "__main__":
    harness.main()
