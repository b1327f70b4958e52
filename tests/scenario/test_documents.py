"""What documents say about code and tests is so: functions that README names are there, and so are tests; those of its three
questions are required of every run. Every requirement has a row."""
import glob
import json
import os
import re
import shutil
import subprocess

import harness
from control_stubs import Fake, control_pb2


def text_of(*path):
    with open(os.path.join(harness.ROOT, *path)) as file:
        return file.read()


def section(text, title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)


def test_cases():
    """Every test that exists: cmocka functions, unittest methods, files."""
    names = set()
    for path in glob.glob(os.path.join(harness.ROOT, "tests", "unit", "*_test.c")):
        names.update(re.findall(r"cmocka_unit_test\w*\(\s*(\w+)", text_of(path)))
    for path in glob.glob(os.path.join(harness.ROOT, "tests", "*", "*.py")):
        names.update(re.findall(r"^    def (test_\w+)", text_of(path), re.M))
        names.add(os.path.basename(path).removesuffix(".py").removeprefix("test_"))
    return names | {"mutants_fast"}


def defines(path, function):
    return re.search(rf"^(?!static const )[\w *]*\b{function}\(", text_of(path), re.M)


class Documents(harness.Scenario):
    def test_the_three_questions_name_code_that_is_there(self):
        cells = re.findall(r"^\| `.*$", section(text_of("README.md"), "The three questions"), re.M)
        named = []
        for cell in cells:
            for names, path in re.findall(r"((?:`\w+`(?: and |, )?)+)(?: is added up by `open_window`)? in ([\w/]+\.c)", cell.split("|")[1]):
                named += [(path, name) for name in re.findall(r"`(\w+)`", names)]
        self.assertGreater(len(named), 9)
        for path, name in named:
            self.assertTrue(defines(path, name), (path, name))

    def test_the_three_questions_name_tests_that_are_required(self):
        required = {tuple(line.split()) for line in text_of("tests", "required").splitlines() if re.match("[a-z]", line)}
        cells = re.findall(r"^\| `.*$", section(text_of("README.md"), "The three questions"), re.M)
        self.assertEqual(len(cells), 3)
        named = set()
        for cell in cells:
            for names, suite in re.findall(r"((?:`\w+`(?: and |, )?)+) \((\w+)\)", cell.split("|")[2]):
                named.update((suite, name) for name in re.findall(r"`(\w+)`", names))
        self.assertEqual(named, {line for line in required if len(line) == 2})

    def test_readme_shows_every_check_and_fault_of_verify(self):
        job, rows = harness.tape(steps=1, batch={"global": 4, "micro": 2}, model={"type": "tape", "size": 2})
        self.write("tape.csv", "g0,g1\n" + "1,2\n" * 9)
        job["data"]["train"] = "tape.csv"
        self.write("job.yaml", json.dumps(job))
        found = json.loads(self.call(harness.GACCD, "verify", "job.yaml", "--json", "--output", "run", limit=60).out)
        shown = section(text_of("README.md"), "Verify: is it right on this job\\?")
        for name in [check["name"] for check in found["checks"]] + [control["fault"] for control in found["negative_controls"]]:
            self.assertRegex(shown, rf"(?m)^    {re.escape(name)} ")
        self.assertIn(f"it plants {len(found['negative_controls'])} mistakes", shown)

    def test_what_the_migration_table_shows_is_a_job(self):
        """The keys of the worked example, in a job of their own; and every key that the table names is one."""
        text = text_of("deploy", "docs", "migration.md")
        example = re.findall(r"^    ((?:batch|precision|optimizer):\n(?:    .*\n)+)", text, re.M)[0]
        keys = re.sub(r"^    ", "", example, flags=re.M)
        self.write("text.txt", bytes(range(32, 127)) * 100)
        self.write("job.yaml", "job: {steps: 10}\nmodel: {type: gpt, layers: 1, heads: 1, width: 16, context: 16}\n"
                   "data: {format: bytes, train: text.txt}\nschedule: {type: constant}\n" + keys)
        done = self.call(harness.GACCD, "check", "job.yaml", "-n", "2")
        self.assertEqual((done.status, done.err), (0, ""))
        self.assertIn("K 8 micro-batches", done.out)
        manual = text_of("deploy", "docs", "job-file.md")
        for cell in re.findall(r"^\| (`.*?) \|", text, re.M):
            for key in re.findall(r"`(\w+\.[\w.]+)", cell):
                self.assertTrue(f"`{key}`" in manual, key)

    def test_the_jobs_that_are_shown_are_jobs(self):
        """On 8 ranks, with data of their formats."""
        tokens = bytes([1, 0]) * 4 * 1025
        text = self.write("text.txt", "To be, or not to be\n" * 1000)
        environment = dict(self.environment, GACC_TEXT=text, GACC_TOKENS=self.directory, GACC_BASE=text,
                           GACC_DIGITS=self.directory)
        for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
            self.write(f"{name}-ubyte", b"")
        self.write("train.bin", tokens), self.write("val.bin", tokens)
        jobs = sorted(glob.glob(os.path.join(harness.ROOT, "deploy", "jobs", "*.yaml")))
        self.assertGreater(len(jobs), 2)
        for job in jobs:
            done = subprocess.run([harness.GACCD, "check", job, "--set", "batch.micro=1"], cwd=harness.ROOT, env=environment, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), job)

    # ---- what the programs say about themselves ----

    def test_the_programs_documents_are_those_of_their_tables(self):
        """GACC_WRITE_REFERENCE=1 writes them anew."""
        for program in (harness.GACCD, harness.GACCCTL):
            path = os.path.join(harness.ROOT, "deploy", "docs", os.path.basename(program) + ".md")
            text = self.call(program, "--print", "markdown").out
            if os.environ.get("GACC_WRITE_REFERENCE"):
                with open(path, "w") as file:
                    file.write(text)
            with open(path) as file:
                self.assertEqual(file.read(), text, path)

    def test_every_command_explains_itself(self):
        for program in (harness.GACCD, harness.GACCCTL):
            listed = re.findall(r"^  ([a-z]+)\b.*  ", self.call(program, "--help").out, re.M)
            self.assertGreater(len(listed), 4)
            man = self.call(program, "--print", "man").out
            for command in listed:
                done = self.call(program, command, "--help")
                self.assertEqual((done.status, done.err), (0, ""))
                self.assertTrue(done.out.startswith(f"{os.path.basename(program)} {command}"), done.out)
                self.assertRegex(man, rf'(?m)^\.SS "{command}')
                for option in re.findall(r"^  .*(--[a-z-]+)", done.out, re.M):
                    self.assertIn(option.replace("-", "\\-"), man)

    def test_man_pages_are_sound(self):
        if not shutil.which("groff"):
            self.skipTest("groff is not installed")
        for program in (harness.GACCD, harness.GACCCTL):
            self.write("page", self.call(program, "--print", "man").out)
            done = self.call("groff", "-Kutf8", "-Tutf8", "-man", "-ww", "-P-cbou", "page")
            self.assertEqual((done.status, done.err), (0, ""))
            self.assertIn("EXIT STATUS", done.out)

    def complete(self, program, line):
        """What bash offers for the last word of a line, words and "=" apart as readline parts them."""
        words = re.findall(r"=|[^\s=]+", line) + ([""] if line.endswith(" ") else [])
        self.write("completion", self.call(program, "--print", "completion").out)
        script = "compopt() { :; }; . ./completion; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _$(basename \"$1\"); printf '%s\\n' \"${COMPREPLY[@]}\""
        done = self.call("bash", "-c", script, "bash", program, *words[1:])
        self.assertEqual((done.status, done.err), (0, ""))
        return done.out.split()

    def test_every_field_of_a_step_record_stands_in_the_readme(self):
        """And no other. The job's groups and loss scale give it all the fields that there are."""
        job, text = harness.gpt(steps=1)
        self.write("text.txt", text)
        job["precision"] = {"compute": "fp16"}
        job["optimizer"] = {"type": "adamw", "lr": 0.001, "groups": [{"match": "*.bias", "lr": 0.002}]}
        self.assertEqual(self.run_job(job, ranks=1).status, 0)
        record, = self.log("step")
        table = text_of("README.md").split("A step record, one per attempt:")[1].split("\n\n")[1]
        rows = re.findall(r"^\| ([a-z_,; ]+) \| (.*) \|$", table, re.M)
        self.assertEqual(sorted(re.findall(r"\w+", ", ".join(row for row, _ in rows))), sorted(record.keys() - {"type"}))
        self.assertEqual(set(re.findall(r"\w+", dict(rows)["seconds"].replace("of the slowest rank", ""))), set(record["seconds"]))

    def test_completion(self):
        for name in ("runs/a", "runs/b", "other"):
            os.makedirs(os.path.join(self.directory, name))
        self.write("runs/a/log.jsonl", ""), self.write("job.yaml", "")
        for line, offered in (("gaccctl st", ["status", "stop"]), ("gaccctl watch --f", ["--from"]), ("gaccctl status --f", []),
                              ("gaccctl --run r", ["runs"]), ("gaccctl --run runs/", ["runs/a"]), ("gaccctl --run runs/a che", ["checkpoint"]),
                              ("gaccctl --run runs/a stop --", ["--run", "--connect", "--token-file", "--tls", "--ca", "--certificate", "--key", "--plaintext",
                                                                "--json", "--help", "--version", "--finish"]),
                              ("gaccctl set optimizer.lr=", [])):
            self.assertEqual(self.complete(harness.GACCCTL, line), offered, line)
        for line, offered in (("gaccd ver", ["verify"]), ("gaccd jo", ["job.yaml"]), ("gaccd --device c", ["cpu", "cuda"]),
                              ("gaccd check job.yaml -", ["--help", "--version", "--set", "--output", "-n"]), ("gaccd job.yaml --re", ["--resume"])):
            self.assertEqual(self.complete(harness.GACCD, line), offered, line)

    def test_completion_of_live_keys(self):
        fake = Fake(GetConfig=control_pb2.Config(live=["optimizer.lr", "optimizer.clip_norm", "job.steps"]))
        self.addCleanup(fake.server.stop, None)
        os.mkdir(os.path.join(self.directory, "run"))
        path = self.write("run/connection.json", '{"endpoint": "tcp://127.0.0.1:%d"}' % fake.port)
        self.assertEqual(self.complete(harness.GACCCTL, "gaccctl --run run set opt"), ["optimizer.lr=", "optimizer.clip_norm="])
        self.assertEqual(self.complete(harness.GACCCTL, "gaccctl set --run run j"), ["job.steps="])
        os.remove(path)

    def test_every_requirement_has_a_row_and_its_tests_are_there(self):
        rows = re.findall(r"^\| ([A-NSU]\d+) \|.*\| ([^|]*) \|$", text_of("tests", "REQUIREMENTS.md"), re.M)
        wanted = {f"{letter}{number}" for letter, count in zip("ABCDEFGHIJKLMNSU", (12, 9, 4, 4, 3, 3, 5, 5, 2, 3, 3, 2, 2, 13, 9, 11))
                  for number in range(1, count + 1)}
        self.assertEqual(wanted - {row for row, _ in rows}, set())
        self.assertEqual(len(rows), len({row for row, _ in rows}), "two rows of one number")
        there = test_cases()
        for row, tests in rows:
            for name in re.findall(r"`(\w+)`", tests):
                self.assertTrue(name in there, f"{row}: there is no test {name}")


if __name__ == "__main__":
    harness.main()
