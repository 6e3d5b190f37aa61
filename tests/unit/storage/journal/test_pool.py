"""The files that segments are made of: which may be taken, which are kept for a full disk, which are given up."""

import errno
import os
from pathlib import Path

import pytest

from qs_storage.disk import Disk
from qs_storage.journal.log import pool as pool_module
from qs_storage.journal.log.pool import LARGEST_SEGMENT, SMALLEST, Pool, PoolFile

SIZE = 1 << 16


class MeasuredDisk(Disk):
    """Says that so many bytes are free."""

    free = 1 << 30

    def free_bytes(self, path: str) -> int:
        return self.free


@pytest.fixture(name="disk")
def _disk() -> MeasuredDisk:
    return MeasuredDisk()


@pytest.fixture(name="pool")
def _pool(tmp_path: Path, disk: MeasuredDisk) -> Pool:
    return Pool(str(tmp_path), disk, sync=False)


def fill(pool: Pool, *sizes: int) -> None:
    for size in sizes:
        pool.add(pool.make(size))


@pytest.mark.parametrize(
    ("sizes", "whole"),
    [
        ((), False),
        ((SIZE,), False),
        ((SIZE, SIZE), True),
        ((2 * SIZE,), True),
        ((SIZE // 2,) * 4, False),
        ((SIZE, SIZE // 2, SIZE // 2), True),
    ],
)
def test_what_is_whole(pool: Pool, sizes: tuple[int, ...], whole: bool) -> None:
    """A whole pool has as many bytes as two of the largest segments, and a file as large as one, which can be copied
    into it."""
    fill(pool, *sizes)
    assert pool.bytes == sum(sizes)
    assert pool.is_whole(SIZE) is whole


def test_a_push_leaves_it_whole(pool: Pool) -> None:
    """A file is taken only if two of the largest remain; a request without this rule takes the smallest that fits."""
    fill(pool, SIZE, 4 * SIZE, SIZE)
    assert pool.take(4 * SIZE, SIZE) is None  # two of four times the size would have to remain
    found = pool.take(SIZE, SIZE)
    assert found is not None
    assert (found.size, pool.bytes) == (SIZE, 5 * SIZE)
    found = pool.take(SIZE, None)
    assert found is not None
    assert (found.size, pool.bytes) == (SIZE, 4 * SIZE)
    assert pool.take(SIZE, SIZE) is None
    assert pool.take(5 * SIZE, None) is None
    found = pool.take(2 * SIZE, None)
    assert found is not None
    assert (found.size, found.recycled, pool.bytes) == (4 * SIZE, False, 0)


def test_a_large_request_gets_a_file_of_its_own(pool: Pool) -> None:
    """A file that is larger than all segments has to leave two as large as itself."""
    fill(pool, 4 * SIZE, 4 * SIZE)
    assert pool.take(3 * SIZE, SIZE) is None
    fill(pool, 4 * SIZE)
    assert pool.take(3 * SIZE, SIZE) is not None


def test_files_grow(pool: Pool) -> None:
    """Each new file is four times as large as the segment that was begun before, up to the bound; one more is wanted
    than the two that are kept."""
    sizes = []
    largest = 0
    for _ in range(4):
        wanted = pool.wanted(largest, 0)
        assert wanted is not None
        sizes.append(wanted)
        pool.began(wanted)
    assert sizes == [1 << 20, 4 << 20, 16 << 20, LARGEST_SEGMENT]


@pytest.mark.parametrize("free", [0, 1 << 18, 1 << 20, 8 << 20])
def test_files_are_small_on_a_small_disk(pool: Pool, disk: MeasuredDisk, free: int) -> None:
    """A file has at most a quarter of what is free, as three are wanted beside a segment, but 64 KiB at least."""
    disk.free = free
    size = pool.wanted(0, 0)
    assert size is not None
    assert SMALLEST <= size <= max(free // 4, SMALLEST)
    assert size % 4096 == 0


def test_a_directory_that_has_vanished(tmp_path: Path) -> None:
    """A pool whose directory has vanished can be asked what it wants: only to make a file tells that there is no
    place for it."""
    pool = Pool(str(tmp_path / "gone"), Disk(), sync=False)
    assert pool.wanted(SIZE, 0) == SIZE
    with pytest.raises(FileNotFoundError):
        pool.make(SIZE)


def test_three_are_enough(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for the next segment and the two that are kept; what is beyond, or larger than the next segment will be, is
    given up, unless the disk is full."""
    for name in ("FIRST_SEGMENT", "LARGEST_SEGMENT"):
        monkeypatch.setattr(pool_module, name, SIZE)
    pool.next_size = SIZE
    fill(pool, SIZE, SIZE)
    assert (pool.wanted(SIZE, 0), pool.lacks(SIZE)) == (SIZE, 1)
    fill(pool, SIZE)
    assert (pool.wanted(SIZE, 0), pool.lacks(SIZE)) == (None, 0)
    assert pool.give_up(SIZE) == []
    fill(pool, SIZE, 8 * SIZE)
    pool.note_disk(is_full=True)
    assert pool.give_up(SIZE) == []
    pool.note_disk(is_full=False)
    given = pool.give_up(SIZE)
    assert sorted(os.path.getsize(path) for path in given) == [SIZE, 8 * SIZE]
    assert pool.bytes == 3 * SIZE
    assert pool.is_whole(SIZE)


def test_a_file_for_which_there_is_no_room(pool: Pool, disk: MeasuredDisk, tmp_path: Path) -> None:
    """A file that cannot be made leaves nothing behind."""
    disk.free = SIZE - 1
    with pytest.raises(OSError, match="space") as caught:
        pool.make(SIZE)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_files_are_zeros(pool: Pool, tmp_path: Path) -> None:
    """A new file has all its blocks, so a write into it needs no room."""
    made = pool.make(3 << 20)
    assert not made.recycled
    assert Path(made.path).read_bytes() == bytes(3 << 20)
    assert Path(made.path).stat().st_blocks * 512 >= 3 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["spare-1"]


def test_an_obsolete_segment_is_used_again(pool: Pool, tmp_path: Path) -> None:
    """An obsolete segment gets another name, and may have old frames. One that a backup has linked is removed: its
    bytes must stay."""
    for name in ("1.segment", "2.segment"):
        (tmp_path / name).write_bytes(b"x" * SIZE)
    os.link(tmp_path / "2.segment", tmp_path / "backup")
    file = pool.recycle(str(tmp_path / "1.segment"))
    assert file == PoolFile(f"{tmp_path}/spare-1", SIZE, recycled=True)
    assert pool.recycle(str(tmp_path / "2.segment")) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "spare-1"]
    assert (tmp_path / "backup").read_bytes() == b"x" * SIZE


def test_a_start_finds_them(pool: Pool, disk: MeasuredDisk, tmp_path: Path) -> None:
    """Files of an earlier server are taken over, and may have old frames; unfinished ones go. No name is used twice."""
    fill(pool, SIZE, 2 * SIZE)
    (tmp_path / "spare-7.tmp").write_bytes(b"unfinished")
    (tmp_path / "spare-x").write_bytes(b"somebody's")
    again = Pool(str(tmp_path), disk, sync=False)
    again.restore()
    assert again.bytes == 3 * SIZE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spare-1", "spare-2", "spare-x"]
    assert again.make(SIZE).path == f"{tmp_path}/spare-8"
    found = again.take(SIZE, None)
    assert found is not None
    assert found.recycled
