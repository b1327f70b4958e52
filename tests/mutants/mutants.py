#!/usr/bin/python3
"""Plants known mistakes in the program, one at a time, and sees that the ordinary tests notice each.

    tests/mutants/mutants.py [--build build] [--fast] [--jobs 2] [NAME…]

Every tests/mutants/NAME.patch is one mistake: a patch of one source file, with these lines before it:
    Mistake: what is wrong now, in the words of whoever would make it
    Source: where it is warned of
    Tests: CTest names, the likeliest to notice first; when none of them does, all other tests of the suite follow
    Fast: yes       for those that --fast runs (every build of the project does)

A mistake is built incrementally: the one file is compiled as the build compiles it (once per instance for a kernel), and programs
are linked as the build links them, with the new object in the place of the old one. Prints the test that killed each mutant.
Before the mutants, the tests that are named run once on a program that was built the same way from an unchanged file: they
must pass there. Exit status 1 when a mutant survives, when a patch does not apply or changes nothing, or when the unchanged
program fails.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAMS = ["daemon/gaccd", "daemon/gaccctl"]
SUITE = ("unit", "scenario", "peer", "fault")  # labels, in the order in which they run; without the heavy ones


class Broken(Exception):
    """The mutant cannot be tried at all."""


def read(path):
    with open(path) as file:
        return file.read()


class Mutant:
    def __init__(self, path):
        self.path, self.name = path, os.path.basename(path).removesuffix(".patch")
        preamble, _, self.patch = read(path).partition("\n--- ")
        self.fields = dict(re.findall(r"^(\w+): (.*)$", preamble, re.M))
        missing = {"Mistake", "Source", "Tests"} - self.fields.keys()
        files = re.findall(r"^\+\+\+ b/(\S+)", "\n--- " + self.patch, re.M)
        if missing or len(files) != 1:
            raise SystemExit(f"{path}: a patch of one file, with Mistake, Source and Tests before it, is wanted")
        self.file, self.tests = files[0], self.fields["Tests"].split()


class Test:
    """One of CTest's, as it runs against a build directory of ours."""

    def __init__(self, entry):
        self.name, self.command = entry["name"], entry["command"]
        properties = {one["name"]: one["value"] for one in entry.get("properties", [])}
        self.labels, self.limit = properties.get("LABELS", []), properties.get("TIMEOUT", 300)
        self.environment, self.skip = properties.get("ENVIRONMENT", []), properties.get("SKIP_RETURN_CODE")

    def programs(self, build):
        """Of the build, relative to it, that the test's command runs."""
        return [os.path.relpath(word, build) for word in self.command if word.startswith(build + "/") and os.access(word, os.X_OK)]


class Build:
    def __init__(self, directory):
        self.directory = os.path.abspath(directory)
        self.commands = json.loads(read(os.path.join(self.directory, "compile_commands.json")))
        listing = self.list_tests()
        tests = [Test(entry) for entry in json.loads(listing)["tests"]]
        self.tests = {test.name: test for label in SUITE for test in tests if label in test.labels and "heavy" not in test.labels}
        self.links = {}

    def list_tests(self):
        """CTest's own account; in a directory of its own, because it begins a log wherever it is called."""
        aside = os.path.join(self.directory, "mutants", "ctest")
        os.makedirs(aside, exist_ok=True)
        with open(os.path.join(aside, "CTestTestfile.cmake"), "w") as file:
            file.write(f'subdirs("{self.directory}/tests")\n')
        return self.output(["ctest", "--show-only=json-v1"], aside)

    def output(self, command, directory=None):
        return subprocess.run(command, cwd=directory or self.directory, check=True, stdout=subprocess.PIPE, text=True).stdout

    def compilations(self, source):
        """(words, object) for every instance of a source file."""
        path = os.path.join(ROOT, source)
        found = [shlex.split(entry["command"]) for entry in self.commands if entry["file"] == path]
        return [(words, words[words.index("-o") + 1]) for words in found]

    def link(self, program):
        """The words of the command that links it."""
        if program not in self.links:
            lines = self.output(["ninja", "-t", "commands", "-s", program]).strip().splitlines()
            command = re.sub(r"^: && (.*) && :$", r"\1", lines[-1])
            self.links[program] = shlex.split(command)
        return self.links[program]

    def archives(self, program):
        return [word for word in self.link(program) if word.endswith(".a") and not os.path.isabs(word)]

    def holds(self, program, objects):
        """Whether a program is made of one of these objects, itself or by a library of ours."""
        if any(one in self.link(program) for one in objects):
            return True
        names = {os.path.basename(one) for one in objects}
        for archive in self.archives(program):
            if archive not in self.links:
                self.links[archive] = set(self.output(["ar", "t", archive]).split())
            if names & self.links[archive]:
                return True
        return False


