"""The jobs of deploy/jobs do what their first lines say."""
import glob
import os

import numpy

import harness
import test_images
import toys

JOBS = os.path.join(harness.ROOT, "deploy", "jobs")


class Examples(harness.Scenario):
    def run_example(self, name, ranks=0, *sets):
        """From the top of the checkout, as its first lines have it."""
        self.runs = getattr(self, "runs", 0) + 1
        output = os.path.join(self.directory, f"{name}{self.runs}")
        words = [harness.GACCD, f"deploy/jobs/{name}.yaml", "--output", output, *(word for one in sets for word in ("--set", one))]
        launcher = ["mpirun", "-n", str(ranks)] if ranks else []
        done = self.call("sh", "-c", 'cd "$0" && exec "$@"', harness.ROOT, *launcher, *words, limit=60)
        self.assertEqual(done.status, 0, done.err)
        return toys.Outcome(done, output)

    def write_digits(self, count):
        """In the place of MNIST: a bar at a place of its own for each digit, sorted, with noise."""
        labels = numpy.arange(count) * 10 // count
        images = numpy.random.default_rng(1).integers(0, 60, (count, 28, 28))
        for image, label in zip(images, labels):
            image[2 + 2 * label : 6 + 2 * label, 4:24] += 150
        for name in ("train", "t10k"):
            self.write(f"{name}-images-idx3-ubyte", test_images.idx(images))
            self.write(f"{name}-labels-idx1-ubyte", test_images.idx(labels))

    def test_every_example_says_what_it_is_and_is_a_job(self):
        paths = sorted(glob.glob(os.path.join(JOBS, "*.yaml")))
        self.assertGreater(len(paths), 4)
        self.write("train.bin", b"\0\0" * 40000), self.write("val.bin", b"\0\0" * 40000), self.write("text.txt", "text " * 1000)
        self.write_digits(20)
        text = os.path.join(self.directory, "text.txt")
        environment = dict(self.environment, GACC_TOKENS=self.directory, GACC_TEXT=text, GACC_BASE=text,
                           GACC_DIGITS=self.directory)
        for path in paths:
            with open(path) as file:
                self.assertEqual([line[0] for line in file.read().splitlines()[:2]], ["#", "#"], path)
            done = self.call("sh", "-c", 'cd "$0" && exec "$@"', harness.ROOT, harness.GACCD, "check", path, env=environment)
            self.assertEqual((done.status, done.err), (0, ""), path)

    def test_weighting(self):
        for sets, loss, norm, weight in (((), 0.875, 0.25, -0.025), (["batch.weighting=microbatch"], 1.25, 0.5, 0.05)):
            for ranks in (0, 2):
                out = self.run_example("weighting", ranks, *sets)
                self.assertEqual((out.steps[0]["loss"], out.steps[0]["grad_norm"]), (loss, norm))
                self.assertAlmostEqual(float(out.weight[0]), weight, 8)

    def test_regression(self):
        found = []
        for ranks, k in ((0, [4]), (2, [2, 2])):
            out = self.run_example("regression", ranks)
            self.assertEqual(out.header["accumulate"], k)
            found.append(out.evaluations[-1]["loss"])
        self.assertLess(max(found), 0.01)
        self.assertAlmostEqual(found[0] / found[1], 1, 2)

    def test_digits_cnn(self):
        """An epoch of other digits; one rank's loss is two ranks'."""
        self.write_digits(320)
        self.environment["GACC_DIGITS"] = self.directory
        sets = ("job.epochs=2", "schedule.warmup=2", "evaluation.every=10")
        one, two = (self.run_example("digits-cnn", ranks, *sets) for ranks in (0, 2))
        self.assertEqual((one.header["accumulate"], two.header["accumulate"]), ([4], [2, 2]))
        numpy.testing.assert_allclose(two.column("loss"), one.column("loss"), rtol=1e-3)
        self.assertLess(one.steps[-1]["loss"], one.steps[0]["loss"] / 2)

    def test_lora(self):
        """A few steps of it on a few steps of its base: only the adapters move, 2 % of the weights."""
        self.write("text.txt", 300 * "To be, or not to be. ")
        self.environment["GACC_TEXT"] = os.path.join(self.directory, "text.txt")
        base = self.run_example("shakespeare-char", 0, "job.steps=2", "schedule.warmup=0")
        self.environment["GACC_BASE"] = os.path.join(self.directory, "shakespeare-char1", "final", "model.safetensors")
        out = self.run_example("lora", 2, "job.steps=2")
        self.assertEqual(out.header["trained"], 4 * 8 * (128 + 3 * 128))
        self.assertEqual(round(out.header["trained"] / out.header["parameters"], 2), 0.02)
        for name, tensor in base.tensors.items():
            moved = not numpy.array_equal(tensor, out.tensors[name])
            self.assertEqual(moved, name.endswith("attn.c_attn.weight"), name)

    def test_gradient_penalty(self):
        """The critic finds the distance 2 and the slope 1 + 1/λ; and the rows before it had a penalty of another size."""
        found = []
        for ranks in (0, 2):
            out = self.run_example("gradient-penalty", ranks, ["job.steps=150", "batch.micro=100"])
            found.append(out.column("loss"))
            self.assertAlmostEqual(found[-1][-1], -0.7, 1)
        self.assertAlmostEqual(found[0][0] / found[1][0], 1, 5)

    def test_gradient_penalty(self):
        """The critic finds the distance 2 and the slope 1 + 1/λ, on one rank and on two whose shares are uneven."""
        found = []
        for ranks in (0, 2):
            out = self.run_example("gradient-penalty", ranks, "job.steps=150", "batch.micro=100")
            found.append(out.column("loss"))
            self.assertAlmostEqual(found[-1][-1], -0.7, 1)
        self.assertAlmostEqual(found[0][0] / found[1][0], 1, 5)


if __name__ == "__main__":
    harness.main()
