"""Ten steps of the same small GPT by Hugging Face's Trainer, DeepSpeed and FSDP, and PyTorch's own loss scaling, against gaccd (M2).

    ctest --test-dir build -L frameworks        the first time downloads 3 GB and needs 6 GB under build/environments
"""
import os
import shutil
import sys
import tempfile

import environment

environment.enter("frameworks", [
    ["install", "torch==2.6.0", "numpy==2.2.6", "setuptools", "wheel", "ninja"],
    ["install", "transformers==4.48.3", "accelerate==1.3.0"],
    ["install", "--no-build-isolation", "deepspeed==0.16.3"],
    ["uninstall", "--yes", "triton"],  # DeepSpeed's import fails where triton finds no GPU
])

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="",
                  TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1",
                  TORCH_EXTENSIONS_DIR=os.path.join(sys.prefix, "extensions"))
import numpy
import torch

import gpt2
import harness
import loop
import noise
import toys
from order import epoch_order, global_batches

SPEC = {"type": "gpt", "layers": 2, "heads": 3, "width": 24, "context": 8, "vocab": 61}
STEPS, GLOBAL, MICRO, RANKS, SEED = 10, 16, 2, 2, 1337
WINDOW = GLOBAL // (MICRO * RANKS)
OPTIMIZERS = {
    "adamw": {"type": "adamw", "lr": 0.01, "weight_decay": 0.1, "betas": [0.9, 0.99], "clip_norm": 0.5},
    "sgd": {"type": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.02, "clip_norm": 0.5},
}


def on_every_rank(work, *arguments):
    """What rank 0 of RANKS processes returns from work(rank, …)."""
    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(rank_main, (work, directory, arguments), RANKS)
        return torch.load(os.path.join(directory, "result"), weights_only=False)


def rank_main(rank, work, directory, arguments):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/meeting", rank=rank, world_size=RANKS)
    result = work(rank, *arguments)
    if rank == 0:
        torch.save(result, os.path.join(directory, "result"))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def micro_batches(data, rank):
    """One list of (inputs, targets) a step: the rank's block of the global batch, cut in order, as gaccd deals it."""
    order = global_batches(SEED, data.count, GLOBAL)
    for _ in range(STEPS):
        rows = next(order)[rank * WINDOW * MICRO:][:WINDOW * MICRO]
        yield [(data.x[rows[i:i + MICRO]], data.y[rows[i:i + MICRO]]) for i in range(0, len(rows), MICRO)]


def mean_over_ranks(value):
    value = torch.tensor(float(value), dtype=torch.float64)
    torch.distributed.all_reduce(value)
    return value.item() / RANKS


WRAPPED = "_fsdp_wrapped_module."


def matrices_of(model):
    return {name for name, parameter in model.named_parameters() if parameter.dim() >= 2}


def fsdp(rank, keys, text, initial):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    data = loop.Tokens(text, SPEC["context"])
    bare = loop.make_model(SPEC)
    bare.load(initial)
    matrices = matrices_of(bare)  # a shard has one dimension
    model = FullyShardedDataParallel(bare, auto_wrap_policy=ModuleWrapPolicy({gpt2.Block}), use_orig_params=True,
                                     device_id=torch.device("cpu"))
    named = [(name.replace(WRAPPED, ""), parameter) for name, parameter in model.named_parameters()]
    optimizer = loop.make_optimizer(named, matrices, keys)
    seen = {"loss": [], "grad_norm": []}
    for window in micro_batches(data, rank):
        total = 0.0
        optimizer.zero_grad()
        for i, (x, y) in enumerate(window):
            if i < len(window) - 1:
                with model.no_sync():
                    loss = model(x, y) / len(window)
                    loss.backward()
            else:
                loss = model(x, y) / len(window)
                loss.backward()
            total += loss.item()
        seen["loss"].append(mean_over_ranks(total))
        seen["grad_norm"].append(model.clip_grad_norm_(keys["clip_norm"]).item())
        optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        return seen, {name.replace(WRAPPED, ""): values for name, values in loop.stored(model.module).items()}


