"""Which sequences a step reads and who reads them; what files are refused (cases 32–34, 05-5; A10, B8)."""

import struct

import numpy

import harness
import toys
from toys import gpt, tape

INF = float("inf")


def one_hot(rows):
    """Row i pushes weight i alone, so that the final weights tell when each row was read."""
    return [(1, *(1 if i == row else 0 for i in range(rows))) for row in range(rows)]


class Order(toys.Training):
    def read_at(self, rows, ranks, batch, micro, order="shuffled", seed=1, epochs=1):
        """The attempt in which each row was read, summed over epochs: lr falls by one a step, W is B."""
        steps = epochs * -(-rows // batch)
        job = tape(
            rows * [0],
            batch=batch,
            micro=micro,
            epochs=epochs,
            lr=steps,
            compute="fp64",
            data={"order": order},
            schedule={"type": "linear", "total": steps},
            job_={"seed": seed},
        )
        out = self.train(job, one_hot(rows), ranks)
        self.assertEqual(len(out.steps), steps)
        return numpy.rint(-out.weight * batch).astype(int)

    def test_the_global_batch_does_not_depend_on_the_split(self):
        """A10, 34-1: 24 windows, B = 6: each is read once an epoch, in the same attempt for any (b, K, N)."""
        reference = self.read_at(24, 1, 6, 6)
        self.assertEqual(sorted(reference), sorted(6 * [4, 3, 2, 1]))
        for ranks, micro in ((1, 1), (2, 3), (2, 1), (3, 2), (3, 1), (4, 1)):
            self.assertEqual(self.read_at(24, ranks, 6, micro).tolist(), reference.tolist())
        self.assertNotEqual(self.read_at(24, 1, 6, 6, seed=2).tolist(), reference.tolist())

    def test_the_order_changes_from_epoch_to_epoch(self):
        """34-1: 12 windows, N = 3, K = 2, two epochs: the second is another permutation."""
        first = self.read_at(12, 3, 6, 1)
        both = self.read_at(12, 3, 6, 1, epochs=2)  # lr 4 3 | 2 1
        second = both - first - 2
        self.assertEqual(sorted(second), sorted(6 * [1] + 6 * [2]))
        self.assertNotEqual(second.tolist(), first.tolist())

    def test_sequential_is_the_order_of_the_files(self):
        for ranks in (1, 2, 4):
            self.assertEqual(self.read_at(12, ranks, 4, 1, "sequential").tolist(), 4 * [3] + 4 * [2] + 4 * [1])

    def test_ranks_read_contiguous_blocks(self):
        """34-4: row i of eight that is inf is rank i·N/8's, in micro-batch i/b: disjoint, and together everything."""
        for ranks, micro in ((2, 2), (4, 1), (4, 2)):
            for bad in range(0, 8, 3):
                out = self.train(tape(batch=8, micro=micro), [INF if i == bad else 1 for i in range(8)], ranks)
                blame = out.steps[0]["nonfinite"]
                self.assertEqual((blame["rank"], blame["micro_batch"]), (bad * ranks // 8, bad // micro))

    def test_micro_batches_of_a_sorted_set_are_mixed(self):
        """A10: a set sorted by class; every quarter of the order holds about a quarter of each."""
        reads = self.read_at(400, 1, 100, 100)
        for attempt in range(1, 5):
            share = numpy.mean(reads[:200] == attempt) * 2
            self.assertLess(abs(share - 0.5), 0.2)


class Tokens(toys.Training):
    def refused(self, job, data, status, *words, name="tokens", ranks=(0,)):
        """One line with these words, on one rank and on several alike."""
        for count in ranks:
            self.write(name, data)
            job["data"]["train"] = name
            done = self.run_job(job, count)
            self.assertEqual((done.status, len(done.own_lines())), (status, 1), done.err)
            for word in words:
                self.assertIn(word, done.own_lines()[0])

    def job(self, form="u16", **keys):
        job = gpt(**{"batch": 2, "lr": 0, **keys})
        job["data"].update(format=form)
        return job

    def test_a_file_shorter_than_a_sequence_is_refused(self):
        """33-1: T = 8 needs nine tokens."""
        for count in (0, 1, 8):
            self.refused(self.job(), numpy.zeros(count, "<u2").tobytes(), 65, "tokens", "9", ranks=(0, 2))
            self.refused(self.job("bytes"), bytes(count), 65, "tokens", "9")
        for count, sequences in ((9, 1), (16, 1), (17, 2), (25, 3)):
            for form, width in (("u16", 2), ("u32", 4), ("bytes", 1)):
                out = self.train(self.job(form, batch=1), bytes(count * width))
                self.assertEqual((out.header["train_sequences"], len(out.steps)), (sequences, sequences))
                self.assertEqual(out.result["tokens_seen"], 8 * sequences)

    def test_a_size_that_is_no_multiple_of_the_type_is_refused(self):
        """33-3"""
        for form, size in (("u16", 41), ("u32", 41), ("u32", 42), ("u32", 43)):
            self.refused(self.job(form), bytes(size), 65, "tokens", str(size))

    def test_a_token_beyond_the_vocabulary_is_refused_with_its_place(self):
        """32-3: 100 at position 17 of 64, vocab 100."""
        for form, kind in (("u16", "<u2"), ("u32", "<u4"), ("bytes", "u1")):
            values = numpy.arange(64, dtype=kind)
            self.train(self.job(form, vocab=64), values.tobytes())
            for bad, position in ((100, 17), (101, 0), (255, 63)):
                values = numpy.arange(64, dtype=kind)
                values[position] = bad
                self.refused(
                    self.job(form, vocab=100), values.tobytes(), 65, "tokens", str(position), str(bad), "100", ranks=(0, 2)
                )
        values = numpy.full(64, 2**32 - 1, "<u4")
        self.refused(self.job("u32", vocab=100), values.tobytes(), 65, "4294967295")

    def test_a_type_that_cannot_hold_the_vocabulary_is_refused(self):
        """32-1: 119547 in u16; 65536 is legal, and so is its last token."""
        self.refused(self.job(vocab=119547), bytes(100), 78, "model.vocab", "119547", "65535")
        self.refused(self.job("bytes", vocab=257), bytes(100), 78, "model.vocab", "257")
        out = self.train(
            self.job(vocab=65536, width=2, heads=1, context=4, batch=1, model_={"init_std": 0}), 10 * b"\xff\xff"
        )
        self.assert_near(out.steps[0]["loss"], numpy.log(65536))

    def test_llmc_files_are_read_behind_their_header(self):
        tokens = numpy.arange(17, dtype="<u2")
        header = struct.pack("<256i", 20240520, 1, 17, *(253 * [0]))
        plain = self.train(self.job(lr=0.1), tokens.tobytes())
        out = self.train(self.job("llmc", lr=0.1), header + tokens.tobytes())
        self.assertEqual(out.without_seconds()[1:], plain.without_seconds()[1:])
        for position, value, word in ((0, 20240519, "magic"), (1, 2, "version"), (2, 18, "18"), (2, 16, "16")):
            words = [20240520, 1, 17] + 253 * [0]
            words[position] = value
            self.refused(self.job("llmc"), struct.pack("<256i", *words) + tokens.tobytes(), 65, "tokens", word)

    def test_sequences_never_cross_a_file(self):
        """Three files of 17, 10 and 9 tokens: 2, 1 and 1 sequences of T = 8."""
        for name, count in (("a1", 17), ("a2", 10), ("a3", 9)):
            self.write(name, bytes(count))
        for train in (["a1", "a2", "a3"], "a?"):
            job = self.job("bytes", batch=1)
            job["data"]["train"] = train
            self.assertEqual(self.train(job, b"").header["train_sequences"], 4)

    def test_what_is_missing_is_named(self):
        for ranks in (0, 2):
            job = self.job()
            job["data"]["train"] = "nowhere.bin"
            done = self.run_job(job, ranks)
            self.assertEqual((done.status, len(done.own_lines())), (66, 1))
            self.assertIn("nowhere.bin", done.err)

    def test_rows_that_are_no_numbers_are_refused_with_their_line(self):
        job = tape(batch=2)
        for text, place in (
            ("weight,g0\n1,2\n1,x\n", "rows:3"),
            ("weight,g0\n1\n", "rows:2"),
            ("weight,g1\n1,2\n", "rows:1"),
            ("weight,g0\n-1,2\n", "rows:2"),
            ("weight,g0\n", "rows"),
            ("", "rows"),
            ("weight,g0\n1,0x10\n", "rows:2"),
        ):
            self.refused(job, text, 65, place, name="rows")


class Masks(toys.Training):
    """Twenty-one tokens in a circle of four, so that all five sequences of T = 4 are the same and have the losses ℓ₀…ℓ₃.
    The first four sequences learn one target each, in turn; the fifth learns ℓ₁ and ℓ₃."""

    MASK = bytes([0] + [int(target in learned) for learned in ({0}, {1}, {2}, {3}, {1, 3}) for target in range(4)])

    def job(self, **keys):
        job = gpt(vocab=4, context=4, lr=0, model_={"init_std": 0.5}, **keys)
        job["data"]["mask"] = {"train": "mask"}
        self.write("mask", self.MASK)
        return job

    def test_what_is_masked_is_not_there(self):
        tokens = bytes([0, 2, 1, 3] * 5 + [0])
        whole = self.train(gpt(vocab=4, context=4, lr=0, model_={"init_std": 0.5}), tokens)
        alone = self.train(self.job(), tokens)
        self.assertEqual([step["weight"] for step in alone.steps], [1, 1, 1, 1, 2])
        self.assertEqual([step["tokens"] for step in alone.steps], 5 * [4])
        l = alone.column("loss")[:4]
        self.assertGreater(max(l) - min(l), 0.1)
        self.assert_close(whole.column("loss"), 5 * [sum(l) / 4])
        self.assert_close(alone.column("loss")[4], (l[1] + l[3]) / 2)
        wanted = {"token": (sum(l) + l[1] + l[3]) / 6, "microbatch": ((l[0] + l[1]) / 2 + (l[2] + l[3]) / 2 + (l[1] + l[3]) / 2) / 3}
        for weighting, loss in wanted.items():
            for ranks in (1, 2):
                for compute, ratio in (("fp32", 1e-6), ("bf16", 0.02), ("fp16", 3e-3)):
                    out = self.train(self.job(batch=5, micro=2, compute=compute, batch_={"weighting": weighting}), tokens, ranks)
                    self.assertEqual((out.steps[0]["weight"], out.steps[0]["micro_batches"]), (6, 3))
                    self.assert_close(out.column("loss"), [loss], ratio)

    def test_every_split_makes_the_same_step(self):
        """Random tokens, masks by value, by document and by file at once; one AdamW step, M = 5 and 3 and N = 1, 2, 4."""
        tokens = toys.tokens(81, vocab=16, seed=4)
        random = numpy.random.default_rng(5)
        self.write("random", bytes(random.integers(0, 2, 81, dtype=numpy.uint8)))
        found = []
        for ranks, micro in ((1, 5), (1, 1), (2, 2), (4, 1)):
            job = gpt(vocab=16, batch=5, micro=micro, epochs=2, lr=0.01, optimizer="adamw")
            job["data"].update(mask={"train": "random", "values": [3, 7]}, document_ends=[1, 9])
            found.append(self.train(job, tokens, ranks))
        for out in found[1:]:
            self.assertEqual(out.column("weight"), found[0].column("weight"))
            self.assert_close(out.column("loss"), found[0].column("loss"), 1e-5)
            self.assert_close(out.column("grad_norm"), found[0].column("grad_norm"), 1e-4)
        self.assertLess(sum(found[0].column("weight")), 2 * 80 / 2)

    def test_a_mask_that_does_not_fit_is_refused(self):
        tokens = bytes([0, 2, 1, 3] * 5 + [0])
        job = self.job()
        for mask, status, words in ((self.MASK[:-1], 65, "20 bytes"), (self.MASK[:-1] + b"\2", 65, "byte 20 is 2")):
            self.write("data", tokens)
            job["data"]["train"] = "data"
            self.write("mask", mask)
            done = self.run_job(job, 0)
            self.assertEqual((done.status, len(done.own_lines())), (status, 1), done.err)
            self.assertIn(words, done.err)
        self.write("mask", bytes(21))
        self.train(job, tokens, expect=65)  # an epoch without any weight


class Mixture(toys.Training):
    """Two files of rows, each of which pushes a weight of its own."""

    def files(self, *counts):
        row = 0
        for number, count in enumerate(counts):
            lines = [",".join(f"g{i}" for i in range(sum(counts)))]
            for _ in range(count):
                lines.append(",".join(str(int(i == row)) for i in range(sum(counts))))
                row += 1
            self.write(f"part{number}", "\n".join(lines) + "\n")
        return [f"part{number}" for number in range(len(counts))]

    def test_files_are_read_in_their_parts_whatever_the_split(self):
        """Files of 4 and 12 rows in halves of an epoch of 16: in three epochs the rows of the first are read six times each, those
        of the second twice; the order does not depend on the split."""
        files = self.files(4, 12)
        found = []

        def job(micro=1, epochs=3, seed=1):
            return tape(
                16 * [0], batch=6, micro=micro, lr=1, compute="fp64", epochs=epochs, batch_={"weighting": "sum"},
                data={"order": "shuffled", "train": files, "mix": [1, 1]}, job_={"seed": seed},
            )

        for ranks, micro in ((1, 6), (1, 4), (2, 2), (3, 1), (4, 1)):
            out = self.train(job(micro), b"", ranks)
            self.assertEqual(out.header["train_sequences"], 16)
            self.assertEqual((-out.weight).tolist(), 4 * [6] + 12 * [2])
            found.append(out.column("grad_norm"))
        for norms in found[1:]:
            self.assertEqual(norms, found[0])
        self.assertNotEqual(self.train(job(seed=2), b"").column("grad_norm"), found[0])
        one = self.train(job(epochs=1), b"")
        self.assertEqual(sum(-one.weight[:4]), 8)
        self.assertEqual(one.column("grad_norm"), found[0][:3])

    def test_mixtures_that_cannot_be_are_refused(self):
        files = self.files(1, 3)
        base = lambda **data: tape(4 * [0], data={"train": files, **data})
        for data, status, words in (
            ({"mix": [1]}, 78, "1 number for the 2 files of data.train"),
            ({"mix": [1, 0]}, 78, "data.mix"),
            ({"mix": [1, 1], "validation": 0.5}, 78, "name files to validate with"),
            ({"mix": [1, 9]}, 78, "part0 would not be read"),
        ):
            done = self.run_job(base(**data), 0)
            self.assertEqual((done.status, len(done.own_lines())), (status, 1), done.err)
            self.assertIn(words, done.err)


if __name__ == "__main__":
    harness.main()
