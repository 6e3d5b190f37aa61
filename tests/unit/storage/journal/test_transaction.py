"""A transaction of the log: what it takes of its room, and that a batch is committed or taken back as a whole."""

import errno
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.storage.crashing import LogSession, segments_of

from qs_storage.engine import SECOND, Draft, Durability, NoRoomError, Receipt, State, StorageError
from qs_storage.journal.log import records
from qs_storage.journal.log.frames import BLOCK
from qs_storage.journal.log.log import BATCH
from qs_storage.journal.log.records import HEAD, PUSH_SIZE
from qs_storage.journal.queues.queue import LogQueue

Session = LogSession


@pytest.fixture(name="session")
def _session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    session = Session(tmp_path / "root")
    session.create("q")
    yield session
    session.leave()


# -- room -----------------------------------------------------------------------------------------------------------


def test_each_append_takes_its_bytes(session: Session) -> None:
    """The room that is left shrinks by each record with its head, and the places follow each other."""
    transaction = session.transaction
    left = transaction.left
    bodies = [bytes([2]) + bytes(20), bytes([2]) + bytes(5)]
    places = [transaction.append(bodies[0], b"payload"), transaction.append(bodies[1])]
    taken = [HEAD.size + 21 + 7, HEAD.size + 6]
    assert left - transaction.left == sum(taken)
    assert transaction.left == transaction.left_to_pushes
    places += transaction.append_all([bytes(9)] * 3, [b"a", b"bb", b""], [1, 2, 0], HEAD.size + 9)
    places.append(transaction.append(bytes([9])))
    assert [after - before for before, after in pairwise(places)] == [*taken, 18, 19, 17]
    assert left - transaction.left == sum(taken) + 3 * 17 + 3 + HEAD.size + 1
    session.engine.roll_back()
    assert transaction.left == left


def test_what_is_left_can_be_written(session: Session) -> None:
    """A batch that takes all that is left is one frame in the segment, and a block stays for a frame that gives up an
    older segment."""
    session.engine.begin_batch()
    transaction, writer = session.transaction, session.store.log.writer
    assert writer is not None
    session.queue("q").push([Draft(bytes(transaction.left_to_pushes - PUSH_SIZE))])
    assert transaction.left == 0
    transaction.commit()
    assert 0 <= writer.header.size - writer.end - BLOCK < BLOCK


def test_places_are_those_in_the_segment(session: Session) -> None:
    """A record can be read at its place once the batch is committed."""
    places = [session.transaction.append(records.Delete(1, mid).write()) for mid in range(3)]
    session.engine.commit()
    found = [records.parse(session.store.reader.body(place)) for place in places]
    assert found == [records.Delete(1, mid) for mid in range(3)]


