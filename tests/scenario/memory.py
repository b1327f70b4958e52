"""How much memory a process has taken."""
import ctypes
import re

import harness

# Huge pages round a process's memory up to 2 MB wherever an allocation happens to lie: not for what this starts.
PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


def peak(pid):
    """Bytes of anonymous memory at its highest: all memory but the pages of files and of shared memory."""
    kilobytes = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", harness.read_proc(pid, "status"), re.M)}
    return 1024 * (kilobytes["VmHWM"] - kilobytes["RssFile"] - kilobytes["RssShmem"])
