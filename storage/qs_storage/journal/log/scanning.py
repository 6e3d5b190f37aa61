"""Reads a segment frame by frame, and checks its header and its frames."""

import mmap
import os
from collections.abc import Iterator

from ...disk import Disk
from .frames import (
    BLOCK,
    FRAME_HEAD,
    DamagedError,
    Frame,
    Gap,
    Header,
    frame_at,
    gap_at,
    read_header,
    read_records,
)
from .places import segment_name
from .records import BadRecordError


def map_file(path: str) -> memoryview:
    """Maps a file into memory for reading; later writes to it show. OSError."""
    with open(Disk().open_file(path, os.O_RDONLY), "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def release(data: memoryview, end: int | None = None) -> None:
    """Lets the kernel take back the memory of a mapped file up to a byte, None for all of it. It is read again if it is
    needed again. A reader of a whole journal calls this, or all of the journal would count as its memory."""
    if isinstance(data.obj, mmap.mmap) and (length := len(data) if end is None else end & -mmap.PAGESIZE):
        data.obj.madvise(mmap.MADV_DONTNEED, 0, length)


class Scan:
    """Reads the valid frames of one segment, and then tells why the next one is not valid."""

    def __init__(self, path: str, data: memoryview) -> None:
        """Reads the header. path: the file that the data is from. DamagedError if the header is damaged."""
        self.path = path
        self.data = data
        self.header: Header = read_header(data, len(data))
        self.next = self.header.first
        """The number of the frame after the last one read."""
        self.gap = Gap(BLOCK, None, None)
        """Tells where and why the frames end, once `frames` is exhausted."""

    def frames(self, start: int, first: int, limit: int | None) -> Iterator[tuple[int, list[memoryview]]]:
        """Yields (byte of the first record, bodies of the records) for each frame. start, first: byte and number of the
        first frame; limit: number of the frame to stop before, None for all."""
        for frame in self.heads(start, first, limit):
            bodies = self._read(frame)
            if isinstance(bodies, str):
                self.gap = gap_at(self.data, self.header, frame.start, bodies, self.next)
                return
            yield frame.start + FRAME_HEAD, bodies

    def heads(self, start: int, first: int, limit: int | None) -> Iterator[Frame]:
        """Yields each frame without checking its records. start, first, limit: see `frames`."""
        data, header, at = self.data, self.header, start
        self.next = first
        while at + BLOCK <= len(data) and self.next != limit:
            frame = frame_at(data, at, header.salt)
            why = "no frame begins there" if frame is None else self._misplaced(frame)
            if frame is None or why is not None:
                self.gap = gap_at(data, header, at, str(why), self.next)
                return
            yield frame
            self.next += 1
            at = frame.end
        self.gap = Gap(at, None, None)

    def read_oldest(self) -> int:
        """Returns the oldest segment that is needed, as the last whole frame says; the segment's own number if no frame
        is whole."""
        said = {frame.oldest for frame in self.heads(BLOCK, self.header.first, None)}
        if len(said) > 1:  # a frame whose records are torn does not count
            oldest = 0
            for frame in self.heads(BLOCK, self.header.first, None):
                if isinstance(self._read(frame), str):
                    break
                oldest = frame.oldest
            said = {oldest} if oldest else set()
        return said.pop() if said else self.header.number

    def _misplaced(self, frame: Frame) -> str | None:
        """Returns why a frame is not valid where it is, None if it is."""
        if frame.sequence != self.next:
            return f"frame {frame.sequence} stands where {self.next} should"
        if frame.start + FRAME_HEAD + frame.length > len(self.data):
            return f"frame {frame.sequence} claims to reach beyond the end"
        return None

    def _read(self, frame: Frame) -> list[memoryview] | str:
        """Returns the bodies of a frame's records, or the frame's fault as a text."""
        try:
            return read_records(self.data, frame, self.header.salt)
        except BadRecordError as error:
            return f"frame {frame.sequence}: {error}"


def open_segment(directory: str, number: int) -> Scan:
    """Opens the segment with this number. DamagedError if its header is damaged; OSError."""
    path = f"{directory}/{segment_name(number)}"
    scan = Scan(path, map_file(path))
    if scan.header.number != number:
        raise DamagedError(f"its header says that it is segment {scan.header.number}")
    return scan
