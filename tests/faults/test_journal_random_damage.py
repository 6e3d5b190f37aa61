"""Random damage to journals of random sizes around what a place can name: a repair keeps each message's own payload."""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from support.broken_journals import small_places, small_segments
from support.random_damage import play

SEED = 20261127


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


def rounds(root: Path, seeds: Iterator[int], until: float, most: int) -> Counter[str]:
    """Plays rounds until a time or a number of them. Returns what was counted."""
    counted: Counter[str] = Counter()
    for seed in seeds:
        if counted["rounds"] >= most or time.monotonic() >= until:
            break
        with pytest.MonkeyPatch.context() as patch:
            small_places(patch)
            small_segments(patch, (8 << 10, 24 << 10, 60 << 10)[seed % 3])
            try:
                play(root / str(seed), seed, counted)
            except BaseException as error:
                error.add_note(f"QS_DAMAGE_SEED={seed} plays this round")
                raise
        shutil.rmtree(root / str(seed))
        counted["rounds"] += 1
    return counted


def test_random_damage(root: Path) -> None:
    """A few rounds: after a repair every message has its own payload, queue and id, nothing is missing whose records
    are whole, and a second repair changes nothing."""
    first = int(os.environ.get("QS_DAMAGE_SEED", SEED))
    counted = rounds(root, count(first), time.monotonic() + 600, 1 if "QS_DAMAGE_SEED" in os.environ else 12)
    assert counted["messages kept"]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_much_random_damage(root: Path) -> None:
    """Like `test_random_damage`, for QS_DAMAGE_MINUTES (5)."""
    minutes = float(os.environ.get("QS_DAMAGE_MINUTES", "5"))
    counted = rounds(root, count(SEED + 1000), time.monotonic() + 60 * minutes, 10**9)
    print(dict(counted))
    assert counted["repaired"] > counted["rounds"] // 3
