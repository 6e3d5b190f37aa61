"""Fixtures that any test may use."""

import atexit
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.servers.processes import ServerProcess, serving

if TYPE_CHECKING:
    from support.storage.postgres import Database, Postgres
    from support.storage.sqs import SqsServer


gc.disable()  # while tests are collected: nothing of them is garbage, and looking for it takes a fifth of that time


def pytest_collection_finish() -> None:
    """Takes the ten thousand tests and all that they import out of the garbage collector's sight: otherwise each full
    collection walks through them, which takes a tenth of all processor time."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # libraries look at exit for what was not collected, pytest five times before


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A real queue server on a free port of loopback, with an empty root, durability `none` for speed."""
    with serving(tmp_path / "root", "--durability", "none") as process:
        yield process


@pytest.fixture
def small_first_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the first segment of a journal small: a test that starts many journals is quicker."""
    monkeypatch.setattr("qs_storage.journal.log.pool.FIRST_SEGMENT", 1 << 18)
    monkeypatch.setattr("qs_storage.journal.log.pool.SMALL_LOG", 0)


@pytest.fixture(scope="session")
def sqs_server() -> "Iterator[SqsServer]":
    """An SQS endpoint for all tests that do not end it: its start takes 2 s. Each has names of its own there."""
    from support.storage.sqs import sqs_serving  # boto3 takes 0.2 s, which few tests need

    with sqs_serving() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Postgres]":
    """A PostgreSQL for all tests that do not end it. Without one on this machine they are skipped, and say so."""
    from support.storage.postgres import Postgres

    with Postgres() as server:
        yield server


@pytest.fixture
def database(postgres: "Postgres") -> "Iterator[Database]":
    """A fresh database with the schema, for one test."""
    with postgres.database() as made:
        yield made
