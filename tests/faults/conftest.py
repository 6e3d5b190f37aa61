"""Fixtures for tests of faults: of power losses, of damaged journals, and of memcached."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from support.power_loss.check import fast_directory
from support.power_loss.engines import small_journal
from support.storage.broken_journals import Journal
from support.storage.memcached import Memcached

_numbers = count()


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where that has extended attributes."""
    with fast_directory(tmp_path) as made:
        yield made


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes segments of the journal small, so that a run has many of them."""
    small_journal(monkeypatch)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A folder on a file system that costs nothing, where there is one."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def damaged(built: Journal, home: Path) -> Iterator[Journal]:
    """A copy to damage. built: the journal of the module's tests."""
    root = built.copy(home / f"damaged-{next(_numbers)}")
    yield built._replace(root=root)
    shutil.rmtree(root)


@pytest.fixture
def memcached() -> Iterator[Memcached]:
    """A memcached of one test."""
    with Memcached() as server:
        yield server
