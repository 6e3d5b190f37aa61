"""The files that segments are made of, on a disk that is nearly full."""

import errno
from pathlib import Path

import pytest

from qs_storage.disk import Disk
from qs_storage.journal.log.supply import RESERVE, SPARE, Supply

SIZE = 1 << 16


class MeasuredDisk(Disk):
    """Says that so many bytes are free."""

    free = 100 * SIZE

    def free_bytes(self, path: str) -> int:
        return self.free


def test_the_spare_becomes_the_reserve(tmp_path: Path) -> None:
    """Without it pushes would wait for a reserve for which there is no room while a spare lies there unused."""
    disk = MeasuredDisk()
    supply = Supply(str(tmp_path), disk, sync=False)
    supply.make_spare(SIZE)
    supply.has_made(SIZE, recycled=False)
    disk.free = 0
    with pytest.raises(OSError, match="space"):
        supply.require_reserve(2 * SIZE)
    supply.require_reserve(SIZE)
    assert (tmp_path / RESERVE).stat().st_size == SIZE
    assert not (tmp_path / SPARE).exists()
    assert supply.wanted_reserve(SIZE) is None


def test_a_spare_leaves_room_for_a_reserve(tmp_path: Path) -> None:
    """A segment that is larger than any reserve could not be compacted on a full disk."""
    disk = MeasuredDisk()
    supply = Supply(str(tmp_path), disk, sync=False)
    disk.free = 2 * SIZE - 1
    with pytest.raises(OSError, match="space") as caught:
        supply.make_spare(SIZE)
    assert caught.value.errno == errno.ENOSPC
    supply.make_reserve(SIZE)
    supply.take_reserve(SIZE)
    supply.make_spare(SIZE)
