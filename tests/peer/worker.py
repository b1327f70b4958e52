"""A rank in Python, after proto/README.md: what it says to the coordinator, and the collectives of its gradients and parameters.

Beside it stands a model (linear_worker.py, torch_worker.py) that knows nothing of ranks:

    names       [(tensor, shape)] in the order of the job's model: the canonical index
    sequences, validation_sequences, targets, weight_of(sequence)
    wide        numpy's type of gradients, master parameters and moments; compute: of parameters as they travel
    initial()   all master parameters; moments(count): {"m": …, "v": …} as the optimizer has them, for so many elements
    take(parameters)                   as gathered, in the compute type
    run(sequences, seeds, step)        forward and backward: adds to self.gradients; returns Σ w·loss
    evaluate(sequences)                Σ w·loss, Σ w
    update(begin, master, gradient, moments, unscale, lr, t)    of the elements from `begin` on, in place

The stubs of proto/gacc/v1 are on PYTHONPATH; `mpirun -n 1 gaccd job.yaml : -n 3 python3 linear_worker.py`.
"""
import collections
import json
import math
import os
import queue
import signal
import socket
import ssl
import struct
import sys
import threading
import time

import grpc
import mpi4py
import numpy
import xxhash

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402
from gacc.v1 import job_pb2, workers_pb2 as messages, workers_pb2_grpc  # noqa: E402
from order import epoch_order  # noqa: E402

INTERNAL, IO, NUMERICS, JOB = 70, 74, 76, 78  # proto/error.h
BUCKET = 1 << 30
NAMES = {"float64": "F64", "float32": "F32", "float16": "F16"}
ERROR = struct.Struct("@i1024s")


class Over(Exception):
    """The coordinator has said farewell already."""


class Failed(Exception):
    """A local error: the rank says so and stays with the others until the job ends in order."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status

    def message(self):
        return messages.Failure(status=self.status, text=str(self))


def end_at_once(status):
    """The others, and the launcher, learn of it by the end of this process. MPI_Finalize would wait for them."""
    time.sleep(0.2)  # whoever died is to be seen first
    os._exit(status)


def share_memory_files():
    """Where gaccd's ranks keep the files of Open MPI's shared memory, so that the coordinator removes ours as well."""
    space, server = os.environ.get("PMIX_NAMESPACE"), os.environ.get("PMIX_SERVER_URI2", "")
    path = f"/dev/shm/gaccd-{os.getuid()}-{space}-{server.rpartition(':')[2]}"
    end = time.monotonic() + 10
    while not os.path.isdir(path) and time.monotonic() < end:
        time.sleep(0.001)
    os.environ["OMPI_MCA_btl_vader_backing_directory"] = path


def open_channel(address, certificate, options):
    """certificate: DER, of whoever answers at tcp://…, and nobody else's; it is made for the name "gaccd"."""
    if not certificate:
        return grpc.insecure_channel(address, options)
    credentials = grpc.ssl_channel_credentials(ssl.DER_cert_to_PEM_cert(certificate).encode())
    named = [*options, ("grpc.ssl_target_name_override", "gaccd")]
    return grpc.secure_channel(address.removeprefix("tcp://"), credentials, named)


