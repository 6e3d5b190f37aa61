"""The segments of one log: which are there, which are gone though older ones are needed, and which files may go."""

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
        """Bytes of each segment that is there, oldest first."""
        self.headers: dict[int, Header] = {}
        """Headers of the same segments."""
        self.size = self.largest = 0
        """Bytes of all segments, and of the largest one."""
        self.absent: tuple[Run, ...] = ()
        """Segments that are gone although older ones are there."""
        self.links = Links()
        """What the segments say of older ones."""
        self.changes = 0
        """Grows with every change of the segments: when one is begun, given up or removed, or could not be begun."""
        self._obsolete: list[str] = []

    def restore(self, headers: Iterable[Header], obsolete: Iterable[str], absent: tuple[Run, ...]) -> None:
        """Takes over what a start has found. headers: of the segments that are needed, oldest first; obsolete: paths of
        those that are not; absent: what is gone although older ones are needed."""
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
        """Returns the salt of a segment."""
        return self.headers[number].salt

    def path_of(self, number: int) -> str:
        """Returns the path of a segment."""
        return f"{self._directory}/{segment_name(number)}"

    def frame_after(self, number: int) -> int | None:
        """Returns the number of the first frame behind a segment, None: it is the last one. What a start has cut off
        from the end of the segment has this number or a greater one."""
        following = self.headers.get(number + 1)
        return frame_at(self.absent, number + 1) if following is None else following.first

    @property
    def oldest(self) -> int | None:
        """The number of the oldest segment."""
        return next(iter(self.sizes), None)

    @property
    def newest(self) -> int | None:
        """The number of the newest segment."""
        return next(reversed(self.sizes), None)

    def first_records(self) -> list[bytes]:
        """Returns the records with which a new segment says what is gone."""
        return [Absent(self.absent).body()] if self.absent else []

    def absent_without(self, number: int) -> tuple[Run, ...]:
        """Returns what is gone although older ones are there, once a segment but the last has gone too."""
        oldest = self._oldest_without(number)
        if number < oldest:
            return needed_from(self.absent, oldest)
        return with_segment(self.absent, number, self.headers[number].first)

    def record_without(self, number: int) -> bytes:
        """Returns the body of the record which says that a segment but the last is gone."""
        oldest = self._oldest_without(number)
        return records.checkpoint(oldest) if number < oldest else Absent(self.absent_without(number)).body()

    def _oldest_without(self, number: int) -> int:
        return next(each for each in self.sizes if each != number)

    def remove(self, number: int) -> None:
        """Makes the file of a segment obsolete, of which `record_without` has said so."""
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
        """True if there is an obsolete segment."""
        return bool(self._obsolete)

    @property
    def has_garbage(self) -> bool:
        """True if `take_garbage` has anything to return."""
        return len(self._obsolete) > 1

    def take_garbage(self, *, all_of_it: bool) -> list[str]:
        """Returns paths of obsolete segments, the newest last, which the caller removes in any thread. Keeps one to
        recycle, unless all are asked for."""
        kept = [] if all_of_it else self._obsolete[-1:]
        garbage, self._obsolete = self._obsolete[: len(self._obsolete) - len(kept)], kept
        return garbage

    def give_back_garbage(self, paths: Iterable[str]) -> None:
        """Takes back files that could not be removed."""
        self._obsolete[:0] = paths
        self.changes += 1
