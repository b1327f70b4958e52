"""A11: the global batch grows by whole micro-batches from a first size to its own, on all ranks at one step; W is what a step holds."""
import harness
import toys
from toys import tape

INF = float("inf")


def ramp(start, steps, batch, micro=1):
    return {"global": batch, "micro": micro, "ramp": {"from": start, "steps": steps}}


class Ramp(toys.Training):
    def test_m_and_the_divisor_grow_together(self):
        """2 → 8 in 3 applied steps, of which a step that is planned one ahead knows 0, 0, 1, 2, 3: B = 2, 2, 4, 6, 8. Each
        step's gradient is the mean of its rows, 0…21 in turn: ½, 2½, 5½, 10½, 17½; lr 1 throughout."""
        for ranks in (1, 2):
            out = self.train(tape(steps=5, batch_=ramp(2, 3, 8)), list(range(22)), ranks)
            self.assertEqual(out.column("weight"), [2, 2, 4, 6, 8])
            self.assert_close(out.column("grad_norm"), [0.5, 2.5, 5.5, 10.5, 17.5])
            self.assert_close(out.weight, [-36.5])
            self.assertEqual(out.column("lr"), 5 * [1])
            self.assertEqual(out.column("accumulate"), [[m // ranks] * ranks for m in (2, 2, 4, 6, 8)])
            self.assertEqual(out.column("tokens_seen"), [2, 4, 8, 14, 22])
            self.assertEqual((out.header["effective_batch"], out.header["tokens_per_step"]), (8, 8))

    def test_it_grows_by_whole_micro_batches(self):
        """3 → 10 over 7 with b = 2: 3, 3, then 4, 5, 6, 7, 8, 9, 10 as wholes of what is added: 3 3 3 5 5 7 7 9 10."""
        out = self.train(tape(steps=9, batch_=ramp(3, 7, 10, 2)), list(range(60)))
        self.assertEqual(out.column("weight"), [3, 3, 3, 5, 5, 7, 7, 9, 10])

    def test_a_skip_does_not_move_it(self):
        """Attempt 2 overflows: the steps planned behind it know as many applied ones as before."""
        out = self.train(tape(steps=5, compute="fp16", scale=4, batch_=ramp(1, 2, 3)), [1, INF, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])
        self.assertEqual((out.verdicts(), out.column("weight")), ("ASAAAA", [1, 1, 2, 2, 3, 3]))

    def test_linear_scaling_is_by_the_batch_it_grows_to(self):
        """A8: lr 1 for a base of 4 is 2 at 8, from the first step on."""
        batch = {**ramp(2, 3, 8), "lr_scaling": "linear", "base": 4}
        out = self.train(tape(steps=3, batch_=batch), list(range(30)))
        self.assertEqual(out.column("lr"), [2, 2, 2])

    def test_an_epochs_rest_is_as_short_as_it_is(self):
        """7 rows: 2, 2, and 3 of the 4 that were due; the next epoch goes on with 6."""
        out = self.train(tape(steps=4, batch_=ramp(2, 3, 6)), [1, 1, 3, 3, 5, 5, 5])
        self.assertEqual((out.column("weight"), out.column("grad_norm")), ([2, 2, 3, 4], [1, 3, 5, 2]))

    def test_what_cannot_be_is_refused(self):
        for batch, steps, ranks, words in (
            (ramp(8, 3, 8), 5, 0, "batch.ramp.from: 8 is not below batch.global 8"),
            ({"global": 8, "micro": 1, "ramp": {"from": 2}}, 5, 0, "batch.ramp.steps: is missing"),
            ({"global": 8, "micro": 1, "ramp": {"steps": 2}}, 5, 0, "batch.ramp.from: is missing"),
            (ramp(2, 3, 8), None, 0, "batch.ramp: the job must be one by job.steps"),
            (ramp(2, 3, 8, 2), 5, 2, "batch.ramp.from: 2 makes 1 micro-batch, fewer than 2 ranks: 3 would do"),
        ):
            job = tape(steps=steps, batch_=batch)
            self.write("data", toys.csv_text(job, [1, 2]))
            job["data"]["train"] = "data"
            done = self.run_job(job, ranks=ranks)
            self.assertEqual(done.status, 78, done.err)
            self.assertIn(words, done.own_lines()[0])


if __name__ == "__main__":
    harness.main()
