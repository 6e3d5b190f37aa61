"""Counts how often processes wake up, which tells a process that waits from one that polls."""

import subprocess
import sys
import time
from pathlib import Path


def wakeups(pid: int) -> int:
    """Returns how often the threads of a process have gone to sleep of their own accord: once for each time they woke
    up."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        count += next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return count


def polling(seconds: float) -> subprocess.Popen[bytes]:
    """A process that wakes up again and again. It has begun when this returns."""
    program = f"import time; print(flush=True)\nwhile True: time.sleep({seconds})"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def settled(*pids: int, seconds: float = 0.4, tries: int = 25) -> None:
    """Waits until they have finished what they were at: none of them has woken up for so long. RuntimeError when that
    does not come, as with something that polls more often."""
    for _ in range(tries):
        if not any(woken(seconds, *pids)):
            return
    raise RuntimeError(f"processes {pids} do not come to rest")


def woken(seconds: float, *pids: int) -> list[int]:
    """Returns how often each of them wakes up in so many seconds."""
    before = [wakeups(pid) for pid in pids]
    time.sleep(seconds)
    return [wakeups(pid) - count for pid, count in zip(pids, before, strict=True)]
