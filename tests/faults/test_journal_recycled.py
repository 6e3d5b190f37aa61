"""Damage in a segment that was another one before: what it held then is never taken for what it holds now."""

import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from support.storage.broken_journals import Journal, build_recycled, flip, journal_at, small_segments, start

from qs_storage.disk import Disk
from qs_storage.journal.log.frames import BLOCK, FRAME_HEAD
from qs_storage.journal.log.opening import JournalDamagedError
from qs_storage.journal.rescue.repair import repair


class Recycled:
    """A journal whose last segment is recycled. before: the bytes of that segment before its last frame."""

    def __init__(self, root: Path) -> None:
        self.before = build_recycled(root)
        self.journal: Journal = journal_at(root)
        self.last = self.journal.recovered.segments[-1]
        self.path = Path(self.last.path)
        self.whole = self.path.read_bytes()
        self.end = self.last.frames[-1].end
        assert self.last.header.recycled
        assert self.journal.recovered.torn is None
        assert any(self.whole[self.end + BLOCK :]), "nothing of the older segment is left"


@pytest.fixture
def recycled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recycled]:
    """A journal to damage, on a file system that costs nothing, where there is one."""
    small_segments(monkeypatch, 64 * 1024)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Recycled(Path(folder) / "root")


def test_bits_behind_the_end_do_not_matter(recycled: Recycled) -> None:
    """One bit in the zeros behind the last frame, or in what the older segment held: every message is there.
    In the zeros it is called a torn end."""
    for at in range(recycled.end, len(recycled.whole), 97):
        flip(recycled.path, at, at % 8)
        found = recycled.journal.recover()
        assert found.records() == recycled.journal.right
        assert (found.torn is not None) == (at < recycled.end + BLOCK)
        flip(recycled.path, at, at % 8)


def test_bits_that_were_written(recycled: Recycled) -> None:
    """One bit in a frame stops the start, or cuts off the last frame, which nothing says was durable."""
    *_, last = recycled.last.frames
    for frame in recycled.last.frames:
        for at in range(frame.start, frame.start + FRAME_HEAD + frame.length, 41):
            flip(recycled.path, at, at % 8)
            try:
                found = recycled.journal.recover()
            except JournalDamagedError:
                assert frame is not last
            else:
                assert frame is last
                assert found.torn is not None
                assert found.records() == recycled.journal.right[:-1]
            flip(recycled.path, at, at % 8)


def test_any_part_of_the_last_write(recycled: Recycled) -> None:
    """A power loss leaves any blocks of the last write: the frame counts if all of its own are there, and else what was
    before it, also where the bytes of the older segment show."""
    frame = recycled.last.frames[-1]
    blocks = range(frame.start, frame.end + BLOCK, BLOCK)
    assert len(blocks) == 4
    for written in product((False, True), repeat=len(blocks)):
        data = bytearray(recycled.whole)
        for at, new in zip(blocks, written, strict=True):
            if not new:
                data[at : at + BLOCK] = recycled.before[at : at + BLOCK]
        recycled.path.write_bytes(data)
        right, found = recycled.journal.right, recycled.journal.recover()
        assert found.records() == (right if all(written[:-1]) else right[:-1]), written
        assert (found.torn is None) == (not written[0] or all(written)), written


@pytest.mark.parametrize("damage", ["header", "first frame", "middle frame"])
def test_a_repair_finds_only_what_it_held_last(recycled: Recycled, damage: str) -> None:
    """After a repair no message of the older segment is there, and of the others at most the damaged frame's is not."""
    first, *_ = recycled.last.frames
    middle = recycled.last.frames[-2]
    places = {"header": 20, "first frame": first.start + 40, "middle frame": middle.start + FRAME_HEAD + 12}
    flip(recycled.path, places[damage], 3)
    done = repair(recycled.journal.directory, Disk())
    assert done is not None
    found = start(recycled.journal.root)["orders"]
    right = recycled.journal.picture["orders"]
    assert found.items() <= right.items()
    assert len(right) - len(found) <= (damage == "middle frame")
