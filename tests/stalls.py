"""Processes that stand still for a moment, and go on as if nothing had been."""

import contextlib
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from serving import Listening


@contextlib.contextmanager
def stopped(process: Listening) -> Iterator[None]:
    """Within the block the process does not run (SIGSTOP): it has stopped when the block begins."""
    pid = process.process.pid
    process.process.send_signal(signal.SIGSTOP)
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            select.select([], [], [], 0.001)
        yield
    finally:
        process.process.send_signal(signal.SIGCONT)


def pass_time(seconds: float) -> None:
    """Lets so much time pass. For how long something stands still, not to wait for anything."""
    select.select([], [], [], seconds)
