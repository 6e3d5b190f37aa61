"""Processes that stand still for a moment, and go on as if nothing had been."""

import contextlib
import select
import signal
from collections.abc import Iterator

from support.serving import Listening


@contextlib.contextmanager
def stopped(process: Listening) -> Iterator[None]:
    """Within the block the process does not run (SIGSTOP): it has stopped when the block begins."""
    process.process.send_signal(signal.SIGSTOP)
    try:
        process.process.until_stopped()
        yield
    finally:
        process.process.send_signal(signal.SIGCONT)


def pass_time(seconds: float) -> None:
    """Lets so much time pass. For how long something stands still, not to wait for anything."""
    select.select([], [], [], seconds)
