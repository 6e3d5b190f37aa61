"""Directory queues and a power loss at each step: what was added is there, and nothing half is."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.power_loss.directories import check_dirq, data, queue, record_dirq, simple
from support.power_loss.disk import RecordingDisk
from support.power_loss.file_system import FileSystem, lay_out, power_loss
from support.power_loss.nodes import NOTHING


@pytest.fixture
def fast(fast: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(time, "sleep", lambda _: None)  # a purge waits for others, and here are none
    return fast


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
@pytest.mark.parametrize("make", [simple, queue])
def test_added_elements_are_there(fast: Path, make: Callable[..., Any], ordered: bool, existing: bool) -> None:
    """After a power loss at any step, all added elements are there, perhaps the one being added, and no others; a
    removed element does not come back."""
    log, names = record_dirq(make, fast, existing)
    assert check_dirq(make, log, names, fast, ordered=ordered) > 200


@pytest.mark.parametrize("make", [simple, queue])
def test_without_sync_they_may_be_lost(fast: Path, make: Callable[..., Any]) -> None:
    """Without syncs, the same check finds that nothing is durable."""
    (fast / "recorded").mkdir()
    disk = RecordingDisk(fast / "recorded")
    make(f"{disk.root}/q", disk=disk, sync=False).add(data(make, 0))
    file_system = FileSystem()
    for entry in disk.log:
        file_system.play(entry)
    (fast / "after").mkdir()
    lay_out(power_loss(file_system, NOTHING), str(fast / "after"))
    assert os.listdir(fast / "after") == []
