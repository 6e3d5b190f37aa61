"""A repair of a journal of which any one record is damaged: each message is where the other records say that it is,
with its payload, if that can be read anywhere; else it is counted as lost."""

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from support.power_loss.log_world import KeepingDisk
from support.storage.broken_journals import Session, flip, segment_of, small_segments, start
from support.storage.engines import LOTS

from qs_storage.disk import Disk
from qs_storage.engine import Draft, NoRoomError, Options, OtherMessageError, Receipt, State
from qs_storage.journal.log import records
from qs_storage.journal.log.frames import FRAME_HEAD
from qs_storage.journal.log.opening import numbers_in, open_segment
from qs_storage.journal.log.places import place_of, segment_name
from qs_storage.journal.log.records import HEAD, WITH_PAYLOAD, Delete, Queue, Record, Shared, Transfer, parse
from qs_storage.journal.rescue.repair import repair

QUEUES = ("orders", "mail", "copies", "failed", "hot")
SEEDS = (6, 7, 9, 10, 11)
Message = tuple[str, int]


class Written(NamedTuple):
    """A record in a file. start: byte at which it begins; is_last: True if its frame is the last one of the log, which
    a start cuts off if it is not whole."""

    record: Record
    path: Path
    start: int
    is_last: bool

    @property
    def place(self) -> int:
        return place_of(int(self.path.name[:16]), self.start)


