"""The part of the log that queues, and all that is theirs, use. `Log` implements it.

With this, whatever works on queues knows neither segments nor files, and can be read without them.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from .absent_record import Run
from .links import Links
from .places import Position


class Segments(Protocol):
    """The segments of the log: see `SegmentList`."""

    @property
    def sizes(self) -> dict[int, int]: ...
    @property
    def size(self) -> int: ...
    @property
    def absent(self) -> tuple[Run, ...]: ...
    @property
    def changes(self) -> int: ...
    @property
    def links(self) -> Links: ...
    @property
    def oldest(self) -> int | None: ...
    @property
    def newest(self) -> int | None: ...
    def salt_of(self, number: int, /) -> bytes: ...
    def path_of(self, number: int, /) -> str: ...
    def frame_after(self, number: int, /) -> int | None: ...


class RecordLog(Protocol):
    """The log as those see it who append records to it."""

    directory: str
    number: int
    """The number of the last segment."""
    left_to_pushes: int
    """Bytes of records, heads included, that pushes can append without `reserve`."""
    unwritten: dict[int, bytes]
    """Payloads that were appended one by one and are in no segment yet, by their places."""
    failed: OSError | None
    """Why it takes nothing any more; None: it does."""
    tight: bool
    """True if the disk was full when it was last asked for another segment."""
    commit_batch: Callable[[], None]
    """Commits what is being made; is called before a new segment is begun in the middle of a batch."""

    @property
    def segments(self) -> Segments: ...

    @property
    def position(self) -> Position:
        """Where the next frame goes. Valid once something was written since the start."""

    def reserve(self, size: int, *, push: bool = False, copy: bool = False) -> None:
        """Makes sure that records of that many bytes, heads included, can be appended to one frame. OSError."""

    def append(self, body: bytes, payload: bytes | None = None) -> int:
        """Adds a record to the next frame. Returns its place."""

    def append_all(
        self, bodies: Sequence[bytes], payloads: Sequence[bytes], sizes: Sequence[int], beside: int
    ) -> list[int]:
        """Adds records with payloads of these sizes. beside: bytes that each record takes beside its payload. Returns
        their places."""

    def name(self, body: bytes) -> None:
        """Adds a record that later ones cannot do without."""

    def note(self, body: bytes) -> None:
        """Adds a record that need not be durable."""

    def note_all(self, bodies: Sequence[bytes]) -> None:
        """Adds records as `note` does, all or none."""

    def commit(self, *, notes: bool = False) -> None:
        """Writes what was appended as one frame. OSError: none of it counts."""

    def discard(self) -> None:
        """Forgets what was appended since the last commit."""

    def background_sync(self) -> Callable[[], None] | None:
        """Returns what makes durable all that was committed so far, in any thread; None when that is so already."""

    def drop(self, number: int) -> None:
        """Gives up a segment but the last: nothing in it is needed. OSError."""

    def close(self) -> None:
        """Closes the files."""


class Moving(Protocol):
    """A move of one message that can be made: see `transfers.Move`."""

    size: int
    """Bytes of log that it takes."""

    def make(self, now: int, /) -> int: ...