class Shards:
    """Who owns what: every bucket is cut into as many equal parts as there are ranks; the last ones may be short, or empty."""

    def __init__(self, parameters, ranks):
        whole = parameters if parameters <= BUCKET else BUCKET // ranks * ranks
        self.buckets = []
        for begin in range(0, parameters, whole):
            end = min(begin + whole, parameters)
            part = -(-(end - begin) // ranks)
            self.buckets.append([(min(begin + r * part, end), min(begin + (r + 1) * part, end)) for r in range(ranks)])

    def own(self, rank):
        return [parts[rank] for parts in self.buckets]


class Line:
    """The stream to the coordinator. A thread reads it; states and signs of life go out beside what the rank says."""

    def __init__(self, invitation, states):
        timeout = invitation.job.control.timeout_seconds
        options = [("grpc.keepalive_time_ms", int(250 * timeout)), ("grpc.keepalive_timeout_ms", int(1000 * timeout)),
                   ("grpc.http2.max_pings_without_data", 0), ("grpc.enable_http_proxy", 0)]
        self.answers, self.outgoing, self.states = queue.Queue(), queue.SimpleQueue(), states
        self.greeted = self.awaits_farewell = self.over = False
        for address in invitation.addresses.split(","):
            self.channel = open_channel(address, invitation.certificate, options)
            try:
                grpc.channel_ready_future(self.channel).result(timeout)
                break
            except grpc.FutureTimeoutError:
                self.channel.close()
        else:
            raise Failed(INTERNAL, f"cannot reach the coordinator at {invitation.addresses}")
        join = workers_pb2_grpc.WorkersStub(self.channel).Join
        self.stream = join(iter(self.outgoing.get, None), metadata=[("gacc-secret-bin", invitation.secret)])
        threading.Thread(target=self.read, daemon=True).start()
        threading.Thread(target=self.tell_states, args=[min(1, timeout / 4)], daemon=True).start()

    def read(self):
        try:
            for message in self.stream:
                if message.WhichOneof("body") == "farewell" and not self.awaits_farewell:
                    end_at_once(message.farewell.failure.status or INTERNAL)  # somebody is gone: collectives would hang
                self.answers.put(message)
        except grpc.RpcError as error:
            if not self.over:
                print(f"worker: the coordinator is gone: {error.details()}", file=sys.stderr)
                end_at_once(INTERNAL)

    def tell_states(self, interval):
        """At most every 50 ms, and something at least every `interval` seconds."""
        told, at = None, 0
        while not self.over:
            state, now = self.states(), time.monotonic()
            if self.greeted and (state != told or now - at >= interval):  # nothing comes before the hello
                self.say(state=messages.StateChange(step=state[0], state=state[1], micro_batch=state[2]))
                told, at = state, now
            time.sleep(0.05)

    def say(self, **body):
        self.outgoing.put(messages.WorkerMessage(**body))
        self.greeted |= "hello" in body

    def wait(self, comm):
        """The answer. MPI moves bytes only while it is called, and another rank may still need some of the last collective."""
        while True:
            try:
                return self.answers.get(timeout=0.001)
            except queue.Empty:
                comm.Iprobe()

    def close(self):
        self.over = True
        self.outgoing.put(None)
        self.channel.close()


class Rank:
    """One rank of a job, from MPI_Init to its exit status."""

    def __init__(self, make_model):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # mpirun passes them on to all ranks: gaccd's tell the coordinator
        share_memory_files()
        MPI.Init_thread(MPI.THREAD_FUNNELED)
        self.comm = MPI.COMM_WORLD.Dup()
        self.rank, self.ranks = self.comm.rank, self.comm.size
        self.state, self.line, self.model, self.failure = (0, messages.STATE_STARTING, 0), None, None, None
        self.share_cores()
        self.invitation = self.take_invitation()
        self.job = self.invitation.job
        self.make_model = make_model

    def share_cores(self):
        """gaccd's ranks find out how many share a host, and its cores: two collective calls in which all take part."""
        host = self.comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        mask = bytearray(128)  # cpu_set_t
        for core in os.sched_getaffinity(0):
            mask[core // 8] |= 1 << core % 8
        host.Allreduce(MPI.IN_PLACE, [mask, MPI.BYTE], MPI.BOR)
        self.cores = max(1, min(sum(bin(byte).count("1") for byte in mask) // host.size, len(os.sched_getaffinity(0))))
        host.Free()

    def take_invitation(self):
        length = numpy.zeros(1, numpy.uint64)
        self.comm.Bcast([length, MPI.BYTE])
        packed = bytearray(int(length[0]))
        self.comm.Bcast([packed, MPI.BYTE])
        return messages.Invitation.FromString(bytes(packed))

    def main(self):
        """The exit status: 0 at every end in order, as the launcher is to return that of rank 0."""
        if not self.invitation.finished:
            self.line = Line(self.invitation, lambda: self.state)
            try:
                self.train()
                self.finish(messages.Finished())
            except Failed as failure:
                self.finish(messages.Finished(failure=failure.message()))
            except Over:
                pass
            self.line.close()
        self.comm.Free()
        MPI.Finalize()
        return 0

    # ---- the conversation ----

    def finish(self, finished):
        self.line.awaits_farewell = True
        self.line.say(finished=finished)
        self.line.wait(self.comm)

    def greet(self):
        """The welcome; a farewell comes where some rank cannot begin."""
        self.line.awaits_farewell = True
        try:
            self.open()
            self.line.say(hello=self.hello())
        except Failed as failure:
            self.line.say(hello=self.hello(failure))
        answer = self.line.wait(self.comm)
        if answer.WhichOneof("body") == "farewell":
            raise Over
        self.line.awaits_farewell = False
        return answer.welcome

    def train(self):
        welcome = self.greet()
        if welcome.HasField("restore"):
            self.guard(self.restore, welcome.restore)
        if welcome.HasField("plan"):
            self.steps(welcome.plan)
        elif self.failure:
            raise self.failure
        self.state = (self.state[0], messages.STATE_FINISHED, 0)

    def guard(self, action, *arguments):
        """A local error waits for the next report: the others are in a collective that this rank must not miss."""
        try:
            return action(*arguments)
        except Failed as failure:
            self.failure = self.failure or failure
        except (OSError, ValueError) as error:
            self.failure = self.failure or Failed(IO, str(error))
        return None

    def open(self):
        job = self.job
        if self.invitation.device != messages.DEVICE_CPU:
            raise Failed(JOB, "this worker computes on CPUs alone: --device cpu")
        if job.precision.reduce != job_pb2.REDUCE_FP32 or job.control.self_check:
            raise Failed(JOB, "this worker knows neither precision.reduce: bf16 nor control.self_check")
        self.model = model = self.make_model(job, self.cores)
        self.sizes = [math.prod(shape) for _, shape in model.names]
        self.shards = Shards(sum(self.sizes), self.ranks)
        self.own = self.shards.own(self.rank)
        self.master = [numpy.zeros(end - begin, model.wide) for begin, end in self.own]
        self.shard = [numpy.zeros(end - begin, model.wide) for begin, end in self.own]
        self.moments = [model.moments(end - begin) for begin, end in self.own]
        self.orders, self.at = {}, 0
        self.take_masters(model.initial())

    def take_masters(self, values):
        for (begin, end), master in zip(self.own, self.master):
            master[:] = values[begin:end]
        self.parameters = values.astype(self.model.compute)
        self.model.take(self.parameters)

    def hello(self, failure=None):
        hello = messages.Hello(rank=self.rank, ranks=self.ranks, job_digest=self.job.digest, host=socket.gethostname(), pid=os.getpid())
        if failure:
            hello.failure.CopyFrom(failure.message())
            return hello
        hello.train_sequences, hello.validation_sequences = self.model.sequences, self.validation_sequences()
        hello.parameters, hello.targets_per_sequence = len(self.parameters), self.model.targets
        hello.device, hello.versions[:] = "Python", [f"Python {sys.version.split()[0]}"]
        return hello

    def validation_sequences(self):
        wanted = self.job.evaluation.sequences
        return min(self.model.validation_sequences, wanted) if wanted else self.model.validation_sequences

    def report(self, report, next_plan):
        if next_plan:
            weights = [sum(map(self.model.weight_of, part), 0.0) for part in self.micro_batches(next_plan)]
            report.next_weight, report.next_micro_batches = sum(weights), sum(weight > 0 for weight in weights)
        if self.failure:
            report.failure.CopyFrom(self.failure.message())
        self.line.say(report=report)
        decision = self.line.wait(self.comm).decision
        if decision.verdict == messages.VERDICT_FAIL:
            self.state = (self.state[0], messages.STATE_FINISHED, 0)
            raise Failed(decision.failure.status, decision.failure.text)
        return decision

    def steps(self, plan):
        """Each decision opens the next window, whose plan came with the one before, and brings the plan after that."""
        decision = self.report(messages.Report(step=plan.step - 1), plan)
        while decision.HasField("next") or decision.hold:
            if not decision.HasField("next"):
                plan, decision = self.stand_by(plan, decision)
                continue
            next_plan = decision.plan if decision.HasField("plan") else None
            decision = self.step(plan, decision.next, next_plan)
            while decision.verdict == messages.VERDICT_RETRY:
                decision = self.step(plan, decision.next, next_plan)
            plan = next_plan
        if not decision.stop:
            self.export()

    def stand_by(self, plan, decision):
        """The job is paused: a report as at the start, of the plan that comes next, which may have been made anew."""
        self.enter(messages.STATE_PAUSED)
        if decision.HasField("plan"):
            plan = decision.plan
        answer = self.report(messages.Report(step=plan.step - 1), plan)
        if answer.HasField("save"):
            self.line.say(saved=self.save(answer.save))
        return plan, answer

    # ---- one step ----

    def enter(self, state, micro_batch=0):
        self.state = (self.at, state, micro_batch)

    def step(self, plan, window, next_plan):
        began, self.at = time.monotonic(), plan.step
        self.enter(messages.STATE_ENTER_STEP)
        loss, weight, count = numpy.longdouble(0), 0.0, 0
        means = self.job.batch.weighting == job_pb2.WEIGHTING_MICROBATCH
        self.model.gradients[:] = 0
        for k, part in enumerate([] if self.failure else self.micro_batches(plan)):
            self.enter(messages.STATE_MICRO_FORWARD, k)
            weights = [self.model.weight_of(sequence) for sequence in part]
            here = sum(weights, 0.0)
            if here > 0:  # one without weight is left out: it adds nothing
                found = self.guard(self.model.run, part, self.seeds(window, weights, here), plan.step)
                loss += 0 if found is None else numpy.longdouble(found) / (numpy.longdouble(here) if means else 1)
                weight, count = weight + here, count + 1
        self.enter(messages.STATE_REDUCE)
        sent = self.reduce()
        self.enter(messages.STATE_UNSCALE)
        finite, scaled, squares = True, 0.0, 0.0
        for part in self.shard:
            exact = part.astype(numpy.float64)
            with numpy.errstate(all="ignore"):
                finite &= bool(numpy.isfinite(part).all())
                scaled, squares = scaled + float((exact**2).sum()), squares + float(((exact * (1 / window.scale))**2).sum())
        fraction, exponent = numpy.frexp(loss) if numpy.isfinite(loss) else (loss, 0)
        decision = self.report(messages.Report(
            step=plan.step, finite=finite, sum_squares_scaled=scaled, sum_squares=squares, loss_sum=float(fraction),
            loss_exponent=int(exponent), weight=weight, micro_batches=count, reduce_scatters=len(self.own),
            reduce_scatter_bytes=sent, seconds=messages.Seconds(step=time.monotonic() - began)), next_plan)
        return self.follow(decision, window, began)

    def follow(self, decision, window, began):
        done = messages.StepDone(step=decision.step)
        self.enter(messages.STATE_CLIP)
        if decision.verdict == messages.VERDICT_SKIP:
            self.blame(done)
        if decision.verdict == messages.VERDICT_APPLY:
            self.enter(messages.STATE_STEP_OR_SKIP)
            unscale = decision.clip_coefficient / window.scale  # the S of this window, whatever the next one is
            for (begin, _), master, gradient, moments in zip(self.own, self.master, self.shard, self.moments):
                self.model.update(begin, master, gradient, moments, unscale, window.lr, window.optimizer_steps + 1)
            done.all_gathers, done.all_gather_bytes = len(self.own), self.gather()
        self.enter(messages.STATE_EXIT_STEP)
        if decision.verdict == messages.VERDICT_RETRY:
            return decision
        if decision.HasField("save"):
            self.line.say(saved=self.save(decision.save))
        if decision.evaluate:
            self.enter(messages.STATE_EVALUATE)
            self.evaluate(done)
        done.seconds.step = time.monotonic() - began
        self.line.say(step_done=done)
        return decision

    def micro_batches(self, plan):
        """Lists of this rank's sequences."""
        first = sum(plan.shares[:self.rank])
        if self.job.data.order == job_pb2.ORDER_SEQUENTIAL:
            order = range(self.model.sequences)
        else:
            if plan.epoch not in self.orders:
                self.orders = {plan.epoch: epoch_order(self.job.job.seed, plan.epoch, self.model.sequences)}
            order = self.orders[plan.epoch]
        begins = [k * plan.micro for k in range(first, first + plan.shares[self.rank])]
        return [[order[plan.first + i] for i in range(begin, min(begin + plan.micro, plan.count))] for begin in begins]

    def seeds(self, window, weights, here):
        """What each sequence's loss is multiplied by: S·w, divided once. The only place of scaling and averaging."""
        divisor = {job_pb2.WEIGHTING_TOKEN: numpy.longdouble(window.weight), job_pb2.WEIGHTING_SUM: numpy.longdouble(1),
                   job_pb2.WEIGHTING_MICROBATCH: numpy.longdouble(window.micro_batches) * numpy.longdouble(here)}
        scale = numpy.longdouble(window.scale)
        return [float(scale * numpy.longdouble(weight) / divisor[self.job.batch.weighting]) for weight in weights]

    def evaluate(self, done):
        count = self.validation_sequences()
        block = range(count * self.rank // self.ranks, count * (self.rank + 1) // self.ranks)
        found = self.guard(self.model.evaluate, block)
        if found is not None:
            fraction, exponent = numpy.frexp(numpy.longdouble(found[0]))
            done.evaluation.CopyFrom(messages.Evaluation(loss_sum=float(fraction), loss_exponent=int(exponent), weight=found[1],
                                                         sequences=len(block)))

    def blame(self, done):
        """The first tensor in which this rank's own gradient is not finite; no blame where it is, as the sum may have overflowed."""
        begin = 0
        for (name, _), size in zip(self.model.names, self.sizes):
            if not numpy.isfinite(self.model.gradients[begin:begin + size]).all():
                done.blame.CopyFrom(messages.Blame(tensor=name))
                return
            begin += size

    # ---- collectives ----

    def reduce(self):
        """Buckets from the last to the first. Returns the bytes of payload that this rank sends."""
        sent, kind = 0, {"float32": MPI.FLOAT, "float64": MPI.DOUBLE}[numpy.dtype(self.model.wide).name]
        for bucket in reversed(range(len(self.own))):
            parts = self.shards.buckets[bucket]
            counts = [end - begin for begin, end in parts]
            here = self.model.gradients[parts[0][0]:parts[-1][1]]
            self.comm.Reduce_scatter([here, kind], [self.shard[bucket], kind], counts, MPI.SUM)
            sent += (len(here) - counts[self.rank]) * here.itemsize
        return sent

    def gather(self):
        """Buckets from the first to the last, in the compute type, whose 16 bits are moved as they are."""
        sent, size = 0, numpy.dtype(self.model.compute).itemsize
        kind = {2: MPI.UINT16_T, 4: MPI.FLOAT, 8: MPI.DOUBLE}[size]
        for (begin, end), master, parts in zip(self.own, self.master, self.shards.buckets):
            self.parameters[begin:end] = master
            counts, first = [b - a for a, b in parts], parts[0][0]
            here = self.parameters[first:parts[-1][1]].view(f"u{size}")
            self.comm.Allgatherv(MPI.IN_PLACE, [here, counts, [a - first for a, _ in parts], kind])
            sent += (end - begin) * (self.ranks - 1) * size
        self.model.take(self.parameters)
        return sent

    # ---- files ----

    def header_bytes(self):
        """Of a model's file: rank 0 writes the header, all must know its length."""
        return len(safetensors_header([(name, shape, self.model.wide) for name, shape in self.model.names]))

    def check_finite(self):
        if not all(numpy.isfinite(part).all() for part in self.master):
            raise Failed(NUMERICS, "parameters that are not finite are not kept")

    def save(self, save):
        """This rank's ranges of the shared model.safetensors, and its moments in a file of its own, all of it on disk."""
        saved = messages.Saved(optimizer_steps=save.optimizer_steps)
        try:
            self.check_finite()
            os.makedirs(save.directory, exist_ok=True)
            header, size = self.header_bytes(), numpy.dtype(self.model.wide).itemsize
            whole = header + sum(self.sizes) * size
            self.write(saved, save.directory, "model.safetensors", whole,
                       [(header + begin * size, part.tobytes()) for (begin, _), part in zip(self.own, self.master)])
            parts = [(f"{letter}.{begin}-{end}", moments[letter]) for letter in "mv"
                     for (begin, end), moments in zip(self.own, self.moments) if letter in moments and end > begin]
            if self.moments[0]:
                head = safetensors_header([(name, values.shape, values.dtype) for name, values in parts])
                whole = head + b"".join(values.tobytes() for _, values in parts)
                self.write(saved, save.directory, f"optimizer-{self.rank:05}-of-{self.ranks:05}.safetensors", len(whole), [(0, whole)])
        except OSError as error:
            saved.failure.CopyFrom(Failed(IO, str(error)).message())
        except Failed as failure:
            saved.failure.CopyFrom(failure.message())
        return saved

    def write(self, saved, directory, name, size, ranges):
        with os.fdopen(os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:
            file.truncate(size)  # as every rank does
            for begin, part in ranges:
                if part:
                    file.seek(begin)
                    file.write(part)
                    saved.ranges.add(file=name, begin=begin, end=begin + len(part), checksum=xxhash.xxh3_128(part).digest())
            file.flush()
            os.fsync(file.fileno())

    def restore(self, restore):
        tensors = read_safetensors(os.path.join(restore.directory, "model.safetensors"))
        self.take_masters(numpy.concatenate([tensors[name].ravel() for name, _ in self.model.names]).astype(self.model.wide))
        for name in restore.optimizer_files:
            for tensor, values in read_safetensors(os.path.join(restore.directory, name)).items():
                letter, _, span = tensor.partition(".")
                first, last = map(int, span.split("-"))
                for (begin, end), moments in zip(self.own, self.moments):
                    low, high = max(begin, first), min(end, last)
                    if letter in moments and low < high:
                        moments[letter][low - begin:high - begin] = values[low - first:high - first]

    def export(self):
        """final/model.safetensors: rank 0 makes it, every rank writes its ranges, rank 0 gives it its name; in between all agree
        that all have got so far."""
        path = os.path.join(self.job.job.output, "final", "model.safetensors.tmp")
        self.agree(self.failure)
        self.agree(None)  # rank 0 has made it
        try:
            self.check_finite()
            header, size = self.header_bytes(), numpy.dtype(self.model.wide).itemsize
            self.write(messages.Saved(), "", path, os.path.getsize(path),
                       [(header + begin * size, part.tobytes()) for (begin, _), part in zip(self.own, self.master)])
            written = None
        except OSError as error:
            written = Failed(IO, str(error))
        except Failed as failure:
            written = failure
        self.agree(written)
        self.agree(None)  # it has its name

    def agree(self, failure):
        """The first rank's failure is everyone's: each broadcasts a status and 1024 bytes of text, until one is not 0."""
        for rank in range(self.ranks):
            own = failure if rank == self.rank else None
            word = bytearray(ERROR.pack(own.status, str(own).encode()[:1023]) if own else ERROR.size)
            self.comm.Bcast([word, MPI.BYTE], root=rank)
            status, text = ERROR.unpack(word)
            if status:
                raise Failed(status, f"rank {rank}: " + text.split(b"\0")[0].decode(errors="replace"))


def safetensors_header(tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, kind in tensors:
        begin, end = end, end + math.prod(shape) * numpy.dtype(kind).itemsize
        header[name] = {"dtype": NAMES[numpy.dtype(kind).name], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_safetensors(path):
    kinds = {name: kind for kind, name in NAMES.items()}
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: numpy.frombuffer(data[8 + length:][slice(*entry["data_offsets"])], kinds[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}


class Rows:
    """A csv's rows, all files of the job's list one after the other."""

    def __init__(self, paths):
        self.weight, self.x, self.y = [], [], []
        for path in paths:
            with open(path) as file:
                columns = file.readline().strip().split(",")
                for line in file:
                    row = collections.defaultdict(list)
                    for column, text in zip(columns, line.strip().split(",")):
                        row[column[0]].append(float(text))
                    self.weight.append(row["w"][0] if row["w"] else 1.0)
                    self.x.append(row["x"])
                    self.y.append(row["y"])

    def __len__(self):
        return len(self.weight)


def initial_values(job, names, kind):
    """As the job's model.init says; all tensors, in one row."""
    given = {tensor.name: tensor.values for tensor in job.model.init_values}
    if job.model.init_file:
        given = read_safetensors(job.model.init_file)
    missing = [name for name, _ in names if name not in given]
    if missing:
        raise Failed(JOB, f"model.init: this worker draws no values for {', '.join(missing)}")
    return numpy.concatenate([numpy.asarray(given[name], numpy.float64).ravel() for name, _ in names]).astype(kind)
