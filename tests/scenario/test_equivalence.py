"""One global batch, split in every way, as users split it: other processes, real MPI, real gRPC (A2, A10, A12, F3, H3, K1).

A split changes the order of additions and nothing else: not the average, not the sequences, not the dropout bits, not the
learning rate. tests/unit/equivalence_test.c asks the same of sessions inside one process.
"""
import numpy

import harness
import toys

B = 16
SPLITS = ((16, 1, 1), (4, 4, 1), (4, 2, 2), (2, 4, 2), (1, 4, 4))  # b, K, N
CONTEXT = 8
TEXT = toys.tokens(200 * CONTEXT + 1)  # 200 sequences: every 13th step is an epoch's short tail


def small_gpt(bias=False, **keys):
    # Without bias by default: the keys' biases have a gradient of pure rounding, which AdamW would blow up.
    model = {"bias": bias, "dropout": 0.1, "init_std": 0.2}
    return toys.gpt(context=CONTEXT, width=16, layers=2, model_=model, data_={"order": "shuffled"}, **keys)


def flat(out):
    return numpy.concatenate([values.astype(numpy.float64).ravel() for _, values in sorted(out.tensors.items())])


def share_close(found, wanted, absolute=1e-5, relative=1e-4):
    return numpy.mean(numpy.abs(found - wanted) <= absolute + relative * numpy.abs(wanted))


class Equivalence(toys.Training):
    def train_split(self, split, batch=B, **keys):
        micro, accumulate, ranks = split
        out = self.train(small_gpt(batch=batch, micro=micro, **keys), TEXT, ranks)
        self.assertEqual((out.header["effective_batch"], out.header["micro_batch"], out.header["ranks"]), (batch, micro, ranks))
        self.assertEqual(max(out.header["accumulate"]), accumulate)
        return out

    def gradient(self, split, **keys):
        """Of the first step: SGD with lr 1 subtracts just it."""
        start = self.train(small_gpt(batch=1, micro=1, steps=1, lr=0, **self.start_keys(keys)), TEXT)
        out = self.train_split(split, steps=1, lr=1, **keys)
        return flat(start) - flat(out), out

    @staticmethod
    def start_keys(keys):
        return {name: keys[name] for name in ("bias", "compute") if name in keys}

    def check_gradients(self, whole, splits, tolerance, **keys):
        wanted, one = self.gradient(whole, **keys)
        self.assertGreater(numpy.linalg.norm(wanted), 0.1)
        for split in splits:
            with self.subTest(split=split):
                found, out = self.gradient(split, **keys)
                self.assertLessEqual(numpy.linalg.norm(found - wanted), tolerance * numpy.linalg.norm(wanted))
                self.assert_close(out.steps[0]["loss"], one.steps[0]["loss"], tolerance)
                self.assert_close(out.steps[0]["grad_norm"], one.steps[0]["grad_norm"], tolerance)

    def test_gradients_of_every_split_agree_in_fp64(self):
        self.check_gradients(SPLITS[0], SPLITS[1:], 1e-12, compute="fp64")

    def test_so_they_do_with_biases(self):
        self.check_gradients(SPLITS[0], SPLITS[1:], 1e-12, compute="fp64", bias=True)

    def test_seven_micro_batches_on_three_ranks_the_last_one_short(self):
        self.check_gradients((13, 1, 1), [(2, 3, 3)], 1e-12, compute="fp64", batch=13)

    def test_eight_ranks_do_what_one_does(self):
        """More than most machines that run this have cores for."""
        self.check_gradients(SPLITS[0], [(1, 2, 8)], 1e-12, compute="fp64")
        keys = {"steps": 20, "lr": 0.1, "compute": "fp64"}
        one, eight = self.train_split(SPLITS[0], **keys), self.train_split((1, 2, 8), **keys)
        self.assertEqual(one.column("accumulate")[0] + eight.column("accumulate")[0], [1] + 8 * [2])
        self.assert_near(flat(eight), flat(one), 1e-12)
        self.assert_near(eight.column("loss"), one.column("loss"), 1e-12)

    def test_twenty_sgd_steps_agree_in_fp32(self):
        wanted = flat(self.train_split(SPLITS[0], steps=20, lr=0.1))
        for split in SPLITS[1:]:
            with self.subTest(split=split):
                self.assertEqual(share_close(flat(self.train_split(split, steps=20, lr=0.1)), wanted), 1)

    def test_twenty_adamw_steps_agree_in_fp32(self):
        keys = {"steps": 20, "lr": 1e-3, "optimizer": "adamw", "schedule": {"type": "cosine", "warmup": 10},
                "optimizer_": {"weight_decay": 0.1, "clip_norm": 1.0}}
        whole = self.train_split(SPLITS[0], **keys)
        for split in SPLITS[1:]:
            with self.subTest(split=split):
                out = self.train_split(split, **keys)
                self.assertGreaterEqual(share_close(flat(out), flat(whole)), 0.999)
                self.assertEqual(out.column("lr"), whole.column("lr"))  # never times K

    def test_fp16_with_a_scale_follows_fp32(self):
        """No factor K, N or S: the same length, the same direction."""
        wanted, _ = self.gradient(SPLITS[0])
        moved = wanted != 0
        for split in SPLITS:
            with self.subTest(split=split):
                found, out = self.gradient(split, compute="fp16", scale=1024)
                self.assertEqual((out.steps[0]["verdict"], out.steps[0]["loss_scale"]), ("apply", 1024))
                self.assertLess(numpy.median(numpy.abs(found - wanted)[moved] / numpy.abs(wanted)[moved]), 0.05)
                lengths = numpy.linalg.norm(found), numpy.linalg.norm(wanted)
                self.assertLess(abs(lengths[0] / lengths[1] - 1), 0.02)
                self.assertGreater(found @ wanted / (lengths[0] * lengths[1]), 0.999)


if __name__ == "__main__":
    harness.main()
