"""Messages that are moved and copied: each keeps its payload, and its payload counts as live bytes once for each place
where it is, whatever happens to it afterwards."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storage.crashing import LogSession, segments_of

from qs_storage.engine import Draft, Message, Receipt, State
from qs_storage.journal.upkeep.checkpoint import Snapshot

PAYLOAD = b"the payload ".ljust(3000, b".")


class Session(LogSession):
    """A session in which something can be done between the steps of a case."""

    def pause(self) -> None:
        """Does nothing, unless a test replaces it."""


@pytest.fixture(name="session")
def _session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    session = Session(tmp_path / "root")
    session.create("deader")
    session.create("dead", dead_letter="deader", max_receives=9)
    session.create("other", dead_letter="dead", max_receives=9)
    session.create("q", dead_letter="dead", max_receives=9)
    yield session
    session.leave()


def push(session: Session) -> int:
    [mid] = session.queue("q").push([Draft(PAYLOAD)])
    session.pause()
    return mid


def reject(session: Session, qid: str, mid: int, reason: str | None = "why") -> None:
    session.queue(qid).reject(Receipt(mid), reason)
    session.pause()


def redrive(session: Session, qid: str, mid: int) -> None:
    """Moves a dead letter back to the queue `q`."""
    session.queue(qid).redrive.move([(mid, session.queue("q"))])
    session.pause()


def copy(session: Session, mid: int, qid: str, into: str) -> None:
    session.queue(into).take_in(mid, session.queue(qid))
    session.pause()


def only(session: Session, qid: str) -> int:
    [mid] = session.queue(qid).list_mids(State.ALL, 10, -1)
    return mid


def moved(session: Session) -> None:
    reject(session, "q", push(session))


def moved_twice(session: Session) -> None:
    moved(session)
    reject(session, "dead", only(session, "dead"), None)


def moved_and_back(session: Session) -> None:
    moved(session)
    redrive(session, "dead", only(session, "dead"))


def copied_then_moved(session: Session) -> None:
    mid = push(session)
    copy(session, mid, "q", "other")
    reject(session, "q", mid)


def moved_then_copied(session: Session) -> None:
    moved(session)
    copy(session, only(session, "dead"), "dead", "other")


def copied_moved_and_gone(session: Session) -> None:
    """The copy is deleted, the moved message stays."""
    copied_then_moved(session)
    session.queue("other").delete(Receipt(only(session, "other")))


def copied_moved_and_left(session: Session) -> None:
    """The moved message is deleted, the copy stays."""
    copied_then_moved(session)
    session.queue("dead").delete(Receipt(only(session, "dead")))


def moved_copied_and_moved_on(session: Session) -> None:
    moved_then_copied(session)
    reject(session, "dead", only(session, "dead"), None)


def staged_published_and_moved(session: Session) -> None:
    batches = session.queue("q").batches
    batches.stage("p", (1, 0, 0), list(map(Draft, [PAYLOAD])))
    session.pause()
    batches.publish("p", 1, [(0, 0)])
    session.pause()
    reject(session, "q", only(session, "q"))


def copies_moved_each(session: Session) -> None:
    """A message and its copy both become dead letters."""
    mid = push(session)
    copy(session, mid, "q", "dead")
    reject(session, "q", mid)
    reject(session, "dead", mid, None)


def copy_comes_back(session: Session) -> None:
    """The dead-letter queue has the message twice."""
    moved(session)
    copy(session, only(session, "dead"), "dead", "q")
    reject(session, "q", only(session, "q"), None)


def copies_meet(session: Session) -> None:
    """A message and its copy become letters of the same queue, which has never had a copy."""
    mid = push(session)
    copy(session, mid, "q", "other")
    reject(session, "q", mid)
    reject(session, "other", mid, None)


def copies_meet_and_one_goes(session: Session) -> None:
    copies_meet(session)
    session.queue("dead").delete(Receipt(session.queue("dead").list_mids(State.ALL, 1, -1)[0]))


CASES = [
    copies_meet,
    copies_meet_and_one_goes,
    copy_comes_back,
    moved,
    moved_twice,
    moved_and_back,
    copied_then_moved,
    moved_then_copied,
    copied_moved_and_gone,
    copied_moved_and_left,
    moved_copied_and_moved_on,
    staged_published_and_moved,
    copies_moved_each,
]


@pytest.fixture(name="case", params=CASES, ids=lambda case: case.__name__)
def _case(request: pytest.FixtureRequest) -> Callable[[Session], None]:
    return request.param  # type: ignore[no-any-return]


def everything(session: Session) -> list[tuple[str, int, bytes]]:
    queues = {qid: session.queue(qid) for qid in ("q", "dead", "deader", "other")}
    return [
        (qid, mid, queue.payload_of(mid)) for qid, queue in queues.items() for mid in queue.list_mids(State.ALL, 9, -1)
    ]


def test_a_start(session: Session, case: Callable[[Session], None]) -> None:
    """A start reads the same from the segments, from a checkpoint, and from a checkpoint and the segment after it."""
    case(session)
    session.engine.commit()
    found = everything(session)
    assert found
    assert {payload for _, _, payload in found} == {PAYLOAD}
    before = session.memory()
    session.kill()
    assert session.memory() == before
    session.restart()
    assert session.memory() == before
    session.kill()
    assert session.memory() == before


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_a_checkpoint_that_is_written_meanwhile(
    session: Session, case: Callable[[Session], None], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is written piece by piece, while messages move: it may contain each of them before and after, or
    neither. steps: pieces between two moves."""
    monkeypatch.setattr("qs_storage.journal.upkeep.checkpoint.SLICE", 0.0)
    for qid in ("q", "other", "dead", "deader"):
        session.queue(qid).push([Draft(b"in the checkpoint")])
    session.engine.commit()
    for qid in ("q", "other", "dead", "deader"):
        session.queue(qid).purge(1 << 62, 9)
    session.engine.commit()
    keeper = session.engine._journal
    snapshot = Snapshot(keeper.open(), keeper.queues.values())
    written = False

    def pause() -> None:
        nonlocal written
        session.engine.commit()
        for _ in range(steps):
            written = written or snapshot.step()

    monkeypatch.setattr(session, "pause", pause)
    case(session)
    session.engine.commit()
    while not written:
        written = snapshot.step()
    snapshot.publish()
    before = session.memory()
    session.kill()
    assert session.memory() == before


