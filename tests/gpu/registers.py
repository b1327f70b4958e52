"""No kernel spills: what ptxas said of each, for each architecture, when the GPU backend was built.

registers.py FOLDER: the .messages files below it are those of kernels/cuda/keep_messages. One line for each architecture; a
kernel with a stack frame fails, unless it is one of those below.
"""

import pathlib
import re
import sys

# A frame here is around calls of fp64 logarithms and exponentials, once for each row.
ALLOWED = {"cross_entropy_kernelId": 64}

KERNEL = re.compile(
    r"Compiling entry function '(\w+)' for '(sm_\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers", re.S
)


def allowed(kernel):
    return max((size for name, size in ALLOWED.items() if name in kernel), default=0)


def main():
    text = "".join(path.read_text() for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.messages")))
    kernels = KERNEL.findall(text)
    if not kernels:
        sys.exit(f"{sys.argv[1]}: no kernels were compiled there")
    failures = [kernel for kernel in kernels if int(kernel[2]) > allowed(kernel[0])]
    for architecture in sorted({kernel[1] for kernel in kernels}):
        registers = [int(kernel[4]) for kernel in kernels if kernel[1] == architecture]
        print(f"{architecture}: {len(registers)} kernels, at most {max(registers)} registers")
    for name, architecture, frame, spilled, registers in failures:
        print(f"{name} for {architecture}: {frame} bytes of stack, {spilled} spilled, {registers} registers")
    sys.exit(1 if failures else 0)


main()
