"""test_interop.py with PyPI's grpcio, whose HTTP/2 and Python layers are years newer than Debian's."""
import environment

environment.enter(*environment.GRPC)

import grpc  # noqa: E402

import harness  # noqa: E402
import test_interop  # noqa: E402


class Newest(test_interop.Interop):
    def test_this_is_not_debians(self):
        self.assertGreater(tuple(map(int, grpc.__version__.split(".")[:2])), (1, 70))


if __name__ == "__main__":
    harness.main()
