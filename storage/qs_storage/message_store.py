"""The interfaces between a queue and its directory, for every layout."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .engine import Origin
from .index.message_index import Index
from .message_state import MessageState


class MessageStore(Protocol):
    """The messages in one directory, and their index. Methods may raise OSError.

    Other processes change the directory at any time: a method returns False or None if a message is not as it has to
    be, and has updated the index. Call changes within `exclusive`, with the state that it gave.
    """

    index: Index
    in_place: Callable[[], bool]
    """Tells whether the directory is still the one that was opened."""

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""

    def pushed_at(self, mid: int, /) -> int:
        """Returns the time in an id: microseconds since the Epoch."""

    def last_at(self, time: int, /) -> int:
        """Returns the greatest id of that time."""

    def number(self, time: int, /) -> int:
        """Converts a time to a number of the layout."""

    def time(self, number: int, /) -> int:
        """Converts a number of the layout to a time."""

    def load(self, mid: int, /) -> bool:
        """Loads into the index what a listing does not tell. False if the message is gone."""

    def look(self, mid: int) -> MessageState | None:
        """Reads a message's state; None if it is gone."""

    def is_current(self, mid: int, state: MessageState) -> bool:
        """Tells whether the message is still in that state."""

    def exclusive(self, mid: int, *, removing: bool = False) -> AbstractContextManager[MessageState | None]:
        """Keeps other servers of ours from changing a message, if the layout can. Gives its state, None if it is
        gone. removing: then receives may be -1, for unknown."""

    def read(self, mid: int, hidden: int, max_bytes: int | None = None) -> bytes | None:
        """Reads a payload. hidden: the state it has to have. None in another state, or over max_bytes."""

    def hide(self, mid: int, state: MessageState, wanted: MessageState, *, durable: bool = True) -> bool:
        """Hides a message, or changes until when. durable: with the next commit. False if another was faster."""

    def show(self, mid: int, state: MessageState, receives: int) -> bool:
        """Makes a hidden message ready. receives: its new count, 0: it is new. False if another process was faster."""

    def remove(self, mid: int, state: MessageState) -> bool:
        """Returns False if another process was faster."""

    def path_of(self, mid: int, /) -> str:
        """Returns a message's path by the index."""

    def arrived(self) -> None:
        """Announces that there may be visible messages."""

    def saw(self, mid: int, /) -> None:
        """Makes the next ids greater than this one."""

    def due(self, now: int) -> int | None:
        """Returns a hidden message whose time is over, or None. now: a number of the layout."""

    def next_expiry(self) -> int | None:
        """Returns when `due` has a message; None: never."""

    def commit(self) -> None:
        """Makes all changes durable."""


class MessageMover(Protocol):
    """Moves messages to directories of the layout, each by one rename, with what they say about their past. OSError.
    Call it like MessageStore's changes."""

    @property
    def origins(self) -> Mapping[int, Origin]:
        """Those of the loaded dead letters, by id."""

    @property
    def reasons(self) -> Mapping[int, str]:
        """Why messages were given back, of the loaded ones that say it, by id."""

    def write_reason(self, mid: int, state: MessageState, reason: str) -> None:
        """Writes why a message is about to be given back. reason: empty to remove it."""

    def letters(self, mids: Collection[int], count: int) -> list[tuple[int, Origin]]:
        """Returns at most count dead letters, oldest first. mids: only these; empty: all."""

    def move(self, mid: int, state: MessageState, target: Any, origin: Origin | None) -> int | None:
        """Moves a message to the end of another mover's directory, visible and never received. origin: if it becomes
        a dead letter. Returns its new id; None if another process was faster. QueueFullError, NoSuchQueueError."""


class DirectoryWatch(Protocol):
    """Updates the index with other processes' changes."""

    @property
    def watched(self) -> bool:
        """False: nothing is reported, so `rescan` has to be called."""

    def rescan(self) -> None:
        """Lists the directory. OSError."""

    def unwatch(self) -> None:
        """Stops the reports."""
