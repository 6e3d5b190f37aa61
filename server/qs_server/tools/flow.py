"""The part that `qs-dir pump` and `qs-dir sink` share. Signals are noted, so that a message in hand is finished.

Waits are short, so that the caller sees Ctrl-C in between.
"""

import os
import select
import signal
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, Protocol, Self

from qs_storage.engine import StorageError

from .bodies import DEFAULT, Body
from .layouts import DIRQ, VSQS, layout_of
from .meter import Meter, counted
from .output import UsageError, described

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
TICK = 0.2
"""Seconds of one wait, after which Ctrl-C is looked for."""


class Taken(NamedTuple):
    """A message that no other consumer can take. order: sorts by age."""

    name: str
    order: str
    payload: bytes


class End(Protocol):
    def put(self, payload: bytes, seconds: float) -> bool:
        """Returns False if the queue was full for so many seconds. OSError; StorageError."""

    def take(self, seconds: float) -> Taken | None:
        """Takes the oldest free message; None if there was none for so many seconds."""

    def remove(self, taken: Taken) -> None:
        """Removes a message, which may be gone already."""

    def give_back(self, taken: Taken) -> None:
        """Makes a message free again, if the layout can."""

    def close(self) -> None: ...


OpenEnd = Callable[..., End]
"""Opens the end of a directory: see `ends.open_end`."""

"""See `ends.open_end`."""


class Interrupts:
    """Notes signals in a with block on the main thread. caught: the signal, or 0. A second one interrupts."""

    def __init__(self) -> None:
        self.caught = 0
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[int, Any] = {}
        self._wakeup = -1

    def __enter__(self) -> Self:
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a shell has its background jobs ignore Ctrl-C
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *raised: object) -> None:
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
        """The code by which a shell tells the signal: 130 for Ctrl-C."""
        return 128 + self.caught

    def wait(self, seconds: float, descriptor: int | None = None) -> bool:
        """Waits until the descriptor is readable (True), so many seconds have passed, or a signal has come."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
        ready = [found for found, _ in poll.poll(max(seconds, 0) * 1000)]
        return descriptor in ready and not self.caught


def layout_for(arguments: Namespace, *, exists: bool) -> str:
    """Returns the layout, vsqs by default, and sets a missing --schema. UsageError for a schema with another layout."""
    layout = layout_of(arguments.directory, arguments.layout) if exists else arguments.layout
    if arguments.schema is not None and layout != DIRQ:
        raise UsageError(
            f"--schema is for the layout dirq; {arguments.directory} has {layout or 'none yet: give --layout dirq'}"
        )
    if arguments.schema is None:
        arguments.schema = Body(DEFAULT)
    return layout or VSQS


@contextmanager
def flow(
    directory: str, done: tuple[str, str], open_end: Callable[[], End], *, live: bool = True
) -> Iterator[tuple[End, Meter, Interrupts]]:
    """Opens an end, a meter and a watch for signals. An error in the with block is raised with the count of messages
    before it. done: as in `stored 5 messages` and `5 messages were stored before`; live: see Meter."""
    meter = Meter(done[0], live=live)
    with Interrupts() as interrupts:
        end = open_end()
        try:
            yield end, meter, interrupts
        except BrokenPipeError:
            meter.clear()
            raise
        except (OSError, StorageError, MemoryError) as error:
            meter.clear()
            before = f"{counted(meter.messages, 'message')} {'was' if meter.messages == 1 else 'were'} {done[1]} before"
            raise StorageError(f"{described(error, directory)}; {before}") from error
        finally:
            end.close()
