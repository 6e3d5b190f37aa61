"""File operations of the jobs: locks, syncs, errors of the disk."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from qs_pipeline import errors
from qs_pipeline.files import LocalFiles


def test_lock_is_held_by_one_process(tmp_path: Path) -> None:
    """The lock is free again when its holder is done."""
    files = LocalFiles(str(tmp_path))
    busy = pytest.raises(errors.UsageError, match="an archive is already running")
    with files.lock("_qs/lock", "an archive"), busy, files.lock("_qs/lock", "an archive"):
        pass
    with files.lock("_qs/lock", "an archive"):
        pass


def test_move_and_replace_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names in every directory that changed, new directories above them, and the content of what is written."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    files = LocalFiles(str(tmp_path))
    files.replace("state.json", b"{}")
    assert synced == [".state.json.tmp", "."]
    synced.clear()
    files.move([("state.json", "queue=a/date=1/x")])
    assert synced == [".", "queue=a", "queue=a/date=1"]
    synced.clear()
    files.sync(["queue=a/date=1/x"])
    assert synced == ["queue=a/date=1/x", "queue=a/date=1"]


def test_sync_raises_errors_of_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that fails is not passed over."""

    def fails(handle: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        LocalFiles(str(tmp_path)).replace("a", b"")
