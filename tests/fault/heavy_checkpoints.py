"""The sweeps of test_disk.py and test_kills.py at full length: every call of a whole job's saves on one rank and on two, every error
at each of them, and 300 kills (GACC_KILLS=2000 for more, GACC_SEED for others)."""
import os

os.environ.setdefault("GACC_KILLS", "300")
os.environ["GACC_HEAVY"] = "1"

import harness  # noqa: E402
from test_disk import Disk  # noqa: E402, F401
from test_kills import Kills  # noqa: E402, F401

if __name__ == "__main__":
    harness.main()
