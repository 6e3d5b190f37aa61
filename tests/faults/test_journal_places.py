"""A place names one record: no segment has bytes without a place, and another message's record is never delivered."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.storage.broken_journals import Session, flip, middle_of, small_places, small_segments, start
from support.storage.engines import LOTS

from qs_storage.disk import Disk
from qs_storage.engine import Draft, Engine, Options, Receipt, State, StorageError
from qs_storage.journal.log import pool
from qs_storage.journal.log.frames import BLOCK
from qs_storage.journal.log.opening import JournalDamagedError
from qs_storage.journal.log.places import SHIFT, PlaceError, place_of, segment_of, start_of
from qs_storage.journal.log.reader import DamagedRecordError
from qs_storage.journal.queues.queue import LogQueue
from qs_storage.journal.rescue.audit import verify
from qs_storage.journal.rescue.damage import ExaminedJournal, examine
from qs_storage.journal.rescue.repair import repair
from qs_storage.tools import journal_check
from qs_storage.tools.convert import export


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for a journal whose places have 16 bits for the byte, in segments of 24 KiB."""
    small_places(monkeypatch)
    small_segments(monkeypatch)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder) / "root"


def opened(root: Path, *qids: str) -> Session:
    """Opens an engine with these queues."""
    root.mkdir(exist_ok=True)
    session = Session(root)
    for qid in qids:
        session.engine.create(qid, Options(storage="journal"))
    session.engine.commit()
    return session


def damage_a_message(root: Path) -> None:
    path, at = middle_of(root)
    flip(path, at, 3)


def test_a_place() -> None:
    """A byte or a segment beyond its bits is refused where the place is made."""
    most = (1 << SHIFT) - 1
    assert (segment_of(place_of(most, most)), start_of(place_of(most, most))) == (most, most)
    for segment, byte in ((1, most + 1), (most + 1, 0), (1, -1)):
        with pytest.raises(PlaceError, match="has no place"):
            place_of(segment, byte)


def test_a_repair_writes_several_segments(root: Path) -> None:
    """More than a place can name is kept: every message has its own payload, in segments of ordinary size."""
    session = opened(root, "orders", "mail")
    payloads: dict[str, dict[int, bytes]] = {"orders": {}, "mail": {}}
    for number in range(150):
        for qid, pushed in payloads.items():
            payload = b"%s %d " % (qid.encode(), number) * 60
            pushed[session.push(qid, payload)[0]] = payload
    session.crash()
    damage_a_message(root)
    done = repair(f"{root}/.journal", Disk())
    assert done is not None
    assert len(done.segments) > 4
    assert max(map(os.path.getsize, done.segments)) <= pool.LARGEST_SEGMENT
    found = {qid: {mid: payload for mid, (payload, _) in kept.items()} for qid, kept in start(root).items()}
    assert sum(len(pushed.keys() - found[qid].keys()) for qid, pushed in payloads.items()) == 1
    assert all(pushed[mid] == found[qid][mid] for qid, pushed in payloads.items() for mid in found[qid])
    assert sum(done.counts.messages.values()) == 299


def test_more_than_a_segment_can_have(root: Path) -> None:
    """A list for which no segment is large enough is refused, and nothing is changed. One that just fits is stored in a
    segment of its own, and kept by a repair."""
    session = opened(root, "orders")
    with pytest.raises(OSError, match="do not fit into one segment"):
        session.push("orders", *[bytes(10_000)] * 7)
    session.engine.roll_back()
    assert not len(session.engine.queue("orders"))
    [large] = session.push("orders", b"large " * 7000)
    many = session.push("orders", *[b"one of many " * 8] * 250)
    session.push("orders", b"the end")
    session.crash()
    [path] = [path for path in Path(root, ".journal").glob("*.segment") if b"of many" in path.read_bytes()]
    flip(path, path.read_bytes().index(b"one of many"), 0)
    assert repair(f"{root}/.journal", Disk()) is not None
    kept = {mid: payload for mid, (payload, _) in start(root)["orders"].items()}
    assert kept[large] == b"large " * 7000
    assert len(kept.keys() & set(many)) == 249


