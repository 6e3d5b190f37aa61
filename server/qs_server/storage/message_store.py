"""The interface between a queue and the directory of its messages, for every layout."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from .index.message_index import Index
from .message_state import MessageState


class MessageStore(Protocol):
    """The messages in one directory, and their index. Methods may raise OSError.

    Other processes change the directory at any time. What cannot be done any more returns False or None, and by then
    the index says how it is. What changes a message is called in `exclusive`, with the state that it gave."""

    index: Index
    in_place: Callable[[], bool]
    """Tells whether the directory is still the one that was opened."""

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen, -1: none."""

    def pushed_at(self, mid: int, /) -> int:
        """Returns when a message was pushed, from its id: microseconds since the Epoch."""

    def number(self, time: int, /) -> int:
        """Returns a time as a number of the layout."""

    def time(self, number: int, /) -> int:
        """Returns a number of the layout as a time."""

    def load(self, mid: int, /) -> bool:
        """Has the index know what a listing does not say of a message. False when it is gone."""

    def look(self, mid: int) -> MessageState | None:
        """Returns how a message is now; None when it is gone."""

    def is_current(self, mid: int, state: MessageState) -> bool:
        """Tells whether that is how the message is, and not gone before all of it was read."""

    def exclusive(self, mid: int, *, removing: bool = False) -> AbstractContextManager[MessageState | None]:
        """Keeps other servers of ours from changing a message in the with block, if the layout can. Gives how it is
        now; None when it is gone. removing: it is not going to be changed but removed; then its receives are -1 where
        the disk does not say, which is no reason to fail."""

    def read(self, mid: int, hidden: int, max_bytes: int | None = None) -> bytes | None:
        """Reads the payload of a message that is in that state. None: it is over max_bytes, or not in that state."""

    def hide(self, mid: int, state: MessageState, wanted: MessageState, *, durable: bool = True) -> bool:
        """Hides a message, or moves the end of that. durable: whether the next commit covers it. False when another
        process was faster."""

    def show(self, mid: int, state: MessageState) -> bool:
        """Makes a hidden message ready. False when another process was faster."""

    def remove(self, mid: int, state: MessageState) -> bool:
        """Removes a message. False when another process was faster."""

    def path_of(self, mid: int, /) -> str:
        """Returns the path of a message, as far as the index knows."""

    def arrived(self) -> None:
        """Announces that there may be visible messages."""

    def saw(self, mid: int, /) -> None:
        """Has our next ids be greater than this one."""

    def due(self, now: int) -> int | None:
        """Returns a hidden message whose time has come. now: a number of the layout."""

    def next_expiry(self) -> int | None:
        """Returns the time at which `due` has something; None: never."""

    def commit(self) -> None:
        """Makes durable what has changed."""


class DirectoryWatch(Protocol):
    """Keeps the index in step with what others do."""

    @property
    def watched(self) -> bool:
        """Whether what others do is reported. If not, `rescan` has to be called."""

    def rescan(self) -> None:
        """Lists the directory anew. OSError."""

    def unwatch(self) -> None:
        """Takes no more reports."""
