"""Stops a process where it enters a function, by ptrace: x86-64, same user. Enough to hold or kill it in a state of the step machine."""
import ctypes
import os
import platform
import signal
import subprocess
import time

PEEKTEXT, POKETEXT, CONT, SINGLESTEP, GETREGS, SETREGS, DETACH, SEIZE, INTERRUPT = 1, 4, 7, 9, 12, 13, 17, 0x4206, 0x4207
REGISTERS = ("r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs "
             "gs").split()
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long


class Registers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in REGISTERS]


def call(request, pid, address=0, data=0):
    ctypes.set_errno(0)
    result = LIBC.ptrace(request, pid, address, data)
    if ctypes.get_errno():
        raise OSError(ctypes.get_errno(), "ptrace")
    return result


def unusable():
    """Why it cannot be used here; None if it can."""
    if platform.machine() != "x86_64":
        return "breakpoints are for x86-64"
    child = subprocess.Popen(["sleep", "10"])
    try:
        call(SEIZE, child.pid)
        return None
    except OSError as error:
        return f"ptrace is not allowed: {error}"
    finally:
        child.kill()
        child.wait()


def symbol(program, name):
    for line in subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if words[-1] == name:
            return int(words[0], 16)
    raise AssertionError(f"{program} has no {name}")


def base(pid, program):
    """Where it lies in memory; a process that has just begun may not be there yet."""
    for _ in range(500):
        with open(f"/proc/{pid}/maps") as maps:
            for line in maps:
                if line.rstrip().endswith(os.path.realpath(program)):
                    return int(line.split("-")[0], 16)
        time.sleep(0.01)
    raise AssertionError(f"{program} is not in process {pid}")


class Breakpoint:
    """On the first thread of a process that others do not trace."""

    def __init__(self, pid, program, function):
        self.pid = pid
        self.at = base(pid, program) + symbol(program, function)
        call(SEIZE, pid)
        call(INTERRUPT, pid)
        self.wait()
        self.word = call(PEEKTEXT, pid, self.at)
        self.arm()

    def arm(self):
        call(POKETEXT, self.pid, self.at, self.word & ~0xFF | 0xCC)

    def wait(self):
        """The signal it has stopped with; None: it has ended."""
        _, status = os.waitpid(self.pid, 0x40000000)  # __WALL
        return os.WSTOPSIG(status) if os.WIFSTOPPED(status) else None

    def go_on(self, passed=0):
        call(CONT, self.pid, 0, passed)

    def hit(self):
        """Until it enters the function: its registers then. None: it has ended."""
        self.go_on()
        while True:
            stopped = self.wait()
            if stopped is None:
                return None
            registers = Registers()
            call(GETREGS, self.pid, 0, ctypes.addressof(registers))
            if stopped == signal.SIGTRAP and registers.rip == self.at + 1:
                return registers
            self.go_on(0 if stopped == signal.SIGTRAP else stopped)

    def hit_in(self, state):
        """The same, of a function whose third argument is this."""
        while (registers := self.hit()) is not None and registers.rdx != state:
            self.step_over(registers)
        return registers

    def disarm(self, registers):
        registers.rip = self.at
        call(SETREGS, self.pid, 0, ctypes.addressof(registers))
        call(POKETEXT, self.pid, self.at, self.word)

    def release(self, registers):
        """It goes on as if nobody had stopped it."""
        self.disarm(registers)
        call(DETACH, self.pid)

    def step_over(self, registers):
        self.disarm(registers)
        call(SINGLESTEP, self.pid)
        self.wait()
        self.arm()