REFUSED: dict[str, Callable[[LogQueue, int], object]] = {
    "push": lambda queue, mid: queue.push([Draft(bytes(1 << 16))]),
    "push with keys": lambda queue, mid: queue.push([Draft(bytes(1 << 15), 0, "k"), Draft(bytes(1 << 15), 5, "l")]),
    "stage": lambda queue, mid: queue.batches.stage("new", (1, 0, 0), list(map(Draft, [bytes(1 << 16)]))),
    "release": lambda queue, mid: queue.release(Receipt(mid), 0, reason="x" * 1000),
    "extend": lambda queue, mid: queue.extend(Receipt(mid), 5),
    "delete": lambda queue, mid: queue.delete(Receipt(mid)),
    "purge": lambda queue, mid: queue.purge(1 << 62, 10),
    "reject": lambda queue, mid: queue.reject(Receipt(mid), "why"),
    "claim": lambda queue, mid: queue.claims.claim("new", 1, 10, None, None),
    "acknowledge": lambda queue, mid: queue.claims.acknowledge("c", 1),
    "unclaim": lambda queue, mid: queue.claims.release("c", 1),
    "publish": lambda queue, mid: queue.batches.publish("p", 1, [(0, 0)]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_changes_nothing(session: Session, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A request for which too little is left changes neither memory nor the transaction, and says how much it needs:
    the next batch has that."""
    monkeypatch.setattr("support.storage.engines.without_broker", {})  # else the engine of the tests ends the batch
    queue = session.create("full", dead_letter="q", max_receives=5)
    queue.push([Draft(b"claimed")])
    queue.claims.claim("c", 1, 1, None, None)
    queue.batches.stage("p", (1, 0, 0), list(map(Draft, [b"staged"])))
    [mid, _] = queue.push([Draft(b"in flight"), Draft(b"visible")])
    session.engine.commit()
    queue.take(mid, SECOND)
    session.engine.commit()
    session.engine.secure(NoRoomError(1 << 16))
    transaction = session.transaction
    session.queue("q").push([Draft(bytes(transaction.left - PUSH_SIZE - 10))])
    assert transaction.left == 10
    before, changes = session.memory(), len(transaction.changed)
    with pytest.raises(NoRoomError) as caught:
        REFUSED[name](queue, mid)
    assert caught.value.errno == errno.ENOSPC
    assert (session.memory(), len(transaction.changed), transaction.left) == (before, changes, 10)
    session.engine.commit()
    session.engine.secure(caught.value)
    assert transaction.left_to_pushes >= caught.value.size
    REFUSED[name](queue, mid)
    session.engine.commit()


def test_a_batch_ends_at_its_bound(tmp_path: Path) -> None:
    """However large the segment is, a batch takes 8 MiB at most; a request that needs more gets it in a batch of its
    own."""
    session = Session(tmp_path / "root")
    queue = session.create("q")
    transaction, log = session.transaction, session.store.log
    while log.room <= BATCH + (4 << 20):
        queue.delete(Receipt(queue.push([Draft(bytes(log.room // 2))])[0]))
        session.engine.commit()
    assert transaction.left == transaction.left_to_pushes == BATCH
    queue.push([Draft(bytes(3 << 20))])
    assert transaction.left == BATCH - PUSH_SIZE - (3 << 20)
    queue.push([Draft(bytes(10 << 20))])  # in the next batch
    assert len(transaction.pending) == 1
    session.engine.commit()
    assert transaction.left <= BATCH
    assert [len(queue.payload_of(mid)) >> 20 for mid in queue.list_mids(State.ALL, 9, -1)] == [3, 10]
    session.leave()


# -- segments that are given up -------------------------------------------------------------------------------------


def test_a_segment_is_given_up_by_the_next_frame(session: Session) -> None:
    """Until a frame says that a segment is not needed, it is needed; if that frame cannot be written, it stays."""
    log, queue = session.store.log, session.queue("q")
    while log.number < 3:
        queue.push([Draft(bytes(20_000))])
        queue.delete(Receipt(queue.last_mid))
        session.engine.commit()
    assert list(log.segments.sizes) == [1, 2, 3]
    session.transaction.give_up_before(2)
    assert list(log.segments.sizes) == [1, 2, 3]
    session.disk.arm(1, errno.ENOSPC, "_pwrite")
    with pytest.raises(OSError, match="space"):
        session.transaction.commit()
    session.disk.disarm()
    assert (list(log.segments.sizes), log.segments.has_garbage) == ([1, 2, 3], False)
    assert session.transaction.commit() == []  # what was taken back is not said by a later frame
    session.transaction.give_up_before(2)
    assert session.transaction.commit() == [1]
    assert (list(log.segments.sizes), log.segments.take_garbage()) == ([2, 3], [log.segments.path_of(1)])


@pytest.mark.parametrize("durability", ["always", "none"])
def test_its_file_goes_when_the_copies_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """The file of a segment is used again or removed only after a sync of the frames with the copies of what it had; if
    that sync fails, the file stays."""
    segments_of(monkeypatch, 1 << 16, 1 << 16)
    session = Session(tmp_path / "root", durability=Durability(durability))
    queue, log = session.create("q"), session.store.log
    queue.push([Draft(b"kept")])
    while log.number < 3:
        queue.push([Draft(bytes(20_000))])
        queue.delete(Receipt(queue.last_mid))
        session.engine.commit()
    session.compact(1)
    assert list(log.segments.sizes) == [2, 3]
    first = Path(log.segments.path_of(1))
    assert first.exists()
    work = session.engine.begin_upkeep()
    assert work is not None
    if durability == "none":
        session.disk.arm(1, errno.EIO, "fdatasync")
        work.run()
        assert first.exists()
        assert log.failed is not None
    else:
        work.run()
        session.engine.finish_upkeep(work)
        assert not first.exists()
    session.leave()


# -- taking back ----------------------------------------------------------------------------------------------------

QIDS = ("a", "b", "dead")
ERRORS = (StorageError, OSError)


def act(session: Session, name: str, number: int, other: int) -> None:
    """Does one thing to the queues. number, other: choose to which message, and how."""
    queue = session.queue(QIDS[number % 3])
    other_queue = session.queue(QIDS[other % 3])
    mids = queue.list_mids(State.ALL, 100, -1)
    receipt = Receipt(mids[number // 3 % len(mids)]) if mids else Receipt(1)
    reason = None if other % 2 else f"reason {number}"
    claims, batches = queue.claims, queue.batches
    consumer, part = f"c{other % 2}", (other // 2 % 4, number // 3 % 2, other % 2)
    match name:
        case "push":
            drafts = [Draft(b"%d-%d" % (number, each) * 20) for each in range(other % 3 + 1)]
            queue.push(drafts)
        case "push with":
            queue.push([Draft(b"%d" % number * 9, other % 2 * SECOND, f"k{number % 5}" if other % 3 else None)])
        case "receive":
            queue.take_first(other % 3 + 1, SECOND * 15, 1 << 20)
        case "release":
            queue.release(receipt, SECOND * (other % 2), count=other % 3 > 0, reason=reason)
        case "extend":
            queue.extend(receipt, SECOND * (1 + other))
        case "delete":
            queue.delete(receipt)
        case "purge":
            queue.purge(receipt.mid, other % 3)
        case "reject":
            queue.reject(receipt, reason)
        case "redrive":
            dead = session.queue("dead")
            letters = [mid for mid, _ in dead.redrive.letters((), other % 3 + 1)]
            dead.redrive.move([(mid, session.queue(QIDS[number % 2])) for mid in letters])
        case "copy":
            other_queue.take_in(receipt.mid, queue)
        case "claim":
            last = claims.consumers.get(consumer)
            following = 1 if last is None else max([last.acked, *last.claims]) + 1
            claims.claim(consumer, following, other % 3 + 1, None, None)
        case "acknowledge":
            state = claims.consumers.get(consumer)
            claims.acknowledge(consumer, max(state.claims, default=1) if state else 1)
        case "unclaim":
            state = claims.consumers.get(consumer)
            claims.release(consumer, max(state.claims, default=1) if state else 1)
        case "stage":
            batches.stage("p", part, list(map(Draft, [b"staged %d" % number] * (number % 3))))
        case "publish":
            state_p = batches.producers.get("p")
            names = sorted(state_p.staged) if state_p else []
            if names:
                batches.publish("p", names[0][0], [names[0][1:]])
        case "expire":
            session.clock.now += SECOND * (other % 2) * 10
            queue.expire(100)
        case "compact":
            while session.compaction.step() is not None and session.transaction.left > 10_000:
                pass


NAMES = (
    *("push", "push with", "receive", "release", "extend", "delete", "purge", "reject", "redrive", "copy"),
    *("claim", "acknowledge", "unclaim", "stage", "publish", "expire", "compact"),
)
NUMBERS = st.integers(0, 30)
BATCHES = st.lists(
    st.tuples(
        st.sampled_from(("commit", "take back", "fail", "kill", "restart")),
        st.lists(st.tuples(st.sampled_from(NAMES), NUMBERS, NUMBERS), min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=14,
)


@given(BATCHES)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
def test_batches(batches: list[tuple[str, list[tuple[str, int, int]]]]) -> None:
    """Whatever a batch does, taking it back leaves memory as it was. A start, from the segments or from a checkpoint,
    finds what was committed: messages with their payloads, states, reasons and origins, keys, claims, batches, and the
    live bytes of each segment."""
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        segments_of(patch, 1 << 15, 1 << 15)
        session = Session(Path(directory) / "root")
        try:
            session.create("dead")
            session.create("b", dead_letter="dead", max_receives=3)
            session.create("a", dead_letter="dead", max_receives=2)
            for end, actions in batches:
                _one_batch(session, end, actions)
        finally:
            session.leave()


def _expire(session: Session) -> None:
    """Ends what is over, and commits."""
    while session.engine.expire(1000):
        session.engine.commit()
    session.engine.commit()


def _take_back(session: Session, end: str) -> None:
    if end == "take back" or not session.transaction.changed:
        session.engine.roll_back()
        return
    session.disk.arm(1, errno.ENOSPC, "_pwrite")
    with pytest.raises(OSError, match="space"):
        session.engine.commit()
    session.disk.disarm()


def without_states(memory: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what the end of a window changes: that stays when a batch is taken back."""
    found: dict[str, Any] = {each: memory[each] for each in ("live", "all")}
    for qid in QIDS:
        messages = {
            mid: {each: message[each] for each in ("payload", "place", "past")}
            for mid, message in memory[qid]["messages"].items()
        }
        found[qid] = {**memory[qid], "messages": messages, "pasts": memory[qid]["pasts"][:2]}
    return found


def _one_batch(session: Session, end: str, actions: list[tuple[str, int, int]]) -> None:
    session.engine.secure()
    session.queue("a").push([Draft(bytes(5000))])  # so that segments come to their ends
    session.queue("a").delete(Receipt(session.queue("a").last_mid))
    _expire(session)
    session.transaction.ask(16_000)
    session.engine.secure()
    assert session.transaction.left_to_pushes >= 16_000
    before, writer = session.memory(), session.store.log.sequence
    if end in {"take back", "fail"}:
        actions = [action for action in actions if action[0] != "receive"]  # its record goes, and it stays
    for name, number, other in actions:
        if session.transaction.left_to_pushes > 8000:
            with suppress(*ERRORS):
                act(session, name, number, other)
    assert session.store.log.sequence == writer, "nothing commits within a batch"
    if end in {"take back", "fail"}:
        _take_back(session, end)
        after = session.memory()
        if any(name == "expire" for name, _, _ in actions):
            assert without_states(after) == without_states(before)
        else:
            assert after == before
        return
    _expire(session)
    before = session.memory()
    assert all(size > 0 for size in before["live"].values())
    assert sum(before["live"].values()) == before["all"]
    if end != "commit":
        session.store.transaction.commit(notes=True)
        session.kill() if end == "kill" else session.restart()
        _expire(session)
        assert session.memory() == before
