"""Reasons in the log: over compaction, checkpoints, failed commits and kills, and what they take in memory."""

import errno
import os
from pathlib import Path

import pytest
from support.storage.broken_journals import Session, small_segments
from support.storage.engines import LOTS

from qs_storage.engine import Draft, Options, Receipt, State
from qs_storage.journal.queues.queue import LogQueue

WINDOW = 10_000_000


def log_queue(session: Session, qid: str = "q") -> LogQueue:
    queue = session.engine.queue(qid)
    assert isinstance(queue, LogQueue)
    return queue


def reasons(session: Session, qid: str = "q") -> dict[bytes | None, str | None]:
    """Returns the reason of each message, by its payload."""
    queue = session.engine.queue(qid)
    return {
        found.payload: found.reason for found in map(queue.read, map(Receipt, queue.list_mids(State.ALL, 1000, -1)))
    }


def give_back(session: Session, *mids: int, qid: str = "q") -> None:
    for mid in mids:
        queue = session.engine.queue(qid)
        queue.get(mid, peek=False, visibility=WINDOW)
        queue.release(Receipt(mid), 0, reason=f"because of {mid}")
    session.engine.commit()


def made(root: Path, **options: object) -> Session:
    root.mkdir()
    session = Session(root)
    session.engine.create("q", Options("journal", **options))  # type: ignore[arg-type]
    session.engine.commit()
    return session


@pytest.mark.parametrize("checkpoint", [False, True])
def test_compaction_keeps_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: bool) -> None:
    """Messages that are copied to the end of the log, and copies that share their bytes, keep their reasons: each queue
    its own; a start reads them with a checkpoint, and without."""
    small_segments(monkeypatch)
    session = made(tmp_path / "root", dead_letter="dead", max_receives=9)
    session.engine.create("copies", Options("journal"))
    kept = session.push("q", *(b"kept %d" % number for number in range(20)))
    session.engine.copy("q", kept[0], ["copies"])
    give_back(session, *kept[:10])
    give_back(session, kept[0], qid="copies")
    session.engine.queue("q").reject(Receipt(kept[1]), "rejected")
    session.engine.commit()
    before = {qid: reasons(session, qid) for qid in ("q", "copies", "dead")}
    assert before["dead"] == {b"kept 1": "rejected"}
    assert sum(reason is not None for reason in before["q"].values()) == 9
    first = log_queue(session).places.get(kept[0]) or 0
    for _ in range(30):
        for mid in session.push("q", bytes(5000)):
            session.engine.queue("q").delete(Receipt(mid))
        session.engine.commit()
        session.upkeep()
    assert (log_queue(session).places.get(kept[0]) or 0) > first
    for _ in range(2):
        assert {qid: reasons(session, qid) for qid in before} == before
        if checkpoint:
            session.engine.close()
        else:
            session.crash()
        session = Session(tmp_path / "root")
    session.crash()


def test_a_kill(tmp_path: Path) -> None:
    """The last reason that was answered is there after a kill, and one that was not committed is not."""
    session = made(tmp_path / "root")
    [mid] = session.push("q", b"x")
    give_back(session, mid)
    session.engine.queue("q").get(mid, peek=False, visibility=WINDOW)
    session.engine.queue("q").release(Receipt(mid), 0, reason="not committed")
    session.crash()
    session = Session(tmp_path / "root")
    assert reasons(session) == {b"x": f"because of {mid}"}
    session.crash()


@pytest.mark.parametrize("first", [None, "earlier"])
@pytest.mark.parametrize("change", ["release", "reject"])
def test_reason_is_taken_back_with_batch(tmp_path: Path, change: str, first: str | None) -> None:
    """The reason goes with the change that is taken back, and an earlier one is there again."""
    session = made(tmp_path / "root", dead_letter="dead", max_receives=9)
    [mid] = session.push("q", b"x")
    if first:
        give_back(session, mid)
        first = f"because of {mid}"
    session.engine.receive(["q"], 1, WINDOW, LOTS)
    session.engine.commit()
    before = session.engine.queue("q").get(mid, peek=True, visibility=None)
    queue = session.engine.queue("q")
    if change == "release":
        queue.release(Receipt(mid), 0, reason="undone")
    else:
        queue.reject(Receipt(mid), "undone")
        assert list(reasons(session, "dead")) == [b"x"]
    session.disk.arm(1, errno.ENOSPC, "_pwrite")
    with pytest.raises(OSError, match="space"):
        session.engine.commit()
    session.disk.disarm()
    assert session.engine.queue("q").get(mid, peek=True, visibility=None) == before
    assert reasons(session) == {b"x": first}
    stats = session.engine.queue("q").stats()
    assert (stats.dead, stats.rejected, log_queue(session).reasons) == (0, 0, {mid: first} if first else {})
    assert reasons(session, "dead") == {} if "dead" in session.engine.queues() else True
    session.crash()


