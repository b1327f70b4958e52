"""Groups of tensors: what each is updated by, and tensors that are frozen (cases 13-6, 16-1, 16-5; G2, G4)."""

import copy
import json
import os
import struct

import numpy

import harness
import toys
from toys import gpt, job_of, tokens

LINEAR = {"type": "linear", "inputs": 1, "init": {"values": {"weight": [0.1], "bias": [0]}}}
MLP = {"type": "mlp", "inputs": 3, "hidden": [5, 4], "outputs": 2, "activation": "tanh", "norm": "layer"}


def rows(count, inputs=3, outputs=2):
    values = numpy.random.default_rng(5).normal(size=(count, inputs + outputs))
    return [(1, *row) for row in values.round(3).tolist()]


def frozen(*patterns):
    return [{"match": pattern, "frozen": True} for pattern in patterns]


class Groups(toys.Training):
    def resume(self, job, expect=0, ranks=0, arguments=()):
        """The job of the last directory, once more."""
        job = copy.deepcopy(job)
        job["data"].setdefault("train", "data")
        done = self.run_job(job, ranks=ranks, output=f"run{self.count}", arguments=arguments)
        self.assertEqual(done.status, expect, done.err)
        return toys.Outcome(done, os.path.join(self.directory, f"run{self.count}"))

    def moments(self, checkpoint):
        """Names in all of its optimizer files."""
        directory, names = os.path.join(self.directory, f"run{self.count}", "checkpoints", checkpoint), []
        for name in sorted(os.listdir(directory)):
            if name.startswith("optimizer"):
                with open(os.path.join(directory, name), "rb") as file:
                    (length,) = struct.unpack("<Q", file.read(8))
                    names += [key for key in json.loads(file.read(length)) if key != "__metadata__"]
        return names

    def test_what_is_frozen_has_no_share_in_the_norm(self):
        """13-6: the gradient of the weight would be 100, that of the bias is 0.5, the limit 1: no clip. 100.00125 and an update
        of 0.005 if the frozen tensor counted."""
        for ranks, compute in ((1, "fp32"), (2, "fp16"), (4, "bf16")):
            job = job_of(
                {**LINEAR, "init": {"values": {"weight": [0], "bias": [0]}}},
                batch=4,
                compute=compute,
                scale=8 if compute == "fp16" else None,
                optimizer_={"clip_norm": 1, "groups": frozen("weight")},
            )
            out = self.train(job, 4 * [(1, 200, -0.5)], ranks)
            step = out.steps[0]
            self.assert_near([step["grad_norm"], step["clip_coefficient"]], [0.5, 1])
            self.assertEqual((out.tensors["weight"].item(), out.tensors["bias"].item()), (0, -0.5))

    def test_frozen_tensors_keep_every_bit(self):
        """16-1: half of the tensors, AdamW with decay, 10 steps; 0.1 is no number of bf16 or fp16, and stays fp32's. All splits,
        the last micro-batch short, K uneven; nothing of what is frozen is sent, or kept beside its values."""
        start = self.train(job_of({**MLP}, lr=0), rows(1)).tensors
        values = {name: tensor.size * [0.1] for name, tensor in start.items() if name.startswith(("layers.1", "norms.0"))}
        still = sum(start[name].size for name in values)
        trained = sum(tensor.size for tensor in start.values()) - still
        for compute, ranks in (("fp32", 4), ("bf16", 2), ("fp16", 1), ("fp64", 3)):
            job = job_of(
                {**MLP, "init": {"values": values}},
                steps=10,
                batch=9,
                micro=2,
                compute=compute,
                lr=0.01,
                optimizer="adamw",
                optimizer_={"weight_decay": 0.1, "groups": frozen("layers.1.*", "norms.0.*")},
                checkpoint={"every": 10},
            )
            out = self.train(job, rows(41), ranks)
            saved = toys.read_safetensors(
                os.path.join(self.directory, f"run{self.count}", "checkpoints", "step-00000010", "model.safetensors")
            )
            kind = numpy.float64 if compute == "fp64" else numpy.float32
            for tensors in (out.tensors, saved):
                for name, tensor in tensors.items():
                    moved = not numpy.array_equal(tensor, numpy.full(tensor.shape, 0.1, kind))
                    self.assertEqual(moved, name not in values, name)
            wide, narrow = (8, 8) if compute == "fp64" else (4, 4 if compute == "fp32" else 2)
            self.assertEqual((out.header["parameters"], out.header["trained"]), (trained + still, trained))
            self.assertEqual(out.header["memory"]["gradients"], trained * wide)
            self.assertEqual(out.header["memory"]["parameters"], (trained + still) * narrow)
            owned = -(-trained // ranks)
            self.assertEqual(out.header["memory"]["moments"], 2 * owned * wide)
            self.assertEqual(out.header["memory"]["shard"], (2 * owned + -(-still // ranks)) * wide)
            sent = out.steps[0]["bytes"]
            self.assertEqual(sent["all_gather"], owned * narrow * (ranks - 1))
            self.assertLessEqual(abs(sent["reduce_scatter"] - trained * wide * (ranks - 1) / ranks), ranks * wide)

    def test_frozen_is_what_no_rate_and_no_decay_would_be(self):
        """Without a clip, which the norm would tell apart: every bit of every other tensor, whatever is frozen; dropout and
        recomputation on."""
        job = gpt(
            layers=2,
            batch=5,
            micro=2,
            steps=4,
            compute="bf16",
            lr=0.01,
            optimizer="adamw",
            model_={"dropout": 0.1},
            optimizer_={"weight_decay": 0.1},
        )
        for patterns in (["wte.*", "wpe.*"], ["h.1.*"], ["*.ln_1.weight", "*.c_fc.weight", "*.c_attn.bias"], ["h.*", "w*"]):
            found = []
            for keys in ({"frozen": True}, {"lr": 0, "weight_decay": 0}):
                job["optimizer"]["groups"] = [{"match": pattern, **keys} for pattern in patterns]
                found.append(self.train({**job, "recompute": "block"}, tokens(8 * 30 + 1)))
            for name, tensor in found[1].tensors.items():
                self.assertTrue(numpy.array_equal(found[0].tensors[name], tensor), name)
            self.assertEqual(found[0].column("loss"), found[1].column("loss"))

    def test_what_only_one_rank_uses_is_averaged_over_all(self):
        """16-5: the gradients are 4 on one rank and nothing on the other: 4/2 for each."""
        model = {"type": "linear", "inputs": 2, "bias": False, "init": {"values": {"weight": [0, 0]}}}
        for ranks in (1, 2):
            out = self.train(job_of(model, batch=2), [(1, 1, 0, -4), (1, 0, 1, -4)], ranks)
            self.assert_near(out.weight, [-2, -2])

    def test_the_log_shows_each_group(self):
        """A cosine from the peak to a tenth of it: groups keep their ratio at every step, and on a skip."""
        groups = [{"match": "layers.1.*", "frozen": True}, {"match": "*.bias", "lr": 0.02, "weight_decay": 0.25}]
        job = job_of(
            MLP,
            steps=4,
            batch=4,
            lr=0.01,
            compute="fp16",
            scale=8,
            optimizer_={"weight_decay": 0.5, "groups": groups},
            schedule={"type": "cosine", "warmup": 1, "minimum": 0.001},
        )
        data = rows(40)
        data[4] = (1, 1e6, *data[4][2:])  # infinite in fp16
        out = self.train(job, data, 2)
        self.assertEqual(
            out.header["groups"],
            [
                {"match": "layers.1.*", "tensors": 2, "parameters": 24, "lr": None, "weight_decay": None, "frozen": True},
                {"match": "*.bias", "tensors": 4, "parameters": 16, "lr": 0.02, "weight_decay": 0.25, "frozen": False},
                {"match": None, "tensors": 2, "parameters": 23, "lr": 0.01, "weight_decay": 0.5, "frozen": False},
                {"match": None, "tensors": 2, "parameters": 9, "lr": 0.01, "weight_decay": 0.0, "frozen": False},
            ],
        )
        self.assertEqual(out.verdicts(), "ASAAA")
        for step in out.steps:
            self.assertEqual(step["lr_groups"], [None, 2 * step["lr"], step["lr"], step["lr"]])
        self.assertNotIn("lr_groups", self.train(job_of(LINEAR), [(1, 1, 1)]).steps[0])

    def test_thawed_at_a_resume_begins_anew(self):
        """AdamW with g = −1 all along moves by lr·1/(1 + eps) a step from its first on. With the moments at zero but the
        correction of the 4th step the first would be 0.58·lr. Over a second resume, the moments' age is known."""
        job = job_of(
            LINEAR,
            steps=3,
            batch=4,
            lr=0.01,
            compute="fp64",
            optimizer="adamw",
            optimizer_={"groups": frozen("weight")},
            checkpoint={"every": 1},
        )
        data = 40 * [(1, 1, 1e6)]  # the error, −1e6 throughout, is what AdamW divides by
        for ranks, then in ((1, 2), (4, 1)):
            out = self.train(job, data, ranks)
            self.assertEqual((out.tensors["weight"].item(), out.header["trained"]), (0.1, 1))
            self.assert_near(out.tensors["bias"].item(), 0.03, 1e-9)
            thaw = ("--set", "optimizer.groups.0.frozen=false", "--set", "job.steps=4")
            out = self.resume(job, ranks=then, arguments=thaw)
            self.assert_near([out.tensors["weight"].item(), out.tensors["bias"].item()], [0.11, 0.04], 1e-9)
            self.assertEqual(sorted(set(self.moments("step-00000004"))), ["m.0-1.since.3", "m.1-2", "v.0-1.since.3", "v.1-2"])
            out = self.resume(job, ranks=ranks, arguments=thaw[:3] + ("job.steps=6",))
            self.assert_near([out.tensors["weight"].item(), out.tensors["bias"].item()], [0.13, 0.06], 1e-9)
        # frozen again: its moments are gone, and it begins anew once more
        out = self.resume(job, arguments=("--set", "optimizer.groups.0.frozen=true", "--set", "job.steps=7"))
        self.assert_near(out.tensors["weight"].item(), 0.13, 1e-9)
        self.assertEqual(sorted(self.moments("step-00000007")), ["m.1-2", "v.1-2"])
        out = self.resume(job, arguments=("--set", "optimizer.groups.0.frozen=false", "--set", "job.steps=8"))
        self.assert_near(out.tensors["weight"].item(), 0.14, 1e-9)

    def test_groups_thaw_and_freeze_at_their_step(self):
        """AdamW, g = −1e6 all along: lr a step. The weight is trained from the fourth step on, the bias up to the fifth, over skips and
        resumes at any place and N; the header counts what is trained there, and has the memory of the fourth; collective calls besides the step's own are three gathers or more where the layout changes."""
        groups = [{"match": "weight", "frozen_until": 3}, {"match": "bias", "frozen_from": 5}]
        job = job_of(
            LINEAR,
            steps=8,
            batch=4,
            lr=0.01,
            compute="fp64",
            optimizer="adamw",
            optimizer_={"groups": groups},
            checkpoint={"every": 1},
        )
        data = 40 * [(1, 1, 1e6)]
        for ranks in (1, 4):
            out = self.train(job, data, ranks)
            self.assert_near([out.tensors["weight"].item(), out.tensors["bias"].item()], [0.15, 0.05], 1e-9)
            self.assertEqual(
                [step["lr_groups"] for step in out.steps], 3 * [[None, 0.01]] + 2 * [[0.01, 0.01]] + 3 * [[0.01, None]]
            )
            self.assertEqual(out.header["trained"], 1)
            planned = json.loads(self.call(harness.GACCD, "plan", "job.yaml", "-n", str(ranks), "--json").out)["memory"]
            self.assertEqual(out.header["memory"], {row: planned[row] for row in out.header["memory"]})
            self.assertEqual(out.header["memory"]["gradients"], 2 * 8)  # in the fourth and the fifth step
            moved = [step["collectives"]["control"] > 0 for step in out.steps]
            self.assertEqual(moved, [False, False, False, True, False, True, False, False])
        whole = self.moments("step-00000008")
        self.assertEqual(sorted(whole), ["m.0-1.since.3", "v.0-1.since.3"])
        for first, then in ((3, 2), (5, 4)):
            self.train({**job, "job": {"name": "toy", "steps": first}}, data, 3 - first % 2)
            out = self.resume(job, ranks=then, arguments=("--set", "job.steps=8"))
            self.assert_near([out.tensors["weight"].item(), out.tensors["bias"].item()], [0.15, 0.05], 1e-9)
            self.assertEqual(sorted(self.moments("step-00000008")), whole)
            header = self.log("header", f"run{self.count}")[-1]
            self.assertEqual((header["trained"], header["memory"]["gradients"]), ({3: 2, 5: 1}[first], 2 * 8))

    def test_a_thaw_is_a_resume_with_other_groups(self):
        """A language model in bf16 with momentum of all kinds: what is trained from step 2 on has the bits of the job that was ended
        there and gone on with under other groups."""
        job = gpt(batch=5, micro=2, steps=2, compute="bf16", lr=0.01, optimizer="adamw", model_={"dropout": 0.1},
                  optimizer_={"weight_decay": 0.1, "clip_norm": 0.5, "groups": frozen("h.*")}, checkpoint={"every": 2})
        self.train(job, tokens(8 * 30 + 1), 2)
        other = self.resume(job, ranks=2, arguments=("--set", "optimizer.groups.0.frozen=false", "--set", "job.steps=4"))
        job["optimizer"]["groups"] = [{"match": "h.*", "frozen_until": 2}]
        job["job"]["steps"] = 4
        out = self.train(job, tokens(8 * 30 + 1), 2)
        for name, tensor in other.tensors.items():
            self.assertTrue(numpy.array_equal(out.tensors[name], tensor), name)

    def test_check_shows_the_groups(self):
        """What each tensor is updated by, before anything runs."""
        body = {"name": "body", "match": "layers.[01].*", "type": "adamw", "lr": 0.01, "weight_decay": 0.1}
        body["groups"] = [{"match": "layers.0.*", "frozen": True}, {"match": "*.bias", "lr": 0.04, "frozen_until": 100}]
        rest = {"name": "rest", "match": "*", "type": "sgd", "lr": 0.02}
        for optimizer, lora, wanted in (
            ([body, rest], None, ["2 20 frozen body: layers.0.*", "1 4 0.04 0 body: *.bias, frozen for 100 steps",
                                  "1 20 0.01 0.1 body: no pattern", "2 10 0.02 0 rest: no pattern"]),
            ({"lr": 0.5, "groups": [{"match": "*.lora_B.*", "lr": 1}]}, {"rank": 2, "targets": "layers.1"},
             ["1 8 1 0 *.lora_B.*", "1 10 0.5 0 no pattern", "6 54 frozen the base of model.lora"]),
        ):
            self.write("rows", toys.csv_text({"model": MLP}, rows(3)))
            job = job_of({**MLP, "norm": "none", **({"lora": lora, "init": {"values": {"layers.0.bias": 5 * [0]}}} if lora else {})}, steps=1, data={"train": "rows"})
            self.write("job.yaml", json.dumps({**job, "optimizer": optimizer}))
            done = self.call(harness.GACCD, "check", "job.yaml")
            self.assertEqual((done.status, done.err), (0, ""))
            table = done.out.partition("# Groups of tensors:\n")[2].splitlines()
            self.assertEqual([" ".join(line.split()[1:]) for line in table], ["tensors parameters lr decay of", *wanted])

    def test_a_pattern_that_matches_nothing_is_refused_with_what_is_near(self):
        self.write("rows", toys.csv_text({"model": MLP}, rows(3)))
        for pattern, near in (("layer.0.*", "layers.0.weight, layers.0.bias"), ("norms.7.wieght", "norms.0.weight, norms.1.weight")):
            job = job_of(MLP, data={"train": "rows"}, optimizer_={"groups": [{"match": pattern}]})
            done = self.run_job(job, ranks=0)
            self.assertEqual((done.status, len(done.own_lines())), (78, 1))
            self.assertIn(f"optimizer.groups.0.match: '{pattern}' matches no tensor; near it: {near}", done.err)
        done = self.run_job(job_of(MLP, data={"train": "rows"}, optimizer_={"groups": frozen("*")}), ranks=0)
        self.assertEqual(done.status, 78)
        self.assertIn("nothing is left to train", done.err)


if __name__ == "__main__":
    harness.main()
