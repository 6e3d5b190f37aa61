"""A power loss at every step of short runs: a checkpoint, a long list, dirq's layouts, a repair, a full disk, ..."""

from pathlib import Path

import pytest
from support.power_loss.check import fast_directory
from support.power_loss.short_files import OF_FILES
from support.power_loss.short_full import FullDisk
from support.power_loss.short_journal import OF_JOURNALS

SHORT = {**OF_JOURNALS, **OF_FILES}
EXPENSIVE = {"circle", "circle behind", "circle not synced", "full disk", "repair", "repair with files"}
"""Runs that take 3 to 6 s: by default only on a file system that loses each name apart; the others lose less."""


@pytest.mark.parametrize(
    ("name", "ordered"),
    [
        pytest.param(name, ordered, id=f"{name}-{way}", marks=[pytest.mark.long] * (ordered and name in EXPENSIVE))
        for name in SHORT
        for way, ordered in (("apart", False), ("ordered", True))
    ],
)
def test_short_run_power_loss_at_every_point(tmp_path: Path, name: str, ordered: bool) -> None:
    """After a power loss at any point, answered operations hold and none is half done."""
    with fast_directory(tmp_path) as directory:
        assert SHORT[name](directory).check(ordered=ordered) > 20


@pytest.mark.long
@pytest.mark.parametrize("ordered", [False, True], ids=["apart", "ordered"])
def test_full_disk_every_variant_at_every_point(tmp_path: Path, ordered: bool) -> None:
    """All variants at each point. Takes some 20 s."""
    with fast_directory(tmp_path) as directory:
        full = FullDisk(directory)
        full.every = True
        assert full.check(ordered=ordered) > 800
