"""Dead letters and messages that were too old, in a journal that is damaged, checked, converted, or on a full disk."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from support.storage.broken_journals import Session, flip, middle_of, recover, small_segments
from support.storage.engines import LOTS

from qs_server.main import queue_journal as journal_command
from qs_storage.disk import Disk
from qs_storage.engine import SECOND, Message, NoRoomError, Options, Origin, Receipt, State
from qs_storage.journal.log.opening import JournalDamagedError
from qs_storage.journal.rescue.repair import repair
from qs_storage.tools.convert import Conversion

AGE = 3600 * SECOND


def messages(session: Session, qid: str) -> list[Message]:
    queue = session.engine.queue(qid)
    return [queue.get(mid, peek=True, visibility=None) for mid in queue.list_mids(State.ALL, 1000, -1)]


def fail(session: Session, count: int) -> None:
    """Lets so many messages of `jobs` be received once too often, each for a reason."""
    for message in session.engine.receive(["jobs"], count, None, LOTS):
        session.engine.queue("jobs").release(Receipt(message.mid), 0, reason=f"{(message.payload or b'')[:8]!r} failed")
    session.engine.commit()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three dead letters, the last of them rejected, and two messages that were removed for their age; then a crash."""
    made = tmp_path / "root"
    made.mkdir()
    session = Session(made)
    engine = session.engine
    engine.create("jobs", Options("journal", dead_letter="dead", max_receives=1))
    engine.create("old", Options("journal", retention=AGE))
    engine.commit()
    session.push("old", b"old 1", b"old 2")
    session.push("jobs", b"poison 1", b"poison 2", b"poison 3", b"good")
    fail(session, 2)
    [rejected] = session.engine.queue("jobs").list_mids(State.ALL, 1, -1)
    engine.queue("jobs").reject(Receipt(rejected), f"{b'poison 3'!r} failed")
    engine.commit()
    session.clock.now += AGE
    engine.expire(100)
    engine.commit()
    session.push("jobs", b"one that is lost")
    session.push("old", b"young")
    session.crash()
    return made


def check_all(root: Path) -> None:
    """Checks what must be there, whatever else is lost."""
    session = Session(root)
    try:
        found = messages(session, "dead")
        assert [message.payload for message in found] == [b"poison 1", b"poison 2", b"poison 3"]
        for message in found:
            origin = message.origin
            assert origin is not None
            died = (0, "rejected") if message.payload == b"poison 3" else (1, "receives")
            assert origin == Origin("jobs", origin.mid, died[0], origin.at, died[1], message.pushed_at)
            assert (origin.mid, message.reason) == (message.pushed_at, f"{message.payload!r} failed")
        assert [message.payload for message in messages(session, "old")] == [b"young"]
        assert b"good" in [message.payload for message in messages(session, "jobs")]
    finally:
        session.crash()


def test_repair(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A message is damaged: dead letters are kept with what they were, and what was too old stays away. The command
    names the kinds of records."""
    check_all(shutil.copytree(root, root.parent / "copy"))
    for segment in recover(f"{root}/.journal").segments:
        at = bytes(segment.data).find(b"one that is lost")
        if at >= 0:
            flip(Path(segment.path), at, 0)
    with pytest.raises(JournalDamagedError):
        Session(root)
    assert journal_command.main(["check", "--verbose", "--root", str(root)]) == 1
    assert "damaged" in capsys.readouterr().out
    done = repair(f"{root}/.journal", Disk())
    assert done is not None
    kinds = {type(record).__name__ for record in recover(f"{root}/.journal").records()}
    assert kinds >= {"Transfer", "Retired", "Reason"}
    check_all(root)
    with_all = Session(root)
    assert b"one that is lost" not in [message.payload for message in messages(with_all, "jobs")]
    with_all.crash()


def test_a_backup(root: Path) -> None:
    """A backup has the dead letters with what they were, and nothing that was too old."""
    assert journal_command.main(["backup", "--root", str(root), "--to", f"{root}-copy"]) == 0
    check_all(Path(f"{root}-copy"))


def test_damage_in_any_frame(root: Path) -> None:
    """The repair of a journal with damage in its middle leaves each message in one queue at most."""
    path, at = middle_of(root)
    flip(path, at, 0)
    assert repair(f"{root}/.journal", Disk()) is not None
    session = Session(root)
    payloads = [message.payload for qid in session.engine.queues() for message in messages(session, qid)]
    session.crash()
    assert len(payloads) == len(set(payloads))


def test_convert(root: Path) -> None:
    """The queue of dead letters becomes one of files and back: its messages, ids, order and reasons stay."""
    session = Session(root)
    before = [(message.mid, message.payload, message.reason) for message in messages(session, "dead")]
    session.engine.close()
    for storage in ("files", "journal"):
        Conversion(str(root), "dead", Disk(), session.clock, lambda count: None).run(storage)
        session = Session(root)
        after = [(message.mid, message.payload, message.reason) for message in messages(session, "dead")]
        assert after == before
        assert session.engine.queue("dead").options.storage == storage
        session.engine.close()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pushes are refused, messages still die, each with its reason, and old ones are removed; what is kept
    for that lasts until all have moved. Once there is room, pushes go on."""
    small_segments(monkeypatch, 64 * 1024)
    tmp_path.joinpath("root").mkdir()
    session = Session(tmp_path / "root")
    engine = session.engine
    engine.create("jobs", Options("journal", dead_letter="dead", max_receives=1))
    engine.create("dead", Options("journal"))
    engine.create("old", Options("journal", retention=AGE))
    session.push("old", b"old")
    session.clock.now += AGE
    monkeypatch.setattr(session.disk, "free_bytes", lambda path: 0)
    poison: list[bytes] = []
    with suppress(NoRoomError):
        while len(poison) < 1000:
            session.push("jobs", b"poison %d".ljust(3000) % len(poison))
            poison.append(b"poison %d".ljust(3000) % len(poison))
    engine.commit()
    assert 10 < len(poison) < 1000
    for _ in poison:
        fail(session, 1)
    assert messages(session, "jobs") == []
    found = messages(session, "dead")
    assert [message.payload for message in found] == poison
    assert all(message.reason == f"{(message.payload or b'')[:8]!r} failed" for message in found)
    engine.expire(100)
    engine.commit()
    assert messages(session, "old") == []
    with pytest.raises(NoRoomError):
        session.push("jobs", bytes(100_000))
    monkeypatch.undo()
    session.push("jobs", bytes(100_000))
    session.crash()
