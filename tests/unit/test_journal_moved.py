"""What becomes of a queue of the journal whose directory somebody moves, removes or replaces while it is served."""

import shutil
from pathlib import Path

import pytest
from engines import EPOCH, ManualClock

from qs_server.storage.engine import Draft, Durability, NoSuchQueueError, Options, StorageError
from qs_server.storage.files import FilesEngine
from qs_server.storage.journal.engine import JournalEngine

LOTS = 1 << 40


def journal(root: Path) -> JournalEngine:
    return JournalEngine(str(root), clock=ManualClock(), durability=Durability.NONE)


def made(root: Path) -> JournalEngine:
    """With two messages in queue `a`, one of them in flight."""
    engine = journal(root)
    engine.create("a", Options())
    engine.push("a", [Draft(b"one"), Draft(b"two")])
    engine.receive(["a"], 1, 10**9, LOTS)
    engine.commit()
    return engine


def test_a_directory_is_renamed(tmp_path: Path) -> None:
    """Its messages go with it, those that had no file yet included, each in its state."""
    engine = made(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    engine.refresh()
    assert list(engine.queues()) == ["b"]
    for mid, status in ((EPOCH, "in-flight"), (EPOCH + 1, "ready")):
        assert engine.get("b", mid, peek=True, visibility=None).status == status
    engine.commit()
    engine.close()
    again = journal(tmp_path)
    assert [message.payload for message in again.receive(["b"], 9, None, LOTS)] == [b"two"]
    again.close()


def test_a_directory_is_removed(tmp_path: Path) -> None:
    """The messages go with it, and are not there again in another one of the name."""
    engine = made(tmp_path)
    shutil.rmtree(tmp_path / "a")
    engine.refresh()
    with pytest.raises(NoSuchQueueError):
        engine.stats("a")
    engine.create("a", Options())
    engine.commit()
    engine.close()
    again = journal(tmp_path)
    assert again.stats("a").ready == 0
    again.close()


def test_a_queue_of_files_that_the_journal_has_messages_of(tmp_path: Path) -> None:
    """After a crash, a server that would not look into the journal does not start; it says what to do."""
    engine = made(tmp_path)
    ledger = engine._journal._ledger
    assert ledger is not None
    ledger.journal.close()  # and so nothing of this comes to rest
    (tmp_path / "a" / ".queue.toml").unlink()
    with pytest.raises(StorageError, match='storage = "journal"'):
        FilesEngine(str(tmp_path), clock=ManualClock(), durability=Durability.NONE)
    again = journal(tmp_path)
    assert again.stats("a").ready == 1
    again.close()
    files = FilesEngine(str(tmp_path), clock=ManualClock(), durability=Durability.NONE)
    assert files.stats("a").ready == 1
    files.close()
