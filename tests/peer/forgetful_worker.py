"""A linear worker that leaves out the reduction of step 3."""
import sys

from linear_worker import Linear
from worker import Rank


class Forgetful(Rank):
    def reduce(self):
        return 0 if self.at == 3 else super().reduce()


if __name__ == "__main__":
    sys.exit(Forgetful(Linear).main())