def table_of(session: Session, qid: str) -> LogQueue:
    queue = session.engine.queue(qid)
    assert isinstance(queue, LogQueue)
    return queue


def misplaced(session: Session, qid: str, mid: int, other: int) -> None:
    """Makes the index give another message's place."""
    places = table_of(session, qid).places
    places.set(mid, places.get(other) or 0)


def _export(session: Session, root: Path) -> None:
    session.engine.close()
    list(export(str(root), f"{root}-exported", [], lambda count: None))


READS: dict[str, Callable[[Engine, int], object]] = {
    "peek": lambda engine, mid: engine.queue("orders").get(mid, peek=True, visibility=None),
    "read": lambda engine, mid: engine.queue("orders").read(Receipt(mid)),
    "read of a copy": lambda engine, mid: (  # a copy shares the place, and does not look there
        engine.copy("orders", mid, ["mail"]),
        engine.queue("mail").get(mid, peek=True, visibility=None),
    ),
    "claim": lambda engine, mid: (
        engine.queue("orders").claims.claim("c", 1, 1, None, None),
        engine.queue("orders").claims.part("c", 1, (0, 1), LOTS, LOTS),
    ),
}


@pytest.mark.parametrize("read", READS)
def test_a_place_of_another_message(root: Path, read: str) -> None:
    """Whatever reads a payload gets an error, not the payload of the record that is there."""
    session = opened(root, "orders", "mail")
    one, two = session.push("orders", b"one", b"two")
    misplaced(session, "orders", one, two)
    with pytest.raises(DamagedRecordError, match=f"it is message {two} of queue 1, not {one} of [12]"):
        READS[read](session.engine, one)
    session.crash()


