"""The safetensors and transformers libraries load final/ of a gpt job and agree with gaccd (M2).

gaccd tells no logits, but losses: the validation loss of one sequence whose last target is v is (C − log p(v))/T with the same C
for every v. So T·(loss of v) for all v are the logits of the last position but for a constant, which softmax does not see
either.
"""
import os

import environment

environment.enter("transformers", [["install", "transformers==4.40.2", "safetensors==0.4.5", "numpy<2"]], system=True)

try:
    import numpy
    import torch
except ImportError as error:
    environment.skip(f"Debian's python3-numpy or python3-torch: {error}")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

import harness
import loop
import toys

CONTEXT, VOCAB = 8, 19
VARIANTS = {
    "as GPT-2": {},
    "without biases": {"bias": False},
    "an untied head, gelu with erf": {"tie": False, "activation": "gelu"},
}


class Gpt2(toys.Training):
    def final(self, keys, compute="fp32"):
        """(spec, data, the job's outcome, its final directory) of a short training."""
        spec = {"type": "gpt", "layers": 2, "heads": 3, "width": 24, "context": CONTEXT, "vocab": VOCAB, **keys}
        loop.write_safetensors(os.path.join(self.directory, "initial"), loop.draw(spec))
        data = toys.tokens(60 * CONTEXT + 1, VOCAB)
        held_out = toys.tokens(9 * CONTEXT + 1, VOCAB, seed=2)
        self.write("held-out", held_out)
        job = toys.job_of({**spec, "init": {"file": "initial"}}, steps=12, batch=12, micro=4, lr=0.003, optimizer="adamw",
                          compute=compute, data_={"format": "bytes", "validation": "held-out"}, evaluation={"every": 12})
        out = self.train(job, data, 2)
        return spec, held_out, out, os.path.join(self.directory, f"run{self.count}", "final")

    def test_safetensors_reads_what_gaccd_writes(self):
        for compute, kind in (("fp32", torch.float32), ("fp64", torch.float64)):
            _, _, out, final = self.final({}, compute)
            with safe_open(os.path.join(final, "model.safetensors"), framework="pt") as file:
                self.assertEqual(file.metadata(), {"format": "pt"})
                self.assertEqual(sorted(file.keys()), sorted(out.tensors))
                for name, values in out.tensors.items():
                    self.assertEqual(file.get_tensor(name).dtype, kind)
                    numpy.testing.assert_array_equal(file.get_tensor(name).numpy(), values)

    def test_transformers_evaluates_to_the_same_loss(self):
        for name, keys in VARIANTS.items():
            with self.subTest(name):
                _, held_out, out, final = self.final(keys)
                model = self.load(final)
                data = loop.Tokens(held_out, CONTEXT)
                logits = model(data.x).logits
                self.assertEqual(logits.shape[-1], VOCAB)  # padding stays inside gaccd
                loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), data.y.reshape(-1)).item()
                self.assert_near(out.evaluations[-1]["loss"], loss, 1e-5)

    def test_transformers_gives_the_same_logits(self):
        for name, keys in VARIANTS.items():
            with self.subTest(name):
                spec, held_out, _, final = self.final(keys)
                inputs = held_out[:CONTEXT]
                ours = numpy.array([-CONTEXT * self.loss_of(spec, final, inputs, target) for target in range(VOCAB)])
                theirs = self.load(final)(torch.tensor([list(inputs)])).logits[0, -1].double().numpy()
                self.assertGreater(theirs.std(), 0.1)
                self.assert_near(ours - ours.mean(), theirs - theirs.mean(), 1e-5)

    def load(self, final):
        """No key may be missing, unknown or of another shape."""
        config = GPT2Config.from_pretrained(final)
        if config.tie_word_embeddings:
            model, said = GPT2LMHeadModel.from_pretrained(final, output_loading_info=True)
            self.assertEqual([words for words in said.values() if words], [])
        else:  # from_pretrained adds the model's prefix to all names or to none; here the head's own has none
            model = GPT2LMHeadModel(config)
            tensors = load_file(os.path.join(final, "model.safetensors"))
            model.load_state_dict({name if name == "lm_head.weight" else f"transformer.{name}": values
                                   for name, values in tensors.items()})
        return model.eval().requires_grad_(False)

    def loss_of(self, spec, final, inputs, target):
        """gaccd's validation loss of one sequence, in fp64 (T is multiplied to its rounding), by a job that trains nothing."""
        self.write("one", inputs + bytes([target]))
        job = toys.job_of({**spec, "init": {"file": os.path.join(final, "model.safetensors")}}, steps=1, lr=0, compute="fp64",
                          data_={"format": "bytes", "validation": "one"}, evaluation={"every": 1})
        return self.train(job, inputs + bytes([target])).evaluations[-1]["loss"]


if __name__ == "__main__":
    harness.main()