class World:
    """A journal whose messages move, are copied, deleted and compacted at random. No two payloads are the same."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self.rng = root, rng
        self.directory = root / ".journal"
        self.ever: dict[Message, bytes] = {}
        self.removed: dict[str, bytes] = {}
        """The segments that are gone, as they were."""
        root.mkdir()
        self.session = Session(root, disk=KeepingDisk(self.removed))
        for qid in QUEUES:
            letters = {"dead_letter": "failed", "max_receives": 9} if qid in {"orders", "copies"} else {}
            self.session.engine.create(qid, Options(storage="journal", **letters))  # type: ignore[arg-type]
        self.session.engine.commit()

    def push(self, qid: str, size: int) -> int:
        payload = b"%d:" % len(self.ever) + bytes(size)
        draft = Draft(payload, 0, None)
        [mid] = self.session.ask(lambda: self.session.engine.queue(qid).push([draft]))
        self.ever[qid, mid] = payload
        return mid

    def step(self) -> None:
        """Does one thing. Most frames have several."""
        self.session.clock.now += 1
        try:
            self._step()
        except NoRoomError as error:
            self.session.engine.commit()
            self.session.engine.secure(error.size)
        if self.rng.random() < 0.3:
            self.session.engine.commit()

    def _step(self) -> None:
        engine, rng = self.session.engine, self.rng
        qid = rng.choice(("orders", "orders", "copies", "mail", "failed"))
        queue = engine.queue(qid)
        mids = list(queue.list_mids(State.ALL, 1000, -1))
        mid = rng.choice(mids) if mids else 0
        match rng.choice(
            ("push", "hot", "hot", "upkeep", "delete", "copy", "dead letter", "dead letter", "redrive", "release")
        ):
            case "push":
                self.push(qid, rng.randrange(200))
            case "hot":
                engine.queue("hot").delete(Receipt(self.push("hot", rng.randrange(3000))))
            case "upkeep":
                for _ in range(rng.randrange(10)):
                    engine.commit()
                    if (work := engine.begin_upkeep()) is not None:
                        engine.commit()
                        work.run()
                        engine.finish_upkeep(work)
            case "delete" if mids:
                queue.delete(Receipt(mid))
            case "copy" if mids:
                target = rng.choice([each for each in ("orders", "copies", "mail") if each != qid])
                with suppress(OtherMessageError):
                    engine.copy(qid, mid, [target])
                    self.ever[target, mid] = self.ever[qid, mid]
            case "dead letter" if mids and qid in {"orders", "copies"}:
                queue.reject(Receipt(mid), rng.choice((None, "because")))
                self.ever["failed", engine.queue("failed").last_mid] = self.ever[qid, mid]
            case "redrive" if letters := engine.queue("failed").redrive.letters([], 1):
                [(mid, _)] = letters
                [(_, new)] = engine.queue("failed").redrive.move([(mid, queue)]) if qid != "failed" else [(0, 0)]
                if new:
                    self.ever[qid, new] = self.ever["failed", mid]
            case "release" if mids and (taken := engine.receive([qid], 1, 10**9, LOTS)):
                queue.release(Receipt(taken[0].mid), 0, reason="why")

    def crash(self, *, leftover: bool) -> None:
        """Ends as it is. leftover: True if the file of the segment that was given up last is there still."""
        for _ in range(2):
            self.push("hot", 0)
            self.session.engine.commit()
        self.session.crash()
        last = segment_name(numbers_in(str(self.directory), Disk())[0] - 1)
        if leftover and last in self.removed:
            (self.directory / last).write_bytes(self.removed[last])

    def written(self) -> list[Written]:
        """Returns the records of all files, in the order of the log."""
        found: list[Written] = []
        numbers = numbers_in(str(self.directory), Disk())
        for number in numbers:
            segment = segment_of(open_segment(str(self.directory), number))
            for frame in segment.frames:
                at = frame.start + FRAME_HEAD
                is_last = number == numbers[-1] and frame is segment.frames[-1]
                while at < frame.start + FRAME_HEAD + frame.length:
                    body = records.body_in(segment.data, at)
                    found.append(Written(parse(memoryview(bytes(body))), Path(segment.path), at, is_last))
                    at += HEAD.size + len(body)
        return found


def said(written: Iterable[Written]) -> dict[tuple[int, int], bool]:
    """Returns the messages that records say are there, by the number of the queue and the id: True for each whose
    payload can be read where its last record says, or at another place that the message had."""
    written = list(written)
    whole = {each.place for each in written if each.record.KIND in WITH_PAYLOAD}
    there: dict[tuple[int, int], bool] = {}
    for record in (each.record for each in written):
        match record:
            case records.Push() | records.Attributed() | records.Moved() | records.Letter():
                there[record.number, record.mid] = True
            case Shared():
                own, source = (record.number, record.mid), (record.source, record.mid)
                there[own] = record.place in whole or there.get(source, False) or there.get(own, False)
            case Transfer():
                before = there.pop((record.source, record.replaced), False)
                there[record.number, record.mid] = record.place in whole or before
            case Delete():
                there.pop((record.number, record.mid), None)
    return there


def check(world: World, copy: Path, written: list[Written], right: set[Message], damaged: list[Written]) -> None:
    """Damages records in a copy, repairs it, and compares. right: the messages of the whole journal."""
    shutil.copytree(world.root, copy)
    for each in damaged:
        flip(copy / ".journal" / each.path.name, each.start + HEAD.size, 7)
    done = repair(f"{copy}/.journal", Disk())
    now = {(qid, mid): payload for qid, found in start(copy).items() for mid, (payload, _) in found.items()}
    assert all(world.ever[message] == payload for message, payload in now.items())
    aside = [] if done is None else list(Path(done.aside).glob("queue-number-*/*"))
    files = sorted((int(path.name), path.read_bytes()) for path in aside)
    shutil.rmtree(copy)
    if done is None:  # its segment was given up
        assert now.keys() == right
        return
    others = [each for each in written if each not in damaged]
    names = {each.record.number for each in others if isinstance(each.record, Queue)}
    there = {True: set[Message](), False: set[Message]()}
    lost = 0
    for (number, mid), has_payload in said(others).items():
        lost += not has_payload
        if has_payload:
            there[number in names].add((QUEUES[number - 1], mid))
    assert now.keys() == there[True]
    assert done.counts == (Counter(qid for qid, _ in now), len(files), lost)
    assert files == sorted((message[1], world.ever[message]) for message in there[False])
    if not any(isinstance(each.record, Delete | Transfer) for each in damaged):
        assert now.keys() <= right


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    small_segments(monkeypatch, 12 << 10)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


def made(home: Path, seed: int) -> tuple[World, list[Written], set[Message]]:
    """Makes a journal of which some segments are given up and some are half copied; the file of the one that was given
    up last is there with odd seeds. Returns its records and its messages."""
    rng = random.Random(seed)
    world = World(home / "root", rng)
    for _ in range(rng.choice((60, 120))):
        world.step()
    world.crash(leftover=seed % 2 == 1)
    written = world.written()
    shutil.copytree(world.root, home / "whole")
    right = {(qid, mid) for qid, found in start(home / "whole").items() for mid in found}
    assert right == {(QUEUES[number - 1], mid) for number, mid in said(written)}
    assert {type(each.record) for each in written} >= {Shared, Transfer, Delete}
    return world, written, right


@pytest.mark.parametrize("seed", SEEDS)
def test_any_record(home: Path, seed: int) -> None:
    """A bit of each record in turn."""
    world, written, right = made(home, seed)
    for each in written:
        if not each.is_last:
            check(world, home / "copy", written, right, [each])


@pytest.mark.parametrize("qid", ["orders", "failed"])
@pytest.mark.parametrize("seed", [10])
def test_any_record_and_a_name(home: Path, seed: int, qid: str) -> None:
    """A bit of each record in turn, and all that say the name of a queue: its messages are files, and nowhere else."""
    world, written, right = made(home, seed)
    named = [each for each in written if isinstance(each.record, Queue) and each.record.qid == qid]
    for each in written:
        if not each.is_last and not isinstance(each.record, Queue):
            check(world, home / "copy", written, right, [*named, each])
