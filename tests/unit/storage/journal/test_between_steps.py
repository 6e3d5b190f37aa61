"""Requests between two steps of compaction, and between a change and the commit that records it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storage.crashing import LogSession, segments_of

from qs_storage.engine import Draft, NoRoomError, Options, QueueFullError, Receipt, State
from qs_storage.journal.log.places import segment_of

COUNT = 100


@pytest.fixture(name="session")
def _session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogSession]:
    """A journal whose first segment has messages of two queues in turn, and one more segment."""
    segments_of(monkeypatch, 1 << 17, 1 << 17)
    session = LogSession(tmp_path / "root")
    session.create("q", dead_letter="dead", max_receives=9)
    session.create("other")
    session.create("dead")
    for number in range(COUNT // 2):
        session.queue("q").push([Draft(b"%d" % number * 100), Draft(b"%d," % number * 100)])
        session.clock.now += 1000  # else they would have the same ids, of other messages
        session.queue("other").push([Draft(b"%d" % number)])
        session.clock.now += 1000
        if number % 10 == 9:
            session.engine.commit()
    session.engine.commit()
    room = session.engine._journal.room
    assert room is not None
    room._begin(1 << 16, push=False)
    session.queue("q").push([Draft(b"in the next segment")])
    session.engine.commit()
    yield session
    session.leave()


def copy(session: LogSession, mid: int) -> None:
    session.engine.copy("q", mid, ["other"])


def reject(session: LogSession, mid: int) -> None:
    session.queue("q").reject(Receipt(mid), "no")


def copy_and_reject(session: LogSession, mid: int) -> None:
    copy(session, mid)
    reject(session, mid)


def delete(session: LogSession, mid: int) -> None:
    session.queue("q").delete(Receipt(mid))


def payloads(session: LogSession) -> dict[str, list[bytes | None]]:
    queues = {qid: session.queue(qid) for qid in ("q", "other", "dead")}
    return {
        qid: sorted(queue.read(Receipt(mid)).payload or b"" for mid in queue.list_mids(State.ALL, 9 * COUNT, -1))
        for qid, queue in queues.items()
    }


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("change", [copy, reject, copy_and_reject, delete])
def test_what_is_not_copied_yet_changes(
    session: LogSession, change: Callable[[LogSession, int], None], steps: int
) -> None:
    """Compaction waits before each of its copies. What is copied, moved or deleted meanwhile is where it belongs, at
    once and after the next start, and the segment is given up."""
    room, compaction = session.engine._journal.room, session.compaction
    assert room is not None
    oldest, done = compaction.oldest, 0
    assert oldest is not None
    while compaction.oldest == oldest:
        room.compact(0, 1 << 30)
        session.engine.commit()
        done += 1
        if done == steps:
            places = session.queue("q").places
            for mid in session.queue("q").list_mids(State.ALL, COUNT, -1):
                if segment_of(places.get(mid) or 0) == oldest:
                    session.engine.begin_batch()
                    change(session, mid)
                    session.engine.commit()
    assert done > steps
    assert session.store.log.segments.oldest != oldest
    held = payloads(session)
    assert sum(map(len, held.values())) > COUNT // 2
    session.kill()
    assert payloads(session) == held


def test_a_queue_that_is_made_anew_in_a_batch_that_is_taken_back(session: LogSession) -> None:
    """Messages that are pushed into it afterwards are there after the next start."""
    session.engine.remove("other", force=True)
    session.engine.create("other", Options("journal"))
    session.engine.roll_back()
    session.engine.secure()
    session.queue("other").push([Draft(b"1"), Draft(b"2")])
    session.engine.commit()
    session.kill()
    assert payloads(session)["other"] == [b"1", b"2"]


def test_a_commit_with_a_removed_queue_fails(session: LogSession) -> None:
    """A commit that fails raises its error also in a batch that removes a queue, when the segment is gone."""
    shutil.rmtree(session.root / ".journal")
    [mid] = session.queue("q").push([Draft(b"new")])
    session.engine.remove("other", force=True)
    with pytest.raises(FileNotFoundError):
        session.engine.commit()
    assert mid not in session.queue("q").index.messages


def test_a_copy_into_many_queues_is_whole_or_nothing(session: LogSession) -> None:
    """The last of them is full, and what was copied is removed again: there is room for that too."""
    targets = [f"t{number}" for number in range(20)]
    for qid in targets:
        session.create(qid)
    session.clock.now += 1000
    session.create("full", capacity=1).push([Draft(b"x")])
    session.engine.commit()
    mid = session.queue("q").first_ready()
    assert mid is not None
    session.transaction.left = session.transaction.left_to_pushes = 25 * 53
    with pytest.raises((NoRoomError, QueueFullError)):
        session.engine.copy("q", mid, [*targets, "full"])
    session.engine.commit()
    assert not any(len(session.queue(qid)) for qid in targets)
