"""The part of the log that queues use; `Log` implements it. With it, queues need to know nothing of files."""

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
    """The log, as the parts that append records see it. For all errors and arguments see `Log`."""

    directory: str
    number: int
    """The number of the last segment."""
    left_to_pushes: int
    """Bytes of records, heads included, that pushes can append without `reserve`."""
    unwritten: dict[int, bytes]
    """Payloads of `append` that are in no segment yet, by their places."""
    failed: OSError | None
    """The error after which the log accepts nothing, else None."""
    tight: bool
    """True if the disk was full at the last request for a segment."""
    commit_batch: Callable[[], None]
    """Commits the batch so far; called before a new segment begins in the middle of a batch."""

    @property
    def segments(self) -> Segments: ...

    @property
    def position(self) -> Position:
        """The position of the next frame. RuntimeError before the first write since the start."""

    def reserve(self, size: int, *, push: bool = False, copy: bool = False) -> None:
        """Makes sure that records of `size` bytes, heads included, fit into the next frame. OSError."""

    def append(self, body: bytes, payload: bytes | None = None) -> int:
        """Adds a record to the next frame, in reserved room. Returns its place."""

    def append_all(
        self, bodies: Sequence[bytes], payloads: Sequence[bytes], sizes: Sequence[int], beside: int
    ) -> list[int]:
        """Adds records to the next frame, in reserved room. Returns their places. sizes: bytes of the payloads; beside:
        bytes of each record without its payload."""

    def name(self, body: bytes) -> None:
        """Adds a record that later ones need: it is written even after `discard`."""

    def note(self, body: bytes) -> None:
        """Adds a record that need not be durable, if there is room."""

    def note_all(self, bodies: Sequence[bytes]) -> None:
        """Adds records as `note` does, all or none."""

    def commit(self, *, notes: bool = False) -> None:
        """Writes the appended records as one frame. OSError: none of them counts."""

    def discard(self) -> None:
        """Drops the records appended since the last commit."""

    def background_sync(self) -> Callable[[], None] | None:
        """Returns a function that makes all commits so far durable, to call in any thread; None if they are."""

    def drop(self, number: int) -> None:
        """Gives up a segment that is not the last and in which nothing is needed. OSError."""

    def close(self) -> None:
        """Closes the files."""


class Moving(Protocol):
    """The move of one message: see `transfers.Move`."""

    size: int
    """Bytes of log that the move takes."""

    def make(self, now: int, /) -> int: ...
