"""Ctrl-C and SIGTERM, noted and not raised: what is being done with a message is done to its end."""

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """In a with statement, on the main thread. `caught`: the signal that came, 0 when none has. A second one of them is
    raised at once, as KeyboardInterrupt: whoever is at it twice does not want to wait."""

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
        """As a shell counts the signal that came: 130 for Ctrl-C."""
        return 128 + self.caught

    def wait(self, seconds: float, descriptor: int | None = None) -> bool:
        """Until the descriptor can be read (then True), those seconds are over, or a signal has come."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        ready = [found for found, _ in poll.poll(max(seconds, 0) * 1000)]
        return descriptor in ready and not self.caught
