"""Reads a segment once, frame by frame, and checks every byte that counts on the way."""

from collections.abc import Iterator

from .frames import (
    BLOCK,
    FRAME_HEAD,
    DamagedError,
    Frame,
    Gap,
    Header,
    bodies_of,
    count_of,
    frame_at,
    gap_at,
    read_header,
)
from .records import BadRecordError
from .recovery import map_file, segment_name


class Scan:
    """The whole frames of one segment, and afterwards why there are no more."""

    def __init__(self, path: str, data: memoryview) -> None:
        """path: where the data is from. Reads the header. DamagedError when it does not count."""
        self.path = path
        self.data = data
        self.header: Header = read_header(data, len(data))
        self.next = self.header.first
        """The number of the frame that follows those which were read."""
        self.gap = Gap(BLOCK, None, None)
        """Where the frames end, and why."""

    def frames(self, start: int, first: int, limit: int | None) -> Iterator[tuple[int, list[memoryview]]]:
        """Where the records of each frame begin, and their bodies. start, first: byte and number of the first frame;
        limit: the number of the first one that does not count, None: all do."""
        data, header, at = self.data, self.header, start
        self.next = first
        while at + BLOCK <= len(data) and self.next != limit:
            frame = frame_at(data, at, header.salt)
            found = "no frame begins there" if frame is None else self._read(frame)
            if frame is None or isinstance(found, str):
                self.gap = gap_at(data, header, at, str(found), self.next)
                return
            yield at + FRAME_HEAD, found
            self.next += 1
            at = frame.end
        self.gap = Gap(at, None, None)

    def _read(self, frame: Frame) -> list[memoryview] | str:
        """The bodies of the records of a frame, or what is wrong with it."""
        if frame.sequence != self.next:
            return f"frame {frame.sequence} stands where {self.next} should"
        if frame.start + FRAME_HEAD + frame.length > len(self.data):
            return f"frame {frame.sequence} is said to reach beyond the end"
        try:
            bodies = list(bodies_of(self.data, frame, self.header.salt))
        except BadRecordError as error:
            return f"frame {frame.sequence}: {error}"
        if len(bodies) != (count := count_of(self.data, frame)):
            return f"frame {frame.sequence} holds {len(bodies)} records and should hold {count}"
        return bodies


def open_segment(directory: str, number: int) -> Scan:
    """The segment of that number. DamagedError when its header does not count, OSError."""
    path = f"{directory}/{segment_name(number)}"
    scan = Scan(path, map_file(path))
    if scan.header.number != number:
        raise DamagedError(f"its header says that it is segment {scan.header.number}")
    return scan