def deepspeed(rank, keys, text, initial, stage):
    import deepspeed

    deepspeed.logger.setLevel("ERROR")
    data = loop.Tokens(text, SPEC["context"])
    bare = loop.make_model(SPEC)
    bare.load(initial)
    deepspeed.init_distributed("gloo")
    optimizer = loop.make_optimizer(bare.named_parameters(), matrices_of(bare), keys)
    model, _, _, _ = deepspeed.initialize(model=bare, optimizer=optimizer, config={
        "train_batch_size": GLOBAL, "train_micro_batch_size_per_gpu": MICRO, "gradient_accumulation_steps": WINDOW,
        "gradient_clipping": keys["clip_norm"], "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    })
    seen = {"loss": []}
    for window in micro_batches(data, rank):
        total = 0.0
        for x, y in window:
            loss = model(x, y)
            model.backward(loss)
            model.step()
            total += loss.item() / len(window)
        seen["loss"].append(mean_over_ranks(total))
        if stage > 0:  # else it tells none
            seen.setdefault("grad_norm", []).append(float(model.get_global_grad_norm()))
    return seen, loop.stored(model.module)


class Frameworks(toys.Training):
    def setUp(self):
        super().setUp()
        torch.set_num_threads(1)

    def job(self, optimizer, sequences, micro=MICRO, **keys):
        """(job, text, initial weights)"""
        initial = loop.draw(SPEC)
        loop.write_safetensors(os.path.join(self.directory, "initial"), initial)
        keys.setdefault("steps", STEPS)
        job = toys.job_of({**SPEC, "init": {"file": "initial"}}, batch=GLOBAL, micro=micro,
                          data_={"format": "bytes", "order": "shuffled"}, optimizer_=optimizer, **keys)
        text = toys.tokens(sequences * SPEC["context"] + 1, SPEC["vocab"])
        return job, text, {name: torch.from_numpy(values) for name, values in initial.items()}

    def compare(self, out, seen, parameters):
        """K1's tolerances for fp32."""
        for key, wanted in seen.items():
            numpy.testing.assert_allclose(out.column(key), wanted, 1e-4, 1e-5, err_msg=key)
        self.assertGreater(max(out.column("grad_norm")), 0.5)  # the clip was needed
        self.assertEqual(sorted(out.tensors), sorted(parameters))
        width = SPEC["width"]
        numpy.testing.assert_allclose(loop.flat(out.tensors, width), loop.flat(parameters, width), 1e-4, 1e-5)

    def test_fsdp(self):
        """Full sharding, no_sync() in all but the last micro-batch."""
        for kind, keys in OPTIMIZERS.items():
            with self.subTest(optimizer=kind):
                job, text, initial = self.job(keys, 3 * GLOBAL)
                self.compare(self.train(job, text, RANKS), *on_every_rank(fsdp, keys, text, initial))

    def test_deepspeed(self):
        """Stages 0, 1 and 2 of ZeRO."""
        if not shutil.which("c++"):
            self.skipTest("DeepSpeed compiles its collectives for a CPU: no c++")
        for kind, keys in OPTIMIZERS.items():
            for stage in (0, 1, 2):
                with self.subTest(optimizer=kind, stage=stage):
                    job, text, initial = self.job(keys, 3 * GLOBAL)
                    self.compare(self.train(job, text, RANKS), *on_every_rank(deepspeed, keys, text, initial, stage))

    def test_trainer(self):
        """The library moves labels by one itself and so is fed T + 1 tokens; what it makes of the last position is not in the
        loss. It counts the first token as a target unless that is masked. Epochs are whole: this version adds an epoch's
        short last window to the next one."""
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        keys, micro, sequences = OPTIMIZERS["adamw"], 4, 3 * GLOBAL
        job, text, initial = self.job(keys, sequences, micro)
        out = self.train(job, text)

        context = SPEC["context"]
        model = GPT2LMHeadModel(GPT2Config(
            vocab_size=SPEC["vocab"], n_positions=context + 1, n_embd=SPEC["width"], n_layer=SPEC["layers"],
            n_head=SPEC["heads"], resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, loss_type="ForCausalLMLoss"))
        positions = initial["wpe.weight"]
        longer = {**initial, "wpe.weight": torch.cat([positions, torch.zeros(1, SPEC["width"])])}
        model.transformer.load_state_dict(longer)

        class Order(torch.utils.data.Sampler):
            epoch = -1

            def __len__(self):
                return sequences

            def __iter__(self):
                self.epoch += 1
                return iter(epoch_order(SEED, self.epoch, sequences))

        class Ordered(Trainer):
            def _get_train_sampler(self):
                return Order()

        tokens = numpy.frombuffer(text, numpy.uint8).astype(numpy.int64)
        rows = [{"input_ids": row, "labels": numpy.concatenate([[-100], row[1:]])}
                for row in (tokens[i * context:(i + 1) * context + 1] for i in range(sequences))]
        trainer = Ordered(model, TrainingArguments(
            output_dir=os.path.join(self.directory, "trainer"), use_cpu=True, per_device_train_batch_size=micro,
            gradient_accumulation_steps=GLOBAL // micro, max_steps=STEPS, learning_rate=keys["lr"],
            weight_decay=keys["weight_decay"], adam_beta1=keys["betas"][0], adam_beta2=keys["betas"][1],
            max_grad_norm=keys["clip_norm"], lr_scheduler_type="constant", optim="adamw_torch", logging_steps=1,
            save_strategy="no", report_to=[], disable_tqdm=True,
        ), train_dataset=rows)
        trainer.train()
        records = [record for record in trainer.state.log_history if "grad_norm" in record]
        self.assertEqual(len(records), STEPS)
        parameters = {name: values.double().numpy() for name, values in model.transformer.state_dict().items()}
        parameters["wpe.weight"] = parameters["wpe.weight"][:context]
        self.compare(out, {"grad_norm": [record["grad_norm"] for record in records]}, parameters)
        numpy.testing.assert_allclose(out.column("loss"), [record["loss"] for record in records], 0, 1e-4)  # it logs 4 digits


class Rounded(torch.autograd.Function):
    """The identity, whose gradient is rounded to fp16."""

    @staticmethod
    def forward(_, w):
        return w.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient.half().float()


class Scaling(toys.Training):
    """torch.amp.GradScaler, which runs on a CPU in this version, beside tape jobs: its scale after every update, its weights."""

    def follow(self, gradients, batch, ranks=1, **scale):
        """gradients: one a micro-batch; `batch` of them are a step."""
        w = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([w], lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale["initial"], growth_factor=scale.get("growth", 2.0),
                                      backoff_factor=scale.get("backoff", 0.5), growth_interval=scale.get("interval", 2000))
        scales = []
        for i, gradient in enumerate(gradients):
            scaler.scale((Rounded.apply(w) * gradient / batch).sum()).backward()
            if (i + 1) % batch == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
        out = self.train(toys.tape(batch=batch, lr=0.01, compute="fp16", scale=scale), gradients, ranks)
        self.assertEqual(out.column("loss_scale_next"), scales)
        self.assert_close(out.weight, w.detach().numpy(), 1e-5)
        return scales

    def test_the_documented_scenarios(self):
        """As test_loss_scale of the scenarios has them, worked out by hand."""
        inf = float("inf")
        self.assertEqual(self.follow([0.5, 0.5, inf, 0.5], 1, initial=128, interval=1), [256, 512, 256, 512])
        self.assertEqual(self.follow([0.5, 0.25, 0.5, 0.25], 2, initial=128, interval=1), [256, 512])
        self.assertEqual(self.follow([5, 20000, 5, 40000], 1, initial=4), [4, 2, 2, 1])
        highest = float(numpy.float32(1e38))
        self.assertEqual(self.follow([0, 0], 1, initial=1e38, growth=16, interval=1), [highest, highest])

    def test_random_histories(self):
        random = numpy.random.default_rng(7)
        for case in range(12):
            batch, ranks = [(1, 1), (4, 1), (4, 2)][case % 3]
            gradients = random.normal(0, 40, 40 * batch)
            gradients[random.random(40 * batch) < 0.15 / batch] *= 3000
            scales = self.follow(gradients.tolist(), batch, ranks, initial=256, interval=int(random.integers(1, 5)),
                                 growth=float(random.choice([2, 4])), backoff=float(random.choice([0.5, 0.25])))
            self.assertGreater(len(set(scales)), 3)

    def test_gradients_in_fp16(self):
        """As test_gradients_in_bf16 of test_loop.py, with autocast to fp16 and the framework's scaling of the loss."""
        for spec in (SPEC, {"type": "mlp", "inputs": 5, "hidden": [16, 9], "outputs": 3, "activation": "tanh"}):
            with self.subTest(model=spec["type"]):
                initial = loop.draw(spec)
                loop.write_safetensors(os.path.join(self.directory, "initial"), initial)
                initial = {name: torch.from_numpy(values) for name, values in initial.items()}
                scale = {"mode": "static", "initial": 1024}
                job = toys.job_of({**spec, "init": {"file": "initial"}}, steps=1, batch=GLOBAL, micro=3, compute="fp16",
                                  scale=scale, data_={"order": "shuffled"}, optimizer_={"type": "sgd", "lr": 1})
                if spec["type"] == "gpt":
                    job["data"]["format"] = "bytes"
                    data = toys.tokens(40 * spec["context"] + 1, spec["vocab"])
                else:
                    data = [(1, *row) for row in numpy.random.default_rng(3).normal(size=(40, 8)).tolist()]
                seen, wanted = loop.train(job, data, initial, 1, compute="fp16",
                                          scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
                loss_noise, allowed = noise.of_first_step(job, data, initial, noise.FP16_UNIT)
                out = self.train(job, data, 2)
                self.assertLessEqual(abs(out.steps[0]["loss"] - seen["loss"][0]), 2 * loss_noise)
                for name, values in wanted.items():
                    self.assertLessEqual(numpy.linalg.norm(out.tensors[name] - values), 2 * allowed[name], name)


if __name__ == "__main__":
    harness.main()