class Trial:
    """A mutant, built and tested in a directory of its own."""

    def __init__(self, build, name, source, patch):
        self.build, self.source, self.patch = build, source, patch
        self.directory = os.path.join(build.directory, "mutants", name)
        shutil.rmtree(self.directory, ignore_errors=True)
        os.makedirs(self.directory)
        self.objects = {}  # of the build → of the mutant
        self.made = set()

    def write_source(self):
        path = os.path.join(self.directory, "source", self.source)
        os.makedirs(os.path.dirname(path))
        shutil.copy(os.path.join(ROOT, self.source), path)
        if self.patch:
            done = subprocess.run(["patch", "-p1", "-F1", "-s", "--no-backup-if-mismatch", "-i", self.patch],
                                  cwd=os.path.join(self.directory, "source"), stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise Broken(f"the patch does not apply: {done.stdout.strip()}")
            if read(path) == read(os.path.join(ROOT, self.source)):
                raise Broken("the patch changes nothing")
        return path

    def compile(self):
        path = self.write_source()
        compilations = self.build.compilations(self.source)
        if not compilations:
            raise Broken(f"{self.source} is not part of the build")
        for number, (words, original) in enumerate(compilations):
            made = os.path.join(self.directory, f"{number}.o")
            changed = [made if word == original else path if word == os.path.join(ROOT, self.source) else word for word in words]
            self.run(changed + ["-Wno-error", "-w"], "does not compile")
            self.objects[original] = made

    def run(self, command, what):
        done = subprocess.run(command, cwd=self.build.directory, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise Broken(f"{what}: {done.stdout.strip()[-2000:]}")

    def program(self, name):
        """Links a program of the build, or takes it as it is when the mutant is no part of it."""
        path = os.path.join(self.directory, name)
        if name in self.made:
            return path
        self.made.add(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if not self.build.holds(name, self.objects):
            os.symlink(os.path.join(self.build.directory, name), path)
            return path
        words = [self.objects.get(word, word) for word in self.build.link(name)]
        words[words.index("-o") + 1] = path
        if not any(made in words for made in self.objects.values()):
            first = next(i for i, word in enumerate(words) if word.endswith(".a"))
            words[first:first] = self.objects.values()  # what is there already is not taken from the library
        self.run(words, f"{name} does not link")
        return path

    def affected(self, test):
        own = test.programs(self.build.directory)
        return not own or any(self.build.holds(program, self.objects) for program in own)

    def fails(self, test):
        """None, or what of the test failed."""
        for program in PROGRAMS + test.programs(self.build.directory):
            self.program(program)
        move = lambda text: text.replace(self.build.directory, self.directory)  # noqa: E731
        environment = dict(os.environ, GACC_PROMPT="60")
        environment.update(move(one).split("=", 1) for one in test.environment)
        try:
            done = subprocess.run([move(word) for word in test.command], cwd=self.directory, env=environment,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", timeout=test.limit)
        except subprocess.TimeoutExpired:
            return f"{test.name}: no end after {test.limit:.0f} s"
        if done.returncode == 0 or done.returncode == test.skip:
            return None
        case = re.search(r"^(?:\[  FAILED  \] ([a-z]\w+)|(?:FAIL|ERROR): (test_\w+))", done.stdout, re.M)
        with open(os.path.join(self.directory, "output"), "w") as file:
            file.write(done.stdout)
        return f"{test.name}: {case.group(1) or case.group(2)}" if case else test.name

    def killer(self, names):
        """The first test that fails: of `names` in their order."""
        for name in names:
            test = self.build.tests.get(name)
            if not test:
                raise Broken(f"there is no test {name}")
            if self.affected(test):
                failed = self.fails(test)
                if failed:
                    return failed
        return None

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)


def try_mutant(build, mutant):
    """(killed, line)"""
    trial = Trial(build, mutant.name, mutant.file, mutant.path)
    try:
        trial.compile()
        others = [name for name in build.tests if name not in mutant.tests]
        killer = trial.killer(mutant.tests + others)
    except Broken as error:
        return False, f"BROKEN    {mutant.name}: {error}"
    trial.remove()
    if killer:
        return True, f"killed    {mutant.name:32} by {killer}"
    return False, f"SURVIVED  {mutant.name}: {mutant.fields['Mistake']}"


def unchanged_passes(build, mutants):
    """The tests that are named must pass on a program made this way without a change."""
    trial = Trial(build, "unchanged", mutants[0].file, None)
    try:
        trial.compile()
        failed = trial.killer(sorted({name for mutant in mutants for name in mutant.tests[:1]}))
    except Broken as error:
        failed = str(error)
    trial.remove()
    if failed:
        print(f"the unchanged program fails: {failed}", flush=True)
    return not failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    mutants = [Mutant(path) for path in sorted(glob.glob(os.path.join(HERE, "*.patch")))]
    if options.fast:
        mutants = [mutant for mutant in mutants if mutant.fields.get("Fast") == "yes"]
    if options.names:
        mutants = [mutant for mutant in mutants if mutant.name in options.names]
    if not mutants:
        parser.error("no such mutants")
    build = Build(options.build)
    sound = unchanged_passes(build, mutants)
    killed = 0
    if sound:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for dead, line in pool.map(lambda mutant: try_mutant(build, mutant), mutants):
                killed += dead
                print(line, flush=True)
    print(f"{len(mutants)} mutants, {killed} killed, {len(mutants) - killed} not", flush=True)
    return 0 if sound and killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
