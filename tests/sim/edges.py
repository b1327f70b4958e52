#!/usr/bin/python3
"""Takes one order between streams out of the GPU backend after the other and shows that jobs notice: in the simulation, where
work runs as late and in as strange an order as what is left permits.

    tests/sim/edges.py [--build build] [--seeds 20] [EDGE…]

Each edge is a small change of the source, compiled and linked into a module of its own. With the module as it is, every seed
must give the same log and the same parameters, bit for bit; without an edge at least one seed must not. Prints a line an edge:
the seeds that noticed. Exit status 1 when an edge is missed by all of them.
"""
import argparse
import glob
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(HERE, "..", "scenario"))
from harness import MPI  # noqa: E402

NCCL, CUDA = "worker/comm_nccl.c", "kernels/cuda/cuda.c"
BEGIN = "    int result = begin(nccl, error);\n"
PHASE = "static struct comm_nccl *nccl_of(", "static int gathering;\nstatic struct comm_nccl *nccl_of("


def in_function(name, old, new):
    """old, once, in that function."""
    def change(text):
        begin = text.index(f"{name}(")
        end = text.index("\n}\n", begin)
        body = text[begin:end]
        assert body.count(old) == 1, (name, old)
        return text[:begin] + body.replace(old, new) + text[end:]
    return change


def join_not(phase):
    """Nothing is joined after collectives of this kind (1: gathers)."""
    def change(text):
        text = text.replace(*PHASE)
        text = in_function("static int nccl_reduce_scatter", BEGIN, "    gathering = 0;\n" + BEGIN)(text)
        text = in_function("static int nccl_all_gather", BEGIN, "    gathering = 1;\n" + BEGIN)(text)
        return in_function("static int nccl_join", "    struct comm_nccl *nccl", f"    if (gathering == {phase}) return 0;\n    struct comm_nccl *nccl")(text)
    return change


def finish_not(name):
    return in_function(name, "return result ? result : finish(nccl, bucket, error);", "return result;")


EDGES = {
    "a reduction comes after the backward": (NCCL, in_function("static int nccl_reduce_scatter", BEGIN, "    int result = 0;\n")),
    "a gather comes after the update": (NCCL, in_function("static int nccl_all_gather", BEGIN, "    int result = 0;\n")),
    "the check comes after the reductions": (NCCL, join_not(0)),
    "the forward comes after the gathers": (NCCL, join_not(1)),
    "what kernels were given is marked": (NCCL, in_function("static int begin", "cudaEventRecord(nccl->given, nccl->cuda->stream)", "cudaSuccess")),
    "a reduction's end is marked": (NCCL, finish_not("static int nccl_reduce_scatter")),
    "a gather's end is marked": (NCCL, finish_not("static int nccl_all_gather")),
    "an upload's memory is free after its copies": (CUDA, in_function("static void next_part", 'wait_for(cuda, u->copied[u->part], "upload");', "")),
    "an upload's copies are marked": (CUDA, in_function("static void next_part", 'cuda_note(cuda, cudaEventRecord(u->copied[u->part], cuda->stream), "upload");', "")),
}

# Buckets of a layer or less and windows of three micro-batches; and a window whose rows are more than the ring holds through which
# uploads go.
JOBS = [
    ({"job": {"steps": 3}, "model": {"type": "mlp", "inputs": 6, "hidden": [8, 8, 8, 8], "outputs": 2, "loss": "mse"},
      "batch": {"global": 12, "micro": 2}}, 6),
    ({"job": {"steps": 1}, "model": {"type": "linear", "inputs": 20000, "loss": "half_mse"}, "batch": {"global": 320, "micro": 16}}, 20000),
]


def write_data(path, inputs, outputs, rows):
    with open(path, "w") as file:
        file.write(",".join([f"x{i}" for i in range(inputs)] + [f"y{i}" for i in range(outputs)]) + "\n")
        for row in range(rows):
            file.write(",".join(f"{(row * 31 + i * 17) % 7}" for i in range(inputs + outputs)) + "\n")


