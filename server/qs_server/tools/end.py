"""An end of a queue's directory, whatever its layout: pump puts payloads in, sink takes them out.

Each wait is at most as long as its caller says, so that the caller sees Ctrl-C in between.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Taken(NamedTuple):
    """A message that no other consumer can take. order: sorts as the messages were stored."""

    name: str
    order: str
    payload: bytes


class End(Protocol):
    """The methods that pump and sink need of each layout."""

    def put(self, payload: bytes, seconds: float) -> bool:
        """Stores a message. False when the queue was full for all the seconds. OSError; StorageError."""

    def take(self, seconds: float) -> Taken | None:
        """Takes the oldest message that nobody has; None when there was none for all the seconds, 0: does not wait."""

    def remove(self, taken: Taken) -> None:
        """Removes a message, which may be gone already."""

    def give_back(self, taken: Taken) -> None:
        """Lets other consumers have a message, as far as the layout allows it."""

    def close(self) -> None:
        """Closes what is open."""


OpenEnd = Callable[..., End]
"""Opens the end of a directory: see `ends.open_end`."""
