"""The interface between a queue and the directory of its messages, for every layout."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .engine import Origin
from .index.message_index import Index
from .message_state import MessageState


class MessageStore(Protocol):
    """The messages in one directory, and their index. Methods may raise OSError.

    Other processes change the directory at any time. A method returns False or None if a message is no longer as it
    has to be, and has updated the index by then. Call methods that change a message within `exclusive`, with the state
    that it gave."""

    index: Index
    in_place: Callable[[], bool]
    """Tells whether the directory is still the one that was opened."""

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""

    def pushed_at(self, mid: int, /) -> int:
        """Returns when a message was pushed, from its id: microseconds since the Epoch."""

    def last_at(self, time: int, /) -> int:
        """Returns the greatest id of a message that was pushed at that time or before."""

    def number(self, time: int, /) -> int:
        """Returns a time as a number of the layout."""

    def time(self, number: int, /) -> int:
        """Returns a number of the layout as a time."""

    def load(self, mid: int, /) -> bool:
        """Adds to the index what a listing does not tell of a message. Returns False if it is gone."""

    def look(self, mid: int) -> MessageState | None:
        """Reads the current state of a message; None if it is gone."""

    def is_current(self, mid: int, state: MessageState) -> bool:
        """Tells whether the message still exists and is in that state."""

    def exclusive(self, mid: int, *, removing: bool = False) -> AbstractContextManager[MessageState | None]:
        """Keeps other qs servers from changing a message in the with block, if the layout can. Gives its current state;
        None if it is gone. removing: the message will be removed, so its receives may be -1 if the disk cannot tell."""

    def read(self, mid: int, hidden: int, max_bytes: int | None = None) -> bytes | None:
        """Reads the payload of a message. hidden: the state it has to have. None if it is not in that state or over
        max_bytes."""

    def hide(self, mid: int, state: MessageState, wanted: MessageState, *, durable: bool = True) -> bool:
        """Hides a message, or changes until when it is hidden. durable: whether the next commit covers it. Returns
        False if another process was faster."""

    def show(self, mid: int, state: MessageState, receives: int) -> bool:
        """Makes a hidden message ready. receives: how often it has been received then; 0: it is new. Returns False if
        another process was faster."""

    def remove(self, mid: int, state: MessageState) -> bool:
        """Removes a message. Returns False if another process was faster."""

    def path_of(self, mid: int, /) -> str:
        """Returns the path of a message according to the index."""

    def arrived(self) -> None:
        """Announces that there may be visible messages."""

    def saw(self, mid: int, /) -> None:
        """Makes the next ids greater than this one."""

    def due(self, now: int) -> int | None:
        """Returns a hidden message whose time is over, None if there is none. now: a number of the layout."""

    def next_expiry(self) -> int | None:
        """Returns the time at which `due` will return a message; None: never."""

    def commit(self) -> None:
        """Makes all changes durable."""


class MessageMover(Protocol):
    """Moves messages to other directories of the layout, each by one rename. Methods may raise OSError. Call those that
    take a state as the methods of MessageStore that do."""

    @property
    def origins(self) -> Mapping[int, Origin]:
        """The origins of the dead letters, of those that are loaded."""

    def letters(self, mids: Collection[int], count: int) -> list[tuple[int, Origin]]:
        """Returns dead letters and their origins, oldest first, at most count. mids: only these; empty: all."""

    def move(self, mid: int, state: MessageState, target: Any, origin: Origin | None) -> int | None:
        """Moves a message to the directory of another mover, visible and never received, with a new id at the end.
        origin: what it was if it becomes a dead letter. Returns its new id; None if another process was faster.
        QueueFullError, NoSuchQueueError: nothing has changed, as with OSError."""


class DirectoryWatch(Protocol):
    """Updates the index with what other processes do in the directory."""

    @property
    def watched(self) -> bool:
        """True if changes by other processes are reported. If not, `rescan` has to be called."""

    def rescan(self) -> None:
        """Lists the directory anew. OSError."""

    def unwatch(self) -> None:
        """Stops the reports."""
