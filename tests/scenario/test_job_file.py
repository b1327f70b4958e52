"""A job file says what it means or is refused, with its line, before anything starts (cases 03-8, 40; A1, A8, B7)."""

import harness
import toys

JOB = """\
job: {steps: 2}
model: {type: tape, size: 1}
data: {format: csv, train: rows}
batch:
  global: 4
  micro: 2
optimizer:
  type: sgd
  lr: 1
"""


class JobFile(toys.Training):
    def setUp(self):
        super().setUp()
        self.write("rows", "g0\n1\n1\n1\n1\n")

    def edited(self, old, new):
        text = JOB.replace(old, new)
        self.assertNotEqual(text, JOB)
        return self.write("job.yaml", text)

    def refused(self, old, new, place, *words):
        """By check and by a start on two ranks, which begins nothing: no output directory."""
        path = self.edited(old, new)
        done = self.call(harness.GACCD, "check", path)
        self.assertEqual((done.status, done.out, len(done.own_lines())), (78, "", 1), done.err)
        self.assertRegex(done.err, rf"job\.yaml:{place}:\d+: ")
        for word in words:
            self.assertIn(word, done.err)
        return done

    def test_a_micro_batch_is_a_count(self):
        """03-8: 0, −1, 2.5, "4", 2³¹, and others of the kind, for both batch keys."""
        for key, line in (("micro", 6), ("global", 5)):
            for value in (
                "0",
                "-1",
                "2.5",
                '"4"',
                "2147483648",
                "4294967297",
                "1e400",
                ".inf",
                ".nan",
                "four",
                "true",
                "null",
                "[4]",
                "{a: 4}",
                "0x4",
                "~",
            ):
                old = f"{key}: {4 if key == 'global' else 2}"
                self.refused(old, f"{key}: {value}", line, f"batch.{key}")
        self.refused("micro: 2", "micro: 5", 6, "batch.micro", "5", "4")  # b > B
        self.refused("micro: 2", "micro: 2\n  accumulate: 4", 7, "batch.accumulate", "batch.global")

    def test_ranks_refuse_before_anything_starts(self):
        self.edited("micro: 2", "micro: 0")
        for ranks in (0, 2, 4):
            done = self.run_job("job.yaml", ranks)
            self.assertEqual((done.status, len(done.own_lines())), (78, 1), done.err)
            self.assertIn("job.yaml:6:10: batch.micro: 0", done.err)
        self.assertEqual(self.log(), [])

    def test_numbers_are_numbers(self):
        """40-1: 3e-4, 3E-4, 1 and others are; "3e-4" is a text."""
        for value, lr in (
            ("3e-4", 3e-4),
            ("3E-4", 3e-4),
            ("1", 1),
            ("0.5", 0.5),
            (".5", 0.5),
            ("5.", 5),
            ("+2", 2),
            ("1e0", 1),
            ("0", 0),
            ("1_0", None),
        ):
            path = self.write("job.yaml", JOB.replace("lr: 1", f"lr: {value}"))
            done = self.run_job(path, 0, output=f"run{value}")
            if lr is None:
                self.assertEqual(done.status, 78)
            else:
                self.assertEqual((done.status, self.log("step", f"run{value}")[0]["lr"]), (0, lr), done.err)
        for value in (
            '"3e-4"',
            "'1'",
            "3e-4x",
            "1,5",
            "3 e-4",
            "010",
            "0x10",
            "true",
            "-1e-3",
            "1e999",
            "nan",
            ".inf",
            "banana",
            "",
            "[1]",
        ):
            self.refused("lr: 1", f"lr: {value}", 9, "optimizer.lr")

    def test_misspelt_words_are_named_and_mended(self):
        """40-3"""
        for old, new, line, words in (
            ("optimizer:", "precision: {compute: bf-16}\noptimizer:", 7, ("precision.compute", "bf16")),
            ("optimizer:", "precision: {compute: BF16}\noptimizer:", 7, ("precision.compute", "bf16")),
            ("type: tape", "type: tap", 2, ("model.type", "tape")),
            ("format: csv", "format: cvs", 3, ("data.format", "csv")),
            ("type: sgd", "type: adam", 8, ("optimizer.type", "adamw")),
            ("  micro: 2", "  micro: 2\n  grad_acum: 8", 7, ("grad_acum",)),
            ("  micro: 2", "  micro: 2\n  weigthing: token", 7, ("weigthing", "weighting")),
            ("optimizer:", "sharding: no-shard\noptimizer:", 7, ("sharding",)),
            ("optimizer:", "shedule: {type: cosine}\noptimizer:", 7, ("shedule", "schedule")),
            ("optimizer:", "schedule: {type: cosin}\noptimizer:", 7, ("schedule.type", "cosine")),
            ("lr: 1", "lr: 1\n  clipnorm: 1", 10, ("clipnorm", "clip_norm")),
            ("lr: 1", "lr: 1\n  betas: [0.9, 0.99]", 10, ("optimizer.betas", "adamw")),
        ):
            with self.subTest(new=new):
                self.refused(old, new, line, *words)

    def test_yaml_that_can_be_read_in_two_ways_is_refused(self):
        for old, new, line in (
            ("lr: 1", "lr: 1\n  lr: 2", 10),
            ("job: {steps: 2}", "job: &a {steps: 2}", 1),
            ("lr: 1", "lr: !!int 1", 9),
            ("lr: 1", "lr: 1\n---\njob: {steps: 3}", 10),
        ):
            self.refused(old, new, line)

    def test_a_job_has_one_length(self):
        self.refused("{steps: 2}", "{}", 1)
        self.refused("{steps: 2}", "{steps: 2, epochs: 1}", 1, "epochs")

    def test_set_beats_the_file_and_is_as_strict(self):
        path = self.write("job.yaml", JOB)
        done = self.run_job(
            path, 0, arguments=["--set", "optimizer.lr=0.25", "--set", "batch.micro=1", "--set", "job.steps=3"]
        )
        self.assertEqual(done.status, 0, done.err)
        self.assertEqual([(step["lr"], step["accumulate"]) for step in self.log("step")], 3 * [(0.25, [4])])
        for setting in (
            "optimizer.lr=fast",
            "optimizer.lr",
            "optimizer.rl=1",
            "batch.micro=5",
            'batch.micro="1"',
            "optimizer.groups.0.lr=1",
        ):
            done = self.call(harness.GACCD, "check", path, "--set", setting)
            self.assertIn(done.status, (64, 78))
            self.assertIn(setting.split("=")[0], done.err)
            self.assertEqual(len(done.own_lines()), 1)

    def test_linear_scaling_is_said_and_a_rate_multiplied_by_k_is_doubted(self):
        """A8"""
        path = self.edited("micro: 2", "micro: 2\n  lr_scaling: linear\n  base: 1")
        self.assertIn("lr: 1  # 4 after lr_scaling: global / base = 4 / 1", self.call(harness.GACCD, "check", path).out)
        self.assertEqual(self.run_job(path, 0).status, 0)
        self.assertEqual(self.log("step")[0]["lr"], 4)
        for optimizer, lr, doubted in (
            ("adamw", 0.012, True),
            ("adamw", 0.01, False),
            ("adamw", 0.02, False),  # a small model's own
            ("adamw", 0.5, False),
            ("sgd", 1.2, True),
            ("sgd", 2, False),
            ("sgd", 1, False),
        ):
            path = self.write("job.yaml", JOB.replace("sgd", optimizer).replace("lr: 1", f"lr: {lr}"))
            done = self.call(harness.GACCD, "check", path)
            self.assertEqual(
                (done.status, "multiplied by the number of micro-batches (2)" in done.err), (0, doubted), done.err
            )

    def test_the_effective_job_is_kept(self):
        """A1, B2: job.yaml of the run says every default, and is the same job again."""
        path = self.write("job.yaml", JOB)
        self.assertEqual(self.run_job(path, 0, output="one").status, 0)
        self.assertEqual(self.run_job("one/job.yaml", 0, output="two").status, 0)
        one, two = self.log("header", "one")[0], self.log("header", "two")[0]
        self.assertEqual(one["job_digest"], two["job_digest"])
        with open(self.directory + "/one/job.yaml") as file:
            text = file.read()
        for words in ("weighting: token", "nonfinite_stop_after: 3", "seed: 1337", "clip_norm: null"):
            self.assertIn(words, text)


if __name__ == "__main__":
    harness.main()
