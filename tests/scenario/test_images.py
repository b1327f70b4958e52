"""idx files: images and their labels, as MNIST has them."""

import struct

import numpy

import harness
import toys

CODES = {"u1": 0x08, "i1": 0x09, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}


def idx(values, kind="u1"):
    values = numpy.array(values)
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, CODES[kind], values.ndim, *values.shape) + values.astype(kind).tobytes()


class Images(toys.Training):
    def images(self, job, images, labels, label_kind="u1", validation=None, kind="u1"):
        """The job with idx files in the place of a csv."""
        self.write("images", idx(images, kind)), self.write("labels", idx(labels, label_kind))
        job["data"].update(format="idx", train="images", labels={"train": "labels"})
        if validation:
            job["data"]["validation"] = validation
        return job

    def test_one_pixel_and_one_weight(self):
        """Pixels 51 and 255 are x = 0.2 and 1; y = 5 and −1, w = 0, ½(w·x−y)²: gradients −1 and 1 of losses 12.5 and 0.5.
        One step over both: loss 6.5, gradient 0; one for each with lr = 1: w = 1, and then (1·1+1)·1 = 2 of loss 2: w = −1."""
        data = [[[51]], [[255]]], [5, -1], "i1"
        for compute, scale in (("fp32", None), ("bf16", None), ("fp16", 1024)):
            for ranks in (1, 2):
                out = self.train(self.images(toys.lin1(batch=2, compute=compute, scale=scale), *data), b"", ranks)
                self.assert_close(out.column("loss"), [6.5], 2e-3)
                self.assert_near(out.column("grad_norm"), [0], 4e-3)
        out = self.train(self.images(toys.lin1(), *data), b"")
        self.assert_close(out.column("loss"), [12.5, 2])
        self.assert_close(out.column("grad_norm"), [1, 2])
        self.assert_close(out.weight, [-1])

    def test_images_train_as_their_numbers_in_a_csv_do(self):
        """Twelve images of 2×3 bytes in three classes, B = 6, b = 2, so that two and four ranks have uneven shares of M = 3."""
        random = numpy.random.default_rng(3)
        images, labels = random.integers(0, 256, (12, 2, 3)), random.integers(0, 3, 12)
        rows = [(1, *(value / 255 for value in image.ravel().tolist()), int(label)) for image, label in zip(images, labels)]
        model = {"type": "mlp", "inputs": 6, "hidden": [5], "outputs": 3, "loss": "cross_entropy"}
        for compute in ("fp32", "bf16", "fp16"):
            for ranks, micro in ((1, 2), (2, 2), (4, 1)):
                job = lambda: toys.job_of(
                    model, batch=6, micro=micro, lr=0.1, compute=compute, data={"order": "shuffled", "validation": 0.25}, epochs=3
                )
                wanted = self.train(job(), rows, ranks)
                found = self.train(self.images(job(), images, labels), b"", ranks)
                self.assertEqual(found.without_seconds()[1:], wanted.without_seconds()[1:])
                for name, values in wanted.tensors.items():
                    self.assertEqual(found.tensors[name].tobytes(), values.tobytes())

    def test_what_does_not_fit_is_refused(self):
        model = {"type": "mlp", "inputs": 4, "hidden": [], "outputs": 3, "loss": "cross_entropy"}
        images, labels = numpy.zeros((3, 2, 2), int), [0, 1, 2]
        good = lambda: self.images(toys.job_of(model, batch=3), images, labels)
        self.train(good(), b"")

        def refused(status, *words, ranks=0, **data):
            job = good()
            job["data"].update(data)
            done = self.run_job(job, ranks)
            self.assertEqual((done.status, len(done.own_lines())), (status, 1), done.err)
            for word in words:
                self.assertIn(word, done.own_lines()[0])

        self.write("short", idx(images)[:-1]), self.write("two", idx([0, 1])), self.write("high", idx([0, 1, 3]))
        for ranks in (0, 2):
            refused(65, "short", "11 bytes", ranks=ranks, train="short")
            refused(65, "two", "labels 2 images", "images holds 3", ranks=ranks, labels={"train": "two"})
        refused(65, "high", "label 2", "is 3, wanted 0…2", labels={"train": "high"})
        refused(66, "nowhere", labels={"train": "nowhere"})
        refused(78, "job.yaml:", "data.labels.train", "2 files for the 1 of data.train", labels={"train": ["labels", "labels"]})
        refused(78, "data.labels.validation", "0 files for the 1 of data.validation", validation="images")
        refused(78, "data.labels.validation", "for the 0 of", validation=0.5, labels={"train": "labels", "validation": "labels"})


if __name__ == "__main__":
    harness.main()