def test_only_messages_with_a_reason_take_memory(tmp_path: Path) -> None:
    """A message that is deleted, dead or without a reason has no entry."""
    session = made(tmp_path / "root", dead_letter="dead", max_receives=9)
    mids = session.push("q", *(b"%d" % number for number in range(5)))
    give_back(session, *mids[:3])
    session.engine.queue("q").delete(Receipt(mids[0]))
    session.engine.queue("q").reject(Receipt(mids[1]), None)
    session.engine.commit()
    assert list(log_queue(session).reasons) == [mids[2]]
    assert list(log_queue(session, "dead").reasons.values()) == [f"because of {mids[1]}"]
    session.engine.queue("q").purge(mids[-1], 100)
    assert log_queue(session).reasons == {}
    session.crash()


def test_a_file_that_is_taken_in(tmp_path: Path) -> None:
    """A file's reason comes with it into the log, as its count does."""
    session = made(tmp_path / "root")
    path = tmp_path / "root" / "q" / "1234"
    path.with_name("x.new").write_bytes(b"from a file")
    try:
        os.setxattr(path.with_name("x.new"), "user.qs.reason", "naïve".encode())
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")
    path.with_name("x.new").rename(path)
    session.engine.refresh()
    session.upkeep()
    session.engine.commit()
    for _ in range(2):
        assert reasons(session) == {b"from a file": "naïve"}
        session.crash()
        session = Session(tmp_path / "root")
    session.crash()


def test_many_reasons_in_one_answer(tmp_path: Path) -> None:
    """Reasons count as bytes of the answer, as they may be longer than the payloads."""
    session = made(tmp_path / "root")
    queue = session.engine.queue("q")
    mids = queue.push([Draft(b"x") for _ in range(10)])
    for mid in mids:
        queue.get(mid, peek=False, visibility=WINDOW)
        queue.release(Receipt(mid), 0, reason="r" * 1000)
    assert len(session.engine.receive(["q"], 10, WINDOW, 5000)) == 4
    session.crash()


def test_reasons_count_as_needed_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction comes to an end, though the reasons of many short messages are most of the log; a start counts the
    same bytes, with a checkpoint and without, and nothing is counted when all is gone."""
    small_segments(monkeypatch)
    session = made(tmp_path / "root", dead_letter="dead", max_receives=9)
    mids = session.push("q", *(b"%d" % number for number in range(100)))
    queue = session.engine.queue("q")
    for times in range(3):
        for mid in mids:
            queue.get(mid, peek=False, visibility=WINDOW)
            queue.release(Receipt(mid), 0, reason=f"{times} {mid}".ljust(900))
        session.engine.commit()
    queue.reject(Receipt(mids[0]), "r" * 1000)
    session.engine.commit()
    session.upkeep()
    copied = session.engine.figures()["journal_compacted_bytes_total"]
    for _ in range(20):
        session.engine.commit()
        session.upkeep()
    figures = session.engine.figures()
    live = figures["journal_live_bytes"]
    assert live > 100 * 900
    assert (figures["journal_compacted_bytes_total"], figures["journal_bytes"] < 3 * live) == (copied, True)
    for killed in (True, False):
        if killed:
            session.crash()
        else:
            session.engine.close()
        session = Session(tmp_path / "root")
        assert session.engine.figures()["journal_live_bytes"] == live
    for qid in ("q", "dead"):
        session.engine.queue(qid).purge(10**18, 1000)
    session.engine.commit()
    assert session.engine.figures()["journal_live_bytes"] == 0
    session.crash()
