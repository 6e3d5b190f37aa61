"""Lists the segments of a log: those needed, those removed although older ones are needed, and the obsolete files."""

from collections.abc import Iterable

from . import records
from .absent_record import Absent, Run, frame_at, needed_from, with_segment
from .frames import Header
from .links import Links
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
        self.absent: tuple[Run, ...] = ()
        """Segments that were removed although older ones are needed."""
        self.links = Links()
        """The older segments that each segment's records are about."""
        self.changes = 0
        """Grows whenever a segment is begun, given up or removed, or could not be begun."""
        self._obsolete: list[str] = []

    def restore(self, headers: Iterable[Header], obsolete: Iterable[str], absent: tuple[Run, ...]) -> None:
        """Takes over the segments that a start has found. headers: of the needed ones, oldest first; obsolete: paths of
        the others; absent: see `absent`."""
        for header in headers:
            self.add(header)
        self._obsolete, self.absent = list(obsolete), absent
        self.links.keep(self.sizes)

    def add(self, header: Header) -> None:
        """Adds the newest segment."""
        self.sizes[header.number], self.headers[header.number] = header.size, header
        self.size += header.size
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
        return frame_at(self.absent, number + 1) if following is None else following.first

    @property
    def oldest(self) -> int | None:
        return next(iter(self.sizes), None)

    @property
    def newest(self) -> int | None:
        return next(reversed(self.sizes), None)

    def first_records(self) -> list[bytes]:
        """Returns the record of removed segments with which a new segment begins, if there are any."""
        return [Absent(self.absent).body()] if self.absent else []

    def absent_without(self, number: int) -> tuple[Run, ...]:
        """Returns `absent` as it will be once a segment (not the last) is removed."""
        oldest = self._oldest_without(number)
        if number < oldest:
            return needed_from(self.absent, oldest)
        return with_segment(self.absent, number, self.headers[number].first)

    def record_without(self, number: int) -> bytes:
        """Returns the body of the record that gives up a segment (not the last)."""
        oldest = self._oldest_without(number)
        return records.checkpoint(oldest) if number < oldest else Absent(self.absent_without(number)).body()

    def _oldest_without(self, number: int) -> int:
        return next(each for each in self.sizes if each != number)

    def remove(self, number: int) -> None:
        """Makes the file of a segment obsolete, once `record_without` is committed."""
        self.absent = self.absent_without(number)
        size = self.sizes.pop(number)
        self.size -= size
        if size == self.largest:
            self.largest = max(self.sizes.values(), default=0)
        del self.headers[number]
        self.links.forget(number)
        self._obsolete.append(self.path_of(number))
        self.changes += 1

    # -- obsolete files -----------------------------------------------------------------------------------------------

    @property
    def can_recycle(self) -> bool:
        """True if there is an obsolete file."""
        return bool(self._obsolete)

    @property
    def has_garbage(self) -> bool:
        """True if there is an obsolete file beside the one kept to recycle."""
        return len(self._obsolete) > 1

    def take_garbage(self, *, all_of_it: bool) -> list[str]:
        """Returns paths of obsolete files, newest last, for the caller to remove in any thread. all_of_it: False to
        keep one to recycle."""
        kept = [] if all_of_it else self._obsolete[-1:]
        garbage, self._obsolete = self._obsolete[: len(self._obsolete) - len(kept)], kept
        return garbage

    def give_back_garbage(self, paths: Iterable[str]) -> None:
        """Takes back files that could not be removed."""
        self._obsolete[:0] = paths
        self.changes += 1
