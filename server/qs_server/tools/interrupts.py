"""Notes Ctrl-C and SIGTERM instead of raising them, so that a message in hand is finished."""

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Notes signals within a with statement, on the main thread. `caught`: the signal that came, 0 for none. A second
    one raises KeyboardInterrupt at once."""

    def __init__(self) -> None:
        self.caught = 0
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def __enter__(self) -> "Interrupts":
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell has its background jobs ignore Ctrl-C
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.caught:
            raise KeyboardInterrupt
        self.caught = number

    @property
    def exit_code(self) -> int:
        """The exit code by which a shell tells the signal: 130 for Ctrl-C."""
        return 128 + self.caught

    def wait(self, seconds: float, descriptor: int | None = None) -> bool:
        """Waits until the descriptor can be read (returns True), the seconds are over, or a signal has come."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        ready = [found for found, _ in poll.poll(max(seconds, 0) * 1000)]
        return descriptor in ready and not self.caught