def test_compaction_copies_origin_and_reason(session: Session, case: Callable[[Session], None]) -> None:
    """Compaction copies what is needed with its origin and reason, in whichever segment the records are; nothing counts
    as live in segments that are gone, and a start counts the same."""
    case(session)
    session.engine.commit()
    found = everything(session)
    letters = {qid: (session.queue(qid).origins, session.queue(qid).reasons) for qid in ("q", "dead", "deader")}
    for _ in range(2):
        last = session.store.log.number
        while session.store.log.number == last:
            session.queue("other").purge(session.queue("other").push([Draft(bytes(9000))])[0], 0)
            session.queue("other").delete(Receipt(session.queue("other").last_mid))
            session.engine.commit()
        session.compact(last)
        assert everything(session) == found
        before = session.memory()
        assert min(before["live"]) > last
        assert min(before["live"].values()) > 0
        session.kill()
        assert session.memory() == before
        session.restart()
        assert session.memory() == before
        assert {
            qid: (session.queue(qid).origins, session.queue(qid).reasons) for qid in ("q", "dead", "deader")
        } == letters


def test_moves_are_taken_back_with_batch(session: Session, case: Callable[[Session], None]) -> None:
    """A batch with all the moves that is taken back leaves everything as it was, in memory and for the next start."""
    mids = session.queue("q").push([Draft(b"stays"), Draft(b"copied"), Draft(b"dead")])
    session.queue("other").take_in(mids[1], session.queue("q"))
    reject(session, "q", mids[2], "before")
    session.engine.commit()
    before = session.memory()
    for qid in ("q", "dead"):
        for mid in session.queue(qid).list_mids(State.ALL, 9, -1):
            reject(session, qid, mid, "taken back")
    session.queue("other").purge(1 << 62, 9)
    redrive(session, "deader", session.queue("deader").list_mids(State.ALL, 1, -1)[0])
    session.queue("dead").purge(1 << 62, 9)
    session.queue("q").purge(1 << 62, 9)
    case(session)
    assert session.memory() != before
    session.disk.arm(1, errno.ENOSPC, "_pwrite")
    with pytest.raises(OSError, match="space"):
        session.engine.commit()
    session.disk.disarm()
    assert session.memory() == before
    session.kill()
    assert session.memory() == before


@pytest.mark.parametrize("at_once", [False, True])
def test_nothing_is_left_when_all_is_gone(session: Session, case: Callable[[Session], None], at_once: bool) -> None:
    """When the last queue has deleted the message, no byte is live, on the disk or in memory; also in the batch in
    which it was pushed."""
    case(session)
    for qid in ("other", "q", "dead", "deader"):
        if not at_once:
            session.engine.commit()
        session.queue(qid).purge(1 << 62, 9)
    session.engine.commit()
    assert (session.store.usage.total, session.store.usage.segments(), session.store.cache.size) == (0, set(), 0)
    assert not any(session.store.moved.values())


def test_a_message_of_the_same_batch(session: Session, case: Callable[[Session], None]) -> None:
    """A message that was pushed and moved in one batch is received in it too, before it is in a segment."""
    case(session)
    found = [message.payload for qid in ("q", "dead", "deader", "other") for message in take(session, qid)]
    assert found
    assert set(found) == {PAYLOAD}
    session.engine.commit()


def take(session: Session, qid: str) -> list[Message]:
    return session.queue(qid).take_first(9, None, 1 << 20)


@pytest.mark.parametrize("end", ["acknowledged", "removed"])
def test_two_messages_with_one_payload(session: Session, end: str) -> None:
    """A queue that has a payload twice, and loses both messages at once, leaves no byte live."""
    copy_comes_back(session)
    session.engine.commit()
    if end == "acknowledged":
        session.queue("dead").claims.claim("c", 1, 9, None, None)
        session.queue("dead").claims.acknowledge("c", 1)
        session.engine.roll_back()
        session.queue("dead").claims.claim("c", 1, 9, None, None)
        session.queue("dead").claims.acknowledge("c", 1)
    else:
        session.engine.remove("dead", force=True)
    session.engine.commit()
    assert (session.store.usage.total, session.store.usage.segments()) == (0, set())


def test_a_move_writes_no_payload(session: Session) -> None:
    """A message of a mebibyte becomes a dead letter, and comes back, with less than a KiB of log for each."""
    queue = session.queue("q")
    [mid] = queue.push([Draft(bytes(1 << 20))])
    session.engine.commit()
    session.engine.begin_batch()
    for step in (lambda: reject(session, "q", mid), lambda: redrive(session, "dead", only(session, "dead"))):
        left = session.transaction.left
        step()
        assert 0 < left - session.transaction.left < 1024
        session.engine.commit()
    assert queue.payload_of(only(session, "q")) == bytes(1 << 20)
