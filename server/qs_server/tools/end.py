"""An end of a queue's directory, whatever its layout: pump puts payloads in, sink takes them out.

Waits are short, so that the caller sees Ctrl-C in between.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol


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
