"""Tests the writer of a segment on a real disk, whose writes past the page cache want aligned memory."""

from pathlib import Path

from qs_storage.disk import Disk
from qs_storage.journal.log.frames import BLOCK, Header, new_salt, padded
from qs_storage.journal.log.pool import make_file
from qs_storage.journal.log.segments import SegmentWriter

SIZE = (1 << 20) + 16 * BLOCK
"""More than is written at once, so that zeros take several writes."""


def writer_of(path: Path) -> SegmentWriter:
    return SegmentWriter(str(path), Header(1, SIZE, 1, new_salt(b"")), Disk(), sync=True)


def test_resume_writes_after_the_frames_that_were_found(tmp_path: Path) -> None:
    """The next frame begins where the last one ended. After a torn end, all behind it is zeros: a whole frame of an
    earlier try would count once the new one ends where it begins."""
    path = tmp_path / "segment"
    make_file(str(path), SIZE, Disk(), sync=True)
    first = writer_of(path)
    first.begin(1, 1, [b"x" * 100], 1)
    end = first.end
    first.close()
    before = path.read_bytes()[:end]
    with path.open("r+b") as file:  # what the kernel wrote of frames before a power loss
        for at in (end, SIZE - BLOCK):
            file.seek(at)
            file.write(b"?" * BLOCK)
    second = writer_of(path)
    second.resume(end, 1)
    second.write(2, 1, [b"y" * 100], 100, 1)
    second.close()
    data = path.read_bytes()
    assert data[:end] == before
    assert b"y" * 100 in data[end : second.end]
    assert second.end == end + padded(BLOCK)
    assert not any(data[second.end :])
