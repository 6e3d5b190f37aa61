"""Writes what a repair keeps to new segments, as full as those of a server."""

import os

from ...disk import Disk
from ..log import pool, records
from ..log.frames import BLOCK, FRAME_HEAD, Header, new_salt, pack_frame_head, pack_header, padded, seed
from ..log.places import place_of, segment_name
from ..log.records import HEAD, Record
from ..log.segment import joined

_FRAME = 64 << 10
"""Bytes of records in a new frame. Frames need not be those of the old segments, as all are durable before any counts,
and many small records share a block then. Not more, as damage in the last frame of a log looks torn, and is cut off."""


class NewSegments:
    """Writes records to new segments of ordinary size.

    Ensures:
    1. All segments are durable when `end` returns, except for their names. Until then, whoever uses this sees to it
       that nobody takes them for the log's.
    2. Each segment begins with the names of the queues that exist by then, and calls all segments before the first new
       one obsolete.
    3. A segment has at most `LARGEST_SEGMENT` bytes, unless one record needs more."""

    def __init__(self, directory: str, number: int, sequence: int, disk: Disk) -> None:
        """directory: of the log; number, sequence: of the first segment and the first frame to write."""
        self._directory = directory
        self._disk = disk
        self._oldest = number
        self._first = sequence  # of the segment
        self._salt = new_salt(b"")
        self._names: dict[int, str] = {}
        self._bodies: list[bytes] = []  # of the frame
        self._length = 0
        self.numbers: list[int] = []
        """The segments that are written, or being written."""
        self.records = 0
        """How many records are written."""
        self._begin_segment()

    def add(self, record: Record, qid: str) -> int:
        """Adds a record. qid: its queue's name. Returns its place. OSError, PlaceError."""
        number = record.number
        bodies = [records.pack(record)]
        if number not in self._names and not isinstance(record, records.Queue):
            bodies.insert(0, records.Queue(number, -1, qid).write())
        if isinstance(record, records.Remove):
            self._names.pop(number, None)  # a queue of the same name may come, with the same number
        else:
            self._names[number] = qid
        self._make_room(sum(HEAD.size + len(body) for body in bodies))
        for body in bodies:
            start = self._at + FRAME_HEAD + self._length
            self._bodies.append(body)
            self._length += HEAD.size + len(body)
        return place_of(self.numbers[-1], start)

    def _make_room(self, size: int) -> None:
        """Begins a new frame or segment if records of these bytes do not fit into the last one."""
        if self._bodies and self._length + size > _FRAME:
            self._write_frame()
        is_empty = not self._bodies and self._sequence == self._first + 1  # but for the names of queues
        if self._at + padded(FRAME_HEAD + self._length + size) > pool.LARGEST_SEGMENT and not is_empty:
            self.end()
            self._begin_segment()

    def _begin_segment(self) -> None:
        self.numbers.append(self._oldest + len(self.numbers))
        self._salt = new_salt(self._salt)
        self._at, self._sequence = BLOCK, self._first
        path = f"{self._directory}/{segment_name(self.numbers[-1])}"
        self._fd = self._disk.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        self._bodies = [records.Queue(number, -1, qid).write() for number, qid in self._names.items()]
        self._length = sum(HEAD.size + len(body) for body in self._bodies)
        self._write_frame()

    def _write_frame(self) -> None:
        """Writes a frame, also without records: a segment begins with one."""
        begin = seed(self._salt)
        parts, length = joined(self._bodies, begin, self._at + FRAME_HEAD), self._length
        head = pack_frame_head(begin, self._sequence, self._sequence - 1, self._oldest, length, len(self._bodies))
        end = self._at + padded(FRAME_HEAD + length)
        place_of(self.numbers[-1], end)  # raises PlaceError
        self._disk.pwrite(self._fd, b"".join((head, *parts)).ljust(end - self._at, b"\0"), self._at)
        self.records += len(self._bodies)
        self._at, self._sequence = end, self._sequence + 1
        self._bodies, self._length = [], 0

    def end(self) -> None:
        """Ends the last segment. OSError."""
        if self._bodies:
            self._write_frame()
        header = Header(self.numbers[-1], self._at, self._first, self._salt)
        self._disk.pwrite(self._fd, pack_header(header), 0)
        self._disk.fsync(self._fd)
        self.close()
        self._first = self._sequence

    def close(self) -> None:
        """Closes the file, also after an error."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)
