"""A bit flips in one rank's parameters: control.self_check names the rank and the step (case 12-4)."""
import re
import struct
import time

import faults
import harness
import toys

VALUES = [1 + i / 64 for i in range(64)]  # what no other memory holds in a row


def find(pid, wanted):
    """Addresses in the writable memory of a process that it shares with no other."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            begin, end, rights = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            begin, end = int(begin, 16), int(end, 16)
            if rights != "rw-p" or end - begin > 1 << 28:
                continue
            try:
                memory.seek(begin)
                block = memory.read(end - begin)
            except OSError:
                continue
            at = block.find(wanted)
            while at >= 0:
                found.append(begin + at)
                at = block.find(wanted, at + 1)
    return found


class SelfCheck(faults.Faults):
    def job(self, every, **keys):
        job = toys.tape(VALUES, batch=8, micro=1, lr=0, control={"self_check": every}, **keys)
        job["data"]["train"] = "rows"
        self.write("rows", toys.csv_text(job, 64 * [(1, *(64 * [1]))]))
        return job

    def test_a_flipped_bit_is_reported_with_rank_and_step(self):
        """The upper half is rank 1's own, the lower one a copy of rank 0's: rank 1's memory changes there, rank 0 goes on.

        The gather of every step mends the copy, so the bit is flipped again and again; ten steps more and one is seen.
        """
        for every, odd in ((1, 1), (10, 1), (10, 2)):
            ranks = odd + 1
            job = self.start(self.job(every, steps=faults.FOREVER), ranks, output=f"run{every}-{ranks}").until_step(20)
            pid = job.ranks()[odd]
            start = struct.pack("<16f", *VALUES[:16])
            places = find(pid, start)
            self.assertTrue(places)
            step = job.log("step")[-1]["step"]
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                end = time.monotonic() + 20
                while job.process.poll() is None and time.monotonic() < end:
                    for place in places:
                        memory.seek(place)
                        try:
                            memory.write(struct.pack("<f", -1))
                        except OSError:
                            break
            done = job.wait()
            self.assertEqual(done.status, 70, done.err)
            found = re.fullmatch(
                rf"gaccd: rank {odd}: step (\d+): (the parameters differ from those of rank 0 \(control\.self_check\)"
                r"|tensor weight changed inside the accumulation window)",
                done.own_lines()[0],
            )
            self.assertTrue(found, done.err)
            self.assertGreater(int(found[1]), step)
            self.assertEqual(int(found[1]) % every, 0)

    def test_ranks_that_agree_go_on(self):
        """Skips, empty steps and a shard of nothing included; the log is as without it, and no collective is called for it."""
        rows = 4 * [(1, 1, 2, 3)] + 3 * [(1, 1, 2, 3)] + [(1, float("inf"), 2, 3)] + 4 * [(0, 1, 2, 3)] + 4 * [(1, 1, 2, 3)]
        logs = []
        for every in (0, 1, 10):
            job = toys.tape([1, 2, 3], batch=4, epochs=12, compute="fp16", scale=8, control={"self_check": every})
            job["data"]["train"] = "rows"
            self.write("rows", toys.csv_text(job, rows))
            done = self.run_job(job, 4, output=f"run{every}")
            self.assertEqual((done.status, done.own_lines()), (0, []), done.err)
            logs.append([{**step, "seconds": None} for step in self.log("step", f"run{every}")])
        self.assertEqual(logs[0], logs[1])
        self.assertEqual(logs[0], logs[2])
        self.assertEqual({step["verdict"] for step in logs[0]}, {"apply", "skip", "empty"})


if __name__ == "__main__":
    harness.main()
