"""Checks payloads in processes of its own, for which any payload and any schema may be a hostile one."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .faults import UncheckedError
from .process import Process

if TYPE_CHECKING:
    from .faults import PayloadFault
    from .schemas import PayloadSchema

PROCESSES = 4
"""The most processes of a checker: so many checks are made at once, and others wait."""


class Checker:
    """Checks payloads in up to 4 processes, each started when it is needed. For any number of threads.

    A process that needs too long or too much memory for a check is ended, and another one is started for the next
    check. All end when this process does, however it ends.
    """

    def __init__(self, seconds: float = 2.0) -> None:
        """Starts nothing. seconds: of processor time that the payloads of a call may take together."""
        self._seconds = seconds
        self._slots = threading.BoundedSemaphore(PROCESSES)
        self._lock = threading.Lock()
        self._idle: list[Process] = []
        self._closed = False

    def check(
        self, schema: "PayloadSchema", payloads: Sequence[bytes], stop: threading.Event | None = None
    ) -> "tuple[int, PayloadFault] | None":
        """Checks payloads. Blocks. Returns the first fault and the index of its payload, None if all are valid.

        A payload that cannot be checked within the bounds has a fault that says so. stop: set when nobody waits for the
        check any more: one that has not begun is not made, so that others get its turn. Raises OSError if no process
        can be started, and UncheckedError if the check was not made.
        """
        with self._slots:
            if stop is not None and stop.is_set():
                raise UncheckedError("as nobody waits for the check any more")
            process = self._take()
            try:
                return process.check(schema.source, payloads, self._seconds)
            except BaseException:
                process.close()
                raise
            finally:
                self._give_back(process)

    def _take(self) -> Process:
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return Process()
            if process.is_usable:
                return process
            process.close()

    def _give_back(self, process: Process) -> None:
        with self._lock:
            if not self._closed and process.is_usable:
                self._idle.append(process)
                return
        process.close()

    def close(self) -> None:
        """Ends the processes: those that are idle now, others after their check."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process in idle:
            process.close()
