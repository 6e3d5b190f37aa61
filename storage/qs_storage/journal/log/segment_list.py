"""Lists the segments of a log, oldest first, and the obsolete files.

The log is a circle: only the oldest segment is ever given up. Each frame says which segment is the oldest that is
needed, so a segment is given up by the next frame, and its file may go when that frame is durable.
"""

from collections.abc import Iterable

from .frames import Header
from .places import segment_name


class SegmentList:
    """The segments of one log. Changes no files."""

    def __init__(self, directory: str) -> None:
        """directory: of the log."""
        self._directory = directory
        self.sizes: dict[int, int] = {}
        """Bytes of each segment, oldest first."""
        self.headers: dict[int, Header] = {}
        """Headers of the same segments."""
        self.size = self.largest = 0
        """Bytes of all segments, and of the largest one."""
        self.oldest: int | None = None
        """The number of the oldest segment, None without any."""
        self.changes = 0
        """Grows whenever a segment is begun or removed, or could not be begun."""
        self._obsolete: list[str] = []

    def restore(self, headers: Iterable[Header], obsolete: Iterable[str]) -> None:
        """Takes over the segments that a start has found. headers: of the needed ones, oldest first; obsolete: paths of
        the others."""
        for header in headers:
            self.add(header)
        self._obsolete = list(obsolete)

    def add(self, header: Header) -> None:
        """Adds the newest segment."""
        self.sizes[header.number], self.headers[header.number] = header.size, header
        self.size += header.size
        self.oldest = header.number if self.oldest is None else self.oldest
        self.largest = max(self.largest, header.size)
        self.changes += 1

    def salt_of(self, number: int) -> bytes:
        return self.headers[number].salt

    def path_of(self, number: int) -> str:
        return f"{self._directory}/{segment_name(number)}"

    def frame_after(self, number: int) -> int | None:
        """Returns the number of the first frame after a segment, None for the last one. A start has cut off frames in
        the segment with this number or a greater one."""
        following = self.headers.get(number + 1)
        return None if following is None else following.first

    @property
    def newest(self) -> int | None:
        return next(reversed(self.sizes), None)

    def remove_before(self, oldest: int) -> list[int]:
        """Makes the files of the segments before one obsolete. Returns their numbers. Call it once a frame that says so
        is written."""
        gone = [number for number in self.sizes if number < oldest]
        for number in gone:
            size = self.sizes.pop(number)
            self.size -= size
            if size == self.largest:
                self.largest = max(self.sizes.values(), default=0)
            del self.headers[number]
            self._obsolete.append(self.path_of(number))
            self.changes += 1
        self.oldest = next(iter(self.sizes), None)
        return gone

    # -- obsolete files -----------------------------------------------------------------------------------------------

    @property
    def has_garbage(self) -> bool:
        """True if there is an obsolete file."""
        return bool(self._obsolete)

    def take_garbage(self) -> list[str]:
        """Returns paths of obsolete files, oldest first, for the caller to remove in any thread."""
        garbage, self._obsolete = self._obsolete, []
        return garbage

    def give_back_garbage(self, paths: Iterable[str]) -> None:
        """Takes back files that could not be removed."""
        self._obsolete[:0] = paths
        self.changes += 1
