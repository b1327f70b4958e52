"""A job that goes on from a checkpoint: the run that never ended, at any number of ranks, or a refusal in words."""

import json
import os
import shutil
import threading

import checkpoints
import harness
import toys
from checkpoints import contents, cut, manifest, moments, name_of, names, path


def gpt(**keys):
    return toys.gpt(65, width=16, model_={"dropout": 0.1}, batch=4, micro=1, optimizer="adamw", lr=1e-2,
                    optimizer_={"clip_norm": 0.5, "weight_decay": 0.1}, data={"order": "shuffled"}, **keys)


class Resume(checkpoints.Checkpoints):
    def last_start(self, run):
        """The records from the last header on."""
        records = harness.read_log(run)
        return records[max(i for i, record in enumerate(records) if record["type"] == "header"):]

    def check_goes_on(self, job, data, ranks, steps, cuts, arguments=()):
        """Stopped behind each of `cuts` attempts: the rest of the log, the last checkpoint and the model, byte for byte."""
        job = {**job, "checkpoint": {"every": 1, "keep": 0}}
        whole = self.train(job, data, ranks)
        run = self.directory_of(f"run{self.count}")
        last = names(run)[-1]
        for number, step in enumerate(cuts):
            with self.subTest(ranks=ranks, step=step):
                output = f"cut{self.count}.{number}"
                cut(run, step, self.directory_of(output))
                applied = int(names(self.directory_of(output))[-1].split("-")[1])
                attempt = manifest(self.directory_of(output), names(self.directory_of(output))[-1])["step"]
                rest = self.train_into(output, job, data, ranks, arguments)
                records = self.last_start(self.directory_of(output))
                self.assertEqual(records[0]["resumed_from"], path(output, name_of(applied)))
                self.assertEqual(records[0]["resumed"]["step"], attempt)
                found = [{k: v for k, v in r.items() if k != "seconds"} for r in records
                         if r["type"] in ("step", "event", "eval") and r.get("event") != "notice"]  # which every start has
                wanted = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in whole.log_text.splitlines()]
                wanted = [r for r in wanted if r["type"] in ("step", "event", "eval") and r["step"] > attempt]
                self.assertEqual(found, wanted)
                self.assertEqual(contents(self.directory_of(output), last), contents(run, last))
                self.assertEqual(rest.tensors.keys(), whole.tensors.keys())
                for name, values in whole.tensors.items():
                    self.assertEqual(values.tobytes(), rest.tensors[name].tobytes(), name)
        return whole

    def test_a_language_model_in_fp16_goes_on_bit_by_bit(self):
        """case 18-8, 20-1, 17-1: weights, moments, S, tracker, dropout, order, lr and log; the head is tied."""
        job = gpt(steps=12, compute="fp16", scale={"initial": 2**17, "interval": 3},
                  schedule={"type": "cosine", "warmup": 3, "minimum": 1e-3})
        for ranks in (1, 2):
            whole = self.check_goes_on(job, toys.tokens(300), ranks, 12, (3, 7))
            self.assertIn("S", whole.verdicts())
            self.assertGreater(len(set(whole.column("loss_scale"))), 2)

    def test_any_model_goes_on_bit_by_bit(self):
        mlp = toys.job_of({"type": "mlp", "inputs": 3, "hidden": [8], "outputs": 2, "loss": "cross_entropy"},
                          steps=9, batch=4, micro=2, optimizer="adamw", lr=0.1, compute="bf16", data={"order": "shuffled"})
        rows = [(1 + i % 3, i % 5, -i % 7, i % 2, i % 2) for i in range(10)]
        sgd = toys.tape((1, 2, 3), steps=9, batch=3, micro=1, optimizer_={"momentum": 0.9, "weight_decay": 0.1}, compute="fp64")
        grads = [(1, i, -i, i / 3) for i in range(7)]
        for ranks in (1, 2):
            self.check_goes_on(mlp, rows, ranks, 9, (1, 4))
            self.check_goes_on(sgd, grads, ranks, 9, (5,))

    def test_a_mixture_with_masks_goes_on_bit_by_bit(self):
        """Two files of 12 and 25 sequences, two to one, over several passes of the first."""
        self.write("first", toys.tokens(97)), self.write("second", toys.tokens(201, seed=2))
        job = gpt(steps=24)
        job["data"].update(train=["first", "second"], mix=[2, 1], mask={"values": [3, 5]}, document_ends=[7])
        for ranks in (1, 2):
            self.check_goes_on(job, b"", ranks, 24, (11,))

    def test_skips_and_empty_steps_are_counted_on(self):
        """Overflows before and behind the checkpoint."""
        job = toys.tape(steps=6, batch=2, micro=1, compute="fp16", scale={"initial": 8, "interval": 2})
        rows = [(1, 20000), (1, 1), (1, 1), (1, 2), (0, 1), (0, 1), (1, 3), (1, 1)]
        whole = self.check_goes_on(job, rows, 2, 6, (1, 2, 4))
        self.assertEqual(whole.verdicts()[:5], "SAEAS")

    def test_a_ramp_goes_on_bit_by_bit(self):
        """A11: the plan that was issued before the checkpoint is of the steps applied then."""
        job = gpt(steps=8, compute="fp16", scale={"initial": 2**17, "interval": 3}, batch_={"global": 9, "micro": 2, "ramp": {"from": 3, "steps": 5}})
        for ranks in (1, 2):
            self.check_goes_on(job, toys.tokens(300), ranks, 8, (1, 2, 4, 6))

    def test_what_was_evaluated_and_told_there_is_in_it(self):
        """At the step of a checkpoint, which is made meanwhile; at the last one nothing is left to do."""
        job = gpt(steps=4, evaluation={"every": 2, "sequences": 4}, data_={"validation": 0.5})
        whole = self.check_goes_on(job, toys.tokens(300), 2, 4, (1, 4))
        for step in (2, 4):
            evaluation = next(record for record in whole.evaluations if record["step"] == step)
            self.assertEqual(manifest(self.directory_of("run1"), name_of(step))["evaluation"],
                             {"begun_at": step, "loss": evaluation["loss"], "optimizer_steps": step})
        for cut_at in range(2):
            self.assertEqual(self.result(f"cut1.{cut_at}")["validation_loss"], whole.result["validation_loss"])
        mlp = toys.job_of({"type": "mlp", "inputs": 2, "hidden": [4], "outputs": 1, "norm": "batch"}, steps=4, batch=4, micro=2)
        self.check_goes_on(mlp, [(int(i % 4 > 0), i % 3, -i, i % 2) for i in range(8)], 1, 4, (2,))  # of two rows one is masked

    def test_the_growth_tracker_is_restored(self):
        """case 18-1"""
        job = toys.tape(steps=4, compute="fp16", scale={"initial": 1024, "interval": 4})
        self.until(job, [1, 1], 1, 3)
        rest = self.train_into("cut", job, [1, 1])
        self.assertEqual(rest.steps[-1]["loss_scale"], 1024)
        self.assertEqual(rest.steps[-1]["loss_scale_next"], 2048)

    def test_the_schedule_stands_where_it_stood(self):
        """case 18-3"""
        job = toys.tape(steps=6, lr=1e-3, schedule={"type": "cosine", "warmup": 2, "total": 10, "minimum": 1e-4})
        self.until(job, [1, 1], 1, 4)
        rest = self.train_into("cut", job, [1, 1])
        self.assert_close([step["lr"] for step in rest.steps[-2:]], [8.68198e-4, 7.22208e-4], 1e-5)

    def test_adam_goes_on_with_its_moments_and_its_count(self):
        """case 18-6"""
        job = toys.tape((1,), steps=4, optimizer="adamw", lr=0.01, optimizer_={"weight_decay": 0})
        rows = [1, -2, 0.5, 1]
        first = self.until(job, rows, 1, 3)
        self.assert_near(first.weight, [0.9950279], 1e-7)
        self.assert_near(self.train_into("cut", job, rows).weight, [0.9937274], 1e-7)

    def test_masters_are_not_rebuilt_from_rounded_weights(self):
        """case 20-3"""
        job = toys.tape((1.0,), steps=6, lr=0.0005, compute="bf16")
        self.until(job, [1], 1, 3)
        self.assert_near(self.train_into("cut", job, [1]).weight, [0.997])

    def test_the_place_in_the_data_is_kept(self):
        """cases 19-1, 21-3: windows 6, 7, 8 come next, whatever the number of ranks is then"""
        rows = [2.0**i for i in range(12)]
        job = toys.tape(steps=3, batch=3, micro=1, lr=1)
        for before, after in ((1, 1), (2, 1), (1, 3)):
            output = f"cut{before}{after}"
            self.until(job, rows, before, 2, output)
            rest = self.train_into(output, job, rows, after)
            self.assert_close(rest.steps[-1]["grad_norm"], (2**6 + 2**7 + 2**8) / 3)

    def test_an_epoch_goes_on_in_its_own_order(self):
        """case 19-3"""
        rows = [2.0**i for i in range(6)]
        job = toys.tape(steps=6, batch=2, micro=1, lr=1, data={"order": "shuffled"})
        self.until(job, rows, 1, 4)
        rest = self.train_into("cut", job, rows)
        seen = [round(2 * step["grad_norm"]) for step in rest.steps[-3:]]  # step 4 is the first of epoch 2
        self.assertEqual(sum(seen), 2**6 - 1)
        whole = self.train(job, rows)
        self.assertEqual([step["grad_norm"] for step in rest.steps[-2:]], whole.column("grad_norm")[4:])

    def test_files_go_on_in_their_middle(self):
        """case 19-6"""
        job = toys.tape(steps=4, batch=2, micro=1, lr=1)
        for file in range(3):
            self.write(f"part{file}", toys.csv_text(job, [2.0 ** (4 * file + i) for i in range(4)]))
        job["data"]["train"] = [f"part{file}" for file in range(3)]
        self.until(job, [0], 2, 3)
        rest = self.train_into("cut", job, [0], 2)
        self.assert_close(rest.steps[-1]["grad_norm"], (2**6 + 2**7) / 2)

    def test_any_number_of_ranks_takes_up_what_any_number_wrote(self):
        """case 21-1: 7 parameters, two ranks, then three"""
        job = toys.tape((1, 2, 3, 4, 5, 6, 7), steps=4, batch=4, micro=1, optimizer="adamw", lr=0.1)  # every sum is exact
        rows = [(1, *(float(i * j % 5 - 2) for j in range(1, 8))) for i in range(1, 13)]
        for before, after in ((2, 3), (3, 2), (1, 4), (4, 1)):
            output = f"cut{before}{after}"
            self.until(job, rows, before, 3, output)
            job["checkpoint"] = {"every": 4}
            rest, stayed = self.train_into(output, job, rows, after), self.train(job, rows, after)
            stayed_run = self.directory_of(f"run{self.count}")
            self.assertEqual(rest.weight.tobytes(), stayed.weight.tobytes())
            for letter, values in moments(self.directory_of(output), name_of(4)).items():
                self.assertEqual(values.tobytes(), moments(stayed_run, name_of(4))[letter].tobytes())

    def test_what_may_change_is_recorded(self):
        rows = [1.0, 2, 3, 4]
        job = toys.tape(steps=6, batch=4, micro=1, compute="fp16", scale=8)
        self.until(job, rows, 2, 3)
        job["batch"]["micro"], job["optimizer"]["clip_norm"], job["job"]["steps"] = 2, 100, 5
        job["precision"] = {"compute": "bf16"}
        rest = self.train_into("cut", job, rows)
        header = self.last_start(self.directory_of("cut"))[0]
        changes = {change["key"]: (change["was"], change["now"]) for change in header["changes"]}
        self.assertEqual(changes["batch.micro"], ("1", "2"))
        self.assertEqual(changes["optimizer.clip_norm"], ("null", "100"))
        self.assertEqual(changes["precision.compute"], ("fp16", "bf16"))
        self.assertEqual(changes["precision.loss_scale.initial"], ("8", None))
        self.assertEqual(changes["job.steps"], ("3", "5"))
        self.assertEqual((rest.result["optimizer_steps"], rest.err), (5, ""))
        self.assert_close(rest.weight, [-5 * 2.5])

    def test_the_optimizer_stays_as_it_was_unless_set_says_so(self):
        job = toys.tape(steps=3, lr=1)
        self.until(job, [1], 1, 2)
        job["optimizer"]["lr"] = 10
        shutil.copytree(self.directory_of("cut"), self.directory_of("set"))
        kept = self.train_into("cut", job, [1])
        self.assert_near(kept.weight, [-3])
        self.assertEqual(kept.lines, ["gaccd: optimizer.lr: 1 stays as in the checkpoint, not 10; --set optimizer.lr=… changes it"])
        changes = self.last_start(self.directory_of("cut"))[0]["changes"]
        self.assertIn({"key": "optimizer.lr", "was": "1", "now": "1", "not": "10"}, changes)
        self.assert_near(self.train_into("set", job, [1], arguments=["--set", "optimizer.lr=10"]).weight, [-12])

    def test_another_job_is_refused_by_name(self):
        """case 21-5: another B, too"""
        job = toys.tape((1, 1), steps=4, batch=2, micro=1)
        rows = [(1, 2, 3)] * 4
        self.until(job, rows, 1, 2)
        os.remove(os.path.join(self.directory_of("cut"), "result.json"))
        before = harness.read_log(self.directory_of("cut"))
        for key, value in (("batch.global", 4), ("job.seed", 7), ("batch.weighting", "sum"), ("optimizer.type", "adamw"),
                           ("data.order", "shuffled")):
            done = self.run_job("job.yaml", ranks=0, output="cut", arguments=["--set", f"{key}={value}"])
            self.assertEqual(done.status, 78, done.err)
            self.assertEqual(len(done.own_lines()), 1)
            self.assertIn(f"{key}: {value} here, ", done.err)
            self.assertIn("--resume never", done.err)
        self.write("data", toys.csv_text(job, rows + [(1, 5, 5)]))
        done = self.run_job("job.yaml", ranks=0, output="cut", arguments=["--set", "job.steps=4"])
        self.assertEqual(done.status, 65)
        self.assertIn("data.train: holds 5 sequences, 4 when the checkpoint was made", done.err)
        self.assertEqual(len(names(self.directory_of("cut"))), 1)
        self.assertEqual([r for r in harness.read_log(self.directory_of("cut")) if r["type"] == "step"],
                         [r for r in before if r["type"] == "step"])

    def damage(self, run, name, how):
        with open(path(run, name, "model.safetensors"), "r+b") as file:
            file.seek(-1 if how == "byte" else 0, 2)
            if how == "byte":
                byte = file.read(1)[0]
                file.seek(-1, 2)
                file.write(bytes([byte ^ 1]))
            else:
                file.truncate(file.tell() - 1 if how == "cut" else file.tell() // 2)

    def test_a_damaged_one_is_told_and_an_older_one_taken(self):
        """cases 22-1, 24-1: cut by a byte, by half, a bit turned, a file gone, without a manifest"""
        job = toys.tape((1, 2), steps=6, batch=2, optimizer="adamw", lr=0.1, checkpoint={"every": 2, "keep": 0})
        rows = [(1, 2, 3), (1, -1, 1)]
        whole = self.train(job, rows, 2)
        run = self.directory_of("run1")
        words = {"byte": "checksum", "cut": "bytes, ", "half": "bytes, ", "gone": "No such file", "incomplete": "is incomplete",
                 "manifest": "manifest.json"}
        for how, word in words.items():
            with self.subTest(how=how):
                copy = cut(run, 4, self.directory_of(how))
                if how == "gone":
                    os.remove(path(copy, name_of(4), "optimizer-00000-of-00002.safetensors"))
                elif how == "incomplete":
                    os.remove(path(copy, name_of(4), "manifest.json"))
                elif how == "manifest":
                    with open(path(copy, name_of(4), "manifest.json"), "r+") as file:
                        file.truncate(100)
                else:
                    self.damage(copy, name_of(4), how)
                rest = self.train_into(how, job, rows, 2)
                self.assertEqual(len(rest.lines), 1, rest.err)
                self.assertIn(f"gaccd: {name_of(4)} is ", rest.lines[0])
                self.assertIn(word, rest.lines[0])
                self.assertIn("checkpoint_left", [event["event"] for event in rest.events])
                self.assertEqual(self.last_start(copy)[0]["resumed"]["step"], 2)
                self.assertEqual(rest.weight.tobytes(), whole.weight.tobytes())
                self.assertEqual(names(copy), [name_of(2), name_of(4), name_of(6)])  # it was made anew
                self.assertEqual(os.path.exists(path(copy, name_of(4) + ".damaged")), how != "incomplete")

    def test_nothing_sound_left_is_no_new_beginning(self):
        job = toys.tape(steps=4, checkpoint={"every": 2})
        self.train(job, [1])
        copy = cut(self.directory_of("run1"), 2, self.directory_of("copy"))
        self.damage(copy, name_of(2), "half")
        done = self.run_job("job.yaml", ranks=0, output="copy")
        self.assertEqual(done.status, 65)
        self.assertIn("every checkpoint is damaged", done.err)
        self.assertEqual(os.listdir(os.path.join(copy, "checkpoints")).count(name_of(2)), 1)
        done = self.run_job("job.yaml", ranks=0, output="copy", arguments=["--resume", "never"])
        self.assertEqual(done.status, 0, done.err)
        self.assertIsNone(self.last_start(copy)[0]["resumed_from"])
        self.assertEqual(names(copy), [name_of(2), name_of(4)])
        self.assertTrue(os.path.exists(path(copy, name_of(2) + ".aside")))

    def test_a_directory_that_is_named(self):
        job = toys.tape(steps=6, checkpoint={"every": 2, "keep": 0})
        whole = self.train(job, [1, 2, 3])
        run = self.directory_of("run1")
        elsewhere = self.train_into("new", job, [1, 2, 3], arguments=["--resume", path(run, name_of(4))])
        self.assertEqual(elsewhere.column("step"), [5, 6])
        self.assertEqual(elsewhere.weight.tobytes(), whole.weight.tobytes())
        copy = cut(run, 6, self.directory_of("copy"))
        self.train_into("copy", job, [1, 2, 3], arguments=["--resume", path("copy", name_of(2))])
        self.assertEqual(sorted(os.listdir(checkpoints.folder(copy))),
                         ["latest", name_of(2), name_of(4), name_of(4) + ".aside", name_of(6), name_of(6) + ".aside"])
        for directory, status in (("nowhere", 66), (".", 66)):
            done = self.run_job("job.yaml", ranks=0, output="other", arguments=["--resume", directory])
            self.assertEqual(done.status, status)
            self.assertIn("--resume: ", done.err)

    def test_a_finished_job_is_done_and_a_longer_one_goes_on(self):
        job = toys.tape(steps=4, checkpoint={"every": 2})
        self.train(job, [1])
        log = harness.read_log(self.directory_of("run1"))
        done = self.run_job("job.yaml", ranks=0, output="run1")
        self.assertEqual((done.status, harness.read_log(self.directory_of("run1"))), (0, log))
        longer = self.train_into("run1", {**job, "job": {"name": "toy", "steps": 6}}, [1])
        self.assertEqual(longer.column("step"), [1, 2, 3, 4, 5, 6])
        self.assert_near(longer.weight, [-6])
        self.assertEqual(longer.result["optimizer_steps"], 6)

    def test_a_job_that_is_shorter_than_what_is_done_says_so(self):
        """Six steps are done; four, or one epoch of four, are wanted: nothing is trained, and a line and an event say why. At its very
        end, as behind a kill before final/ was written, a job says nothing."""
        rows = [(1, 0.5)] * 8
        job = toys.tape(epochs=2, batch=2, checkpoint={"every": 6, "keep": 0})
        self.train(job, rows)
        run = self.directory_of("run1")
        for wanted, beyond in (({"steps": 4}, 2), ({"epochs": 1}, 2), ({"tokens": 9}, 1), ({"steps": 6}, 0), ({"steps": 7}, 0)):
            with self.subTest(wanted=wanted):
                output = f"shorter{len(os.listdir(self.directory))}"
                cut(run, 6, self.directory_of(output))
                out = self.train_into(output, {**job, "job": {"name": "toy", **wanted}}, rows, 1)
                records = self.last_start(self.directory_of(output))
                events = [(record["event"], record["text"]) for record in records if record["type"] == "event"]
                said = (f"nothing is left to do: {output}/checkpoints/step-00000006 is {beyond} step{'s' if beyond > 1 else ''} past the end "
                        f"that job.{next(iter(wanted))} says; final/ has the weights of its step 6")
                self.assertEqual(events, [("past_end", said)] if beyond else [])
                self.assertEqual(out.lines, [f"gaccd: {said}"] if beyond else [])
                self.assertEqual([r["step"] for r in records if r["type"] == "step"], [7] if wanted == {"steps": 7} else [])

    def test_no_step_has_two_records_without_a_header_between(self):
        """A run that died behind its checkpoint has steps that are made again."""
        job = toys.tape(steps=5, checkpoint={"every": 2})
        self.train(job, [1])
        copy = cut(self.directory_of("run1"), 2, self.directory_of("copy"))
        with open(os.path.join(copy, "log.jsonl"), "a") as log:
            log.write('{"type":"step","st')  # cut short by the crash
        self.run_job("job.yaml", ranks=0, output="copy")
        seen, starts = set(), 0
        for record in harness.read_log(copy):
            if record["type"] == "header":
                seen, starts = set(), starts + 1
            elif record["type"] == "step":
                self.assertNotIn(record["step"], seen)
                seen.add(record["step"])
        self.assertEqual((starts, seen), (2, {3, 4, 5}))

    def test_a_lock_of_another_host_holds_as_long_as_it_is_renewed(self):
        """One of this host that nobody holds any more is taken over at once."""
        job = toys.tape(steps=2)
        self.train(job, [1])
        lock = self.write("run1/lock.json", '{"host": "elsewhere", "pid": 17, "boot": "another"}')
        stop = threading.Event()

        def renew():
            while not stop.wait(0.3):
                os.utime(lock)
        holder = threading.Thread(target=renew)
        holder.start()
        longer = ["--set", "job.steps=3", "--resume", "never"]
        done = self.run_job("job.yaml", ranks=0, output="run1", arguments=longer)
        stop.set()
        holder.join()
        self.assertEqual(done.status, 69)
        self.assertIn("job.output: another job (process 17 on elsewhere) is writing in run1", done.err)
        self.assertTrue(os.path.exists(lock))
        done = self.run_job("job.yaml", ranks=0, output="run1", arguments=longer)
        self.assertEqual(done.status, 0, done.err)
        self.assertGreater(done.seconds, 4)
        with open("/proc/sys/kernel/random/boot_id") as boot:
            self.write("run1/lock.json", json.dumps({"host": "here", "pid": 17, "boot": boot.read().strip()}))
        done = self.run_job("job.yaml", ranks=0, output="run1", arguments=longer)
        self.assertEqual(done.status, 0, done.err)
        self.assertLess(done.seconds, 4)

    def test_the_first_step_comes_at_once(self):
        job = gpt(steps=12, checkpoint={"every": 10})
        data = toys.tokens(300)
        self.train(job, data, 2)
        copy = cut(self.directory_of("run1"), 10, self.directory_of("copy"))
        running = self.start("job.yaml", ranks=2, output="copy")
        self.assertEqual(running.wait().status, 0)
        self.assertLess(running.seconds, harness.PROMPT)


if __name__ == "__main__":
    harness.main()
