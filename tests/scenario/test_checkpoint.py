"""Checkpoints: when they are made, what is in them, which of them stay, and what it looks like when one fails."""

import json
import os
import signal
import struct

import checkpoints
import harness
import toys
from checkpoints import contents, manifest, moments, name_of, names, path


class Checkpoint(checkpoints.Checkpoints):
    def test_they_come_at_multiples_of_applied_steps(self):
        """cases 26-1, 26-5: K = 4, six steps, one of them after a skip: behind 3 and 6, whatever K is"""
        job = toys.tape(steps=6, batch=8, micro=1, compute="fp16", scale=16, checkpoint={"every": 3, "keep": 0})
        rows = [1] * 16 + [60000] * 8 + [1] * 32
        outcome = self.train(job, rows, 2)
        run = self.directory_of("run1")
        self.assertEqual(outcome.verdicts(), "AASAAAA")
        self.assertEqual(names(run), [name_of(3), name_of(6)])
        records = [record for record in harness.read_log(run) if record["type"] == "checkpoint"]
        self.assertEqual([(r["step"], r["optimizer_steps"], r["name"]) for r in records], [(4, 3, name_of(3)), (7, 6, name_of(6))])
        self.assertEqual([manifest(run, name)["step"] for name in names(run)], [4, 7])
        self.assertEqual(outcome.result["checkpoint"], name_of(6))
        with open(os.path.join(checkpoints.folder(run), "latest")) as latest:
            self.assertEqual(latest.read(), name_of(6) + "\n")

    def test_what_is_in_one(self):
        job = toys.gpt(65, width=16, batch=4, micro=1, steps=4, optimizer="adamw", lr=0.01, compute="fp16", scale=1024,
                       model_={"bias": False}, checkpoint={"every": 4}, data={"order": "shuffled"})
        for ranks in (1, 3):
            outcome = self.train(job, toys.tokens(300), ranks)
            run = self.directory_of(f"run{self.count}")
            tensors = toys.read_safetensors(path(run, name_of(4), "model.safetensors"))
            self.assertEqual({name: values.tobytes() for name, values in tensors.items()},
                             {name: values.tobytes() for name, values in outcome.tensors.items()})
            parameters = outcome.header["parameters"]
            self.assertEqual({letter: len(values) for letter, values in moments(run, name_of(4)).items()},
                             {"m": parameters, "v": parameters})
            facts = manifest(run, name_of(4))
            self.assertEqual((facts["ranks"], facts["parameters"], facts["job_digest"]), (ranks, parameters, outcome.header["job_digest"]))
            self.assertEqual(facts["loss_scale"]["scale"], outcome.column("loss_scale_next")[-1])
            self.assertEqual(facts["loss_scale"]["growth_tracker"], outcome.column("growth_tracker")[-1])
            self.assertEqual((facts["data"]["first"], facts["data"]["sequences_seen"], facts["plan"]["step"]), (16, 16, 5))
            self.assertEqual(facts["loss"], outcome.column("loss")[-1])
            for entry in facts["files"]:
                size = os.path.getsize(path(run, name_of(4), entry["file"]))
                ends = [(one["begin"], one["end"]) for one in entry["ranges"]]
                self.assertEqual((entry["bytes"], ends[0][0], ends[-1][1]), (size, 0, size))
                self.assertEqual([end for _, end in ends[:-1]], [begin for begin, _ in ends[1:]])
                with open(path(run, name_of(4), entry["file"]), "rb") as file:  # case 24-5
                    self.assertEqual(struct.unpack("<Q", file.read(8))[0] % 8, 0)
            shown = self.call(harness.GACCD, "inspect", path(f"run{self.count}", name_of(4)))
            self.assertEqual((shown.status, shown.err), (0, ""))
            as_json = self.call(harness.GACCD, "inspect", "--json", path(f"run{self.count}", name_of(4)))
            self.assertEqual(json.loads(as_json.out)["optimizer_steps"], 4)
            for line in ("format: checkpoint", "optimizer_steps: 4", f"ranks: {ranks}", "sound: yes"):
                self.assertIn(line + "\n", shown.out)

    def test_inspect_finds_what_is_unsound(self):
        job = toys.tape(steps=1, checkpoint={"every": 1})
        self.train(job, [1])
        directory = path(self.directory_of("run1"), name_of(1))
        with open(os.path.join(directory, "model.safetensors"), "r+b") as file:
            file.truncate(os.path.getsize(file.name) - 1)
        done = self.call(harness.GACCD, "inspect", directory)
        self.assertEqual(done.status, 65)
        self.assertIn("model.safetensors: has ", done.err)
        self.assertNotIn("sound", done.out)

    def test_inspect_of_other_directories_names_what_there_is(self):
        """A run, its checkpoints and its final/, with and without a slash behind; one that holds nothing of ours, and half a checkpoint."""
        self.train(toys.tape(steps=2, checkpoint={"every": 1}), [1])
        newest, model = "run1/checkpoints/step-00000002", "run1/final/model.safetensors"
        os.mkdir(os.path.join(self.directory, "empty"))
        for directory, found in (("run1", f"{newest}, {model}"), ("run1/checkpoints", newest), ("run1/final", model), ("empty", "")):
            for slash in ("", "/", "//"):
                done = self.call(harness.GACCD, "inspect", directory + slash)
                self.assertEqual((done.status, done.err), (66, f"gaccd: {directory}{slash}: has no manifest.json, so it is no whole checkpoint"
                                                           + (f"; try {found}" if found else "") + "\n"))
            for one in filter(None, found.split(", ")):
                self.assertEqual(self.call(harness.GACCD, "inspect", one).status, 0)
        os.remove(os.path.join(self.directory, newest, "manifest.json"))
        done = self.call(harness.GACCD, "inspect", newest)
        self.assertIn(f"no whole checkpoint; try {newest}/model.safetensors", done.err)
        done = self.call(harness.GACCD, "inspect", "run1")
        self.assertIn("try run1/checkpoints/step-00000001, ", done.err)
        self.assertEqual(self.call("sh", "-c", f"cd run1 && {harness.GACCD} inspect checkpoints").err.strip()[-31:], "; try checkpoints/step-00000001")

    def test_async_or_not_is_the_same(self):
        for ranks in (1, 2):
            found = []
            for is_async in (True, False):
                job = toys.tape((1, 2, 3), steps=5, batch=2, micro=1, optimizer="adamw", checkpoint={"every": 1, "keep": 0, "async": is_async})
                self.train(job, [(1, 2, 3, 4), (1, -1, 0, 1)], ranks)
                run = self.directory_of(f"run{self.count}")
                found.append([contents(run, name) for name in names(run)])
            self.assertEqual(len(found[0]), 5)
            self.assertEqual(found[0], found[1])

    def test_four_ranks_save_every_step(self):
        """case 23-1: fifty complete ones, none in the way of another"""
        job = toys.tape((1, 2), steps=50, batch=4, micro=1, checkpoint={"every": 1, "keep": 0})
        outcome = self.train(job, [(1, 2, 3)] * 4, 4)
        run = self.directory_of("run1")
        self.assertEqual(names(run), [name_of(step) for step in range(1, 51)])
        self.assertEqual((outcome.err, outcome.events), ("", []))
        self.assertEqual(sorted(os.listdir(checkpoints.folder(run))), sorted(["latest", *names(run)]))

    def test_the_newest_stay_and_the_marks(self):
        """case 23-4: there is always a complete one"""
        for keep, every, stay in ((1, 0, [12]), (2, 0, [11, 12]), (1, 5, [5, 10, 12]), (0, 0, list(range(1, 13)))):
            job = toys.tape(steps=12, checkpoint={"every": 1, "keep": keep, "keep_every": every})
            self.train(job, [1])
            self.assertEqual(names(self.directory_of(f"run{self.count}")), [name_of(step) for step in stay])
        job = toys.tape(steps=10**9, checkpoint={"every": 1, "keep": 1})
        self.write("data", toys.csv_text(job, [1]))
        job["data"]["train"] = "data"
        running = self.start(job, ranks=0).until_step(3)
        for _ in range(200):
            self.assertGreaterEqual(len(names(running.output)), 1)
        os.kill(running.process.pid, signal.SIGKILL)
        running.wait()
        harness.until_empty(self.processes, 5)
        found = names(running.output)
        self.assertGreaterEqual(len(found), 1)
        self.assertEqual(self.call(harness.GACCD, "inspect", path("run", found[-1])).status, 0)

    def test_parameters_that_are_not_finite_are_never_kept(self):
        """case 22-6"""
        job = toys.tape((0, 0), steps=5, lr=1e30, checkpoint={"every": 1})
        outcome = self.train(job, [(1, 1e5, 1e5), (1, 1e5, 1e30)], expect=76)  # -1e35; then beyond fp32
        run = self.directory_of("run1")
        self.assertEqual(names(run), [name_of(1)])
        self.assertEqual(os.listdir(checkpoints.folder(run)).count(name_of(2)), 0)
        self.assertEqual([event["event"] for event in outcome.events], ["checkpoint_failed"] * 2)
        self.assertIn("rank 0: tensor weight is not finite", outcome.events[0]["text"])
        self.assertEqual(outcome.result["checkpoint"], name_of(1))
        self.assertEqual(self.call(harness.GACCD, "inspect", path(run, name_of(1))).status, 0)

    def test_check_shows_the_section(self):
        self.write("data", "weight,g0\n1,1\n")
        job = toys.tape(steps=1)
        job["data"]["train"] = "data"
        self.write("job.yaml", json.dumps(job))
        done = self.call(harness.GACCD, "check", "job.yaml", "--set", "checkpoint.keep_every=7")
        self.assertIn("\ncheckpoint:\n  every: 1000  # applied optimizer steps\n  keep: 3\n  keep_every: 7  # applied optimizer steps\n"
                      "  async: true\n", done.out)
        done = self.call(harness.GACCD, "check", "job.yaml", "--set", "checkpoint.evry=7")
        self.assertEqual(done.status, 78)
        self.assertIn("checkpoint.evry: unknown key; did you mean every?", done.err)

    def test_a_receipt_goes_into_checkpoints(self):
        job = toys.tape(steps=1, checkpoint={"every": 1})
        os.mkdir(self.directory_of("run1"))
        self.write("run1/verify.json", '{"pass": true}\n')
        self.train(job, [1])
        self.assertEqual(manifest(self.directory_of("run1"), name_of(1))["verify"], '{"pass": true}\n')
        self.assertIn("verified: yes\n", self.call(harness.GACCD, "inspect", path("run1", name_of(1))).out)


if __name__ == "__main__":
    harness.main()