@pytest.mark.parametrize("count", [1, 10])
def test_it_is_not_delivered(root: Path, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """A receive leaves out the message, with a line in the log, and gives those behind it."""
    session = opened(root, "orders")
    one, two = session.push("orders", b"one", b"two")
    misplaced(session, "orders", one, two)
    [message] = session.engine.receive(["orders"], count, None, LOTS)
    assert (message.mid, message.payload) == (two, b"two")
    assert f"message {one} of queue 'orders' is not delivered" in caplog.text
    assert f"it is message {two}" in caplog.text
    session.crash()


def test_the_same_id_in_another_queue(root: Path) -> None:
    """The queue is compared too, as queues can have messages with the same id."""
    session = opened(root, "orders", "mail")
    [one] = session.push("orders", b"in orders")
    session.clock.now -= 1
    assert session.push("mail", b"in mail") == [one]
    table_of(session, "orders").places.set(one, table_of(session, "mail").places.get(one) or 0)
    with pytest.raises(DamagedRecordError, match=f"it is message {one} of queue 2, not {one} of 1"):
        session.engine.queue("orders").get(one, peek=True, visibility=None)
    session.crash()


def test_a_place_without_a_segment(root: Path) -> None:
    """A place in a segment that is not there is an error of that message too."""
    session = opened(root, "orders")
    [one] = session.push("orders", b"one")
    table_of(session, "orders").places.set(one, place_of(99, BLOCK))
    with pytest.raises(DamagedRecordError, match="there is no such segment"):
        session.engine.queue("orders").get(one, peek=True, visibility=None)
    session.crash()


def test_staged_messages_have_their_ids(root: Path) -> None:
    """A published message is read where it was staged, which has no id; another one's place is noticed. A copy is read
    still when the queue of the batch is removed."""
    session = opened(root, "orders", "mail")
    batches = session.engine.queue("orders").batches
    batches.stage("p", (1, 0, 0), list(map(Draft, [b"one", b"two"])))
    batches.publish("p", 1, [(0, 0)])
    session.engine.commit()
    one, two = sorted(table_of(session, "orders").index.messages.after(-1, 9))
    session.engine.copy("orders", one, ["mail"])
    session.engine.commit()
    for qid, mid, payload in (("orders", one, b"one"), ("orders", two, b"two"), ("mail", one, b"one")):
        assert session.engine.queue(qid).get(mid, peek=True, visibility=None).payload == payload
    misplaced(session, "orders", two, one)
    with pytest.raises(DamagedRecordError, match=f"it is message {one}"):
        session.engine.queue("orders").get(two, peek=True, visibility=None)
    misplaced(session, "orders", one, one)
    session.crash()
    session = opened(root)
    session.engine.remove("orders", force=True)
    session.engine.commit()
    assert session.engine.queue("mail").get(one, peek=True, visibility=None).payload == b"one"
    session.crash()


def with_wrong_checkpoint(root: Path) -> tuple[int, int]:
    """Makes a journal whose checkpoint gives a message the place of another one."""
    session = opened(root, "orders")
    one, two = session.push("orders", b"one", b"two")
    session.push("orders", b"three")
    right = table_of(session, "orders").places.get(one) or 0
    misplaced(session, "orders", one, two)
    session.engine.close()
    assert Path(root, ".journal", "checkpoint").exists()
    assert right
    return one, two


def test_check_compares(root: Path) -> None:
    """A check reads every message that a start would have, and a repair repairs the damage that it finds."""
    one, two = with_wrong_checkpoint(root)
    refusal = examine(f"{root}/.journal", Disk()).refusal
    assert refusal is not None
    assert f"message {one} of queue 'orders'" in str(refusal)
    assert f"it is message {two}" in str(refusal)
    assert repair(f"{root}/.journal", Disk()) is not None
    verify(f"{root}/.journal", Disk())
    assert [payload for payload, _ in start(root)["orders"].values()] == [b"one", b"two", b"three"]
    assert repair(f"{root}/.journal", Disk()) is None


def test_export_compares(root: Path) -> None:
    """An export stops at a message that is not at its place, and says so."""
    one, _ = with_wrong_checkpoint(root)
    with pytest.raises(StorageError, match=f"not {one} of"):
        list(export(str(root), f"{root}-exported", [], lambda count: None))
    assert not list(Path(f"{root}-exported").rglob(f"*{one}"))


def test_the_last_number_is_written_twice(root: Path) -> None:
    """After a repair, one bad place of the file `lock` does not make the new segments foreign ones."""
    session = opened(root, "orders")
    for number in range(30):
        session.push("orders", b"%d " % number * 1500)
    session.crash()
    damage_a_message(root)
    assert repair(f"{root}/.journal", Disk()) is not None
    right = start(root)
    for at in (20, 532):
        shutil.copytree(root, f"{root}-{at}")
        flip(Path(f"{root}-{at}/.journal/lock"), at, 0)
        assert start(Path(f"{root}-{at}")) == right


def test_a_check_beside_a_busy_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal from which the server removes segments as fast as they are read is not called damaged: the check says
    what to do."""
    session = opened(root, "orders")
    session.push("orders", b"one")
    reads: list[str] = []

    def examined(directory: str, disk: Disk) -> ExaminedJournal:
        reads.append(directory)
        found = examine(directory, disk)
        gone = found.parts[0]._replace(path=f"{directory}/gone")
        return found._replace(parts=[gone], refusal=JournalDamagedError(directory, "it changed"))

    monkeypatch.setattr(journal_check, "examine", examined)
    with pytest.raises(StorageError, match="faster than they can be read: check a backup"):
        journal_check.check(f"{root}/.journal", verbose=False)
    assert len(reads) > 1
    session.crash()


def test_a_claim_that_no_segment_can_hold(root: Path) -> None:
    """A claim whose ids need more than a segment is refused, and nothing is claimed; a smaller one is made."""
    session = opened(root, "orders")
    for _ in range(90):
        session.push("orders", *[b""] * 100)
    claims = session.engine.queue("orders").claims
    with pytest.raises(OSError, match="do not fit into one segment"):
        session.ask(lambda: claims.claim("c", 1, 9000, None, None))
    session.engine.roll_back()
    assert session.ask(lambda: claims.claim("c", 1, 5000, None, None)).count == 5000
    session.engine.commit()
    session.crash()
    session = opened(root)
    assert len(session.engine.queue("orders").list_mids(State.READY, 10_000, -1)) == 4000
    session.crash()
    verify(f"{root}/.journal", Disk())
