"""tests/peer/linear_worker.py as a rank that tells what it was invited with: the test that attacks its job knows the secret, too."""
import os
import sys

import linear_worker
import worker


class Telling(worker.Line):
    def __init__(self, invitation, states):
        path = os.environ["GACC_TOLD"]
        with open(path + ".tmp", "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(invitation.SerializeToString())
        os.rename(path + ".tmp", path)
        super().__init__(invitation, states)


worker.Line = Telling
sys.exit(worker.Rank(linear_worker.Linear).main())
