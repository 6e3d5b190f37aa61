"""The interface of the log for the modules below it, which know nothing of files."""

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
    """The part of `Log` that queues use; see there."""

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
    def position(self) -> Position: ...

    def reserve(self, size: int, *, push: bool = False, copy: bool = False) -> None: ...

    def append(self, body: bytes, payload: bytes | None = None) -> int: ...

    def append_all(
        self, bodies: Sequence[bytes], payloads: Sequence[bytes], sizes: Sequence[int], beside: int
    ) -> list[int]: ...

    def name(self, body: bytes) -> None: ...

    def note(self, body: bytes) -> None: ...

    def note_all(self, bodies: Sequence[bytes]) -> None: ...

    def commit(self, *, notes: bool = False) -> None: ...

    def discard(self) -> None: ...

    def background_sync(self) -> Callable[[], None] | None: ...

    def drop(self, number: int) -> None: ...

    def close(self) -> None: ...


class Moving(Protocol):
    """The move of one message: see `transfers.Move`."""

    size: int
    """Bytes of log that the move takes."""

    def make(self, now: int, /) -> int: ...