class Modules:
    """Builds the simulated module with one source changed."""

    def __init__(self, build, directory):
        self.build, self.folder = build, os.path.join(build, "tests", "sim")
        self.directory = directory
        with open(os.path.join(build, "compile_commands.json")) as file:
            self.commands = [entry for entry in json.load(file) if "gacc_cuda_simulated.dir" in entry["command"]]

    def link(self, replaced):
        """{object of the build: object to take in its place} → the program beside the module."""
        program = os.path.join(self.directory, "program", "daemon")
        shutil.rmtree(os.path.dirname(program), ignore_errors=True)
        os.makedirs(program)
        for name in ("gaccd", "gacc_cuda.so"):
            shutil.copy(os.path.join(self.folder, "program", "daemon", name), program)
        if replaced:
            folder, words = self.linking()
            words = [replaced.get(word, word) for word in words]
            words[words.index("-o") + 1] = os.path.join(program, "gacc_cuda.so")
            subprocess.run(words, cwd=folder, check=True)
        return os.path.join(program, "gaccd")

    def linking(self):
        """The folder and the words of the command that links the module, of whichever generator the build is."""
        line = os.path.join(self.folder, "CMakeFiles", "gacc_cuda_simulated.dir", "link.txt")
        if os.path.exists(line):
            with open(line) as file:
                return self.folder, shlex.split(file.read())
        said = subprocess.run(["ninja", "-t", "commands", "tests/sim/gacc_cuda.so"], cwd=self.build, capture_output=True, text=True, check=True)
        return self.build, [word for word in shlex.split(said.stdout.splitlines()[-1]) if word not in (":", "&&")]

    def without(self, source, change):
        with open(os.path.join(ROOT, source)) as file:
            text = change(file.read())
        changed = os.path.join(self.directory, os.path.basename(source))
        with open(changed, "w") as file:
            file.write(text)
        (entry,) = [entry for entry in self.commands if entry["file"].endswith("/" + source)]
        words = shlex.split(entry["command"])
        made, was = os.path.join(self.directory, "changed.o"), words[words.index("-o") + 1]
        words[words.index("-o") + 1] = made
        words[words.index("-c") + 1] = changed
        subprocess.run(words + ["-w"], cwd=entry["directory"], check=True)
        return self.link({was: made})


def outcome(program, directory, number, seed):
    """What the job left, without times."""
    output = os.path.join(directory, "run")
    shutil.rmtree(output, ignore_errors=True)
    environment = dict(os.environ, **MPI, SIM_SEED=str(seed), SIM_DEVICES="2", SIM_OPEN="1")
    done = subprocess.run(["mpirun", "-n", "2", program, os.path.join(directory, f"job{number}.yaml"), "--device", "cuda", "--output", output],
                          env=environment, capture_output=True, text=True)
    if done.returncode:
        return f"exit status {done.returncode}"
    with open(os.path.join(output, "log.jsonl")) as log:
        records = [json.loads(line) for line in log]
    steps = [{key: value for key, value in record.items() if key != "seconds"} for record in records if record["type"] == "step"]
    with open(os.path.join(output, "final", "model.safetensors"), "rb") as model:
        return json.dumps(steps), model.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("edges", nargs="*", choices=[[], *EDGES])
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="gacc-edges-") as directory:
        modules = Modules(build, directory)
        for number, (job, inputs) in enumerate(JOBS):
            data = os.path.join(directory, f"data{number}.csv")
            outputs = job["model"].get("outputs", 1)
            write_data(data, inputs, outputs, job["batch"]["global"] * job["job"]["steps"])
            job.update(data={"format": "csv", "train": data, "order": "sequential"}, optimizer={"type": "sgd", "lr": 1e-6, "momentum": 0.9})
            with open(os.path.join(directory, f"job{number}.yaml"), "w") as file:
                json.dump(job, file)  # JSON is YAML
        whole = modules.link({})
        right = [outcome(whole, directory, number, 0) for number in range(len(JOBS))]
        for number in range(len(JOBS)):
            wrong = [seed for seed in range(1, options.seeds + 1) if outcome(whole, directory, number, seed) != right[number]]
            print(f"job {number}, every edge in place: {'the same bits in every seed' if not wrong else f'differs in seeds {wrong}'}", flush=True)
            missed += bool(wrong) or isinstance(right[number], str)
        for name in options.edges or EDGES:
            source, change = EDGES[name]
            program = modules.without(source, change)
            number = 1 if source == CUDA else 0
            noticed = []
            for seed in range(1, options.seeds + 1):
                if outcome(program, directory, number, seed) != right[number]:
                    noticed.append(seed)
                    break
            print(f"without '{name}': {f'seed {noticed[0]} of {options.seeds} notices' if noticed else 'NOT NOTICED'}", flush=True)
            missed += not noticed
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
