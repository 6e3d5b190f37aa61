"""A repair of a journal with messages that have moved or were copied: each has its payload, wherever that stands."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.power_loss.log_world import KeepingDisk
from support.storage.broken_journals import Picture, Session, flip, recover, small_segments, start

from qs_storage.disk import Disk
from qs_storage.engine import Options, Receipt
from qs_storage.journal.log.frames import BLOCK
from qs_storage.journal.log.places import segment_name, segment_of, start_of
from qs_storage.journal.log.records import Delete, Letter, Moved, Push, Queue, Record, Shared, Transfer
from qs_storage.journal.rescue.audit import verify
from qs_storage.journal.rescue.repair import Repaired, repair
from qs_storage.tools import journal_check as command

QUEUES = ("orders", "failed", "mail", "copies")


class World:
    """A journal with the message `moved`, and others around it."""

    def __init__(self, root: Path, *, without: str = "") -> None:
        root.mkdir()
        self.root = root
        self.directory = f"{root}/.journal"
        self.removed: dict[str, bytes] = {}
        """The segments that are gone, as they were."""
        self.session = Session(root, disk=KeepingDisk(self.removed))
        for qid in QUEUES:
            if qid != without:
                letters = {"dead_letter": "failed", "max_receives": 9} if qid in {"orders", "copies"} else {}
                self.session.engine.create(qid, Options(storage="journal", **letters))  # type: ignore[arg-type]
        self.session.engine.commit()

    def push(self, payload: bytes = b"moved") -> int:
        """Pushes a message to `orders`."""
        self.session.push("mail", b"before")
        [mid] = self.session.push("orders", payload)
        self.session.push("mail", b"after")
        return mid

    def make_dead_letter(self, mid: int, qid: str = "orders") -> int:
        """Moves a message to `failed`."""
        self.session.engine.queue(qid).reject(Receipt(mid), "because")
        self.session.engine.commit()
        return self.session.engine.queue("failed").last_mid

    def redrive(self, mid: int) -> int:
        """Moves a message from `failed` to `mail`."""
        queue = self.session.engine.queue("mail")
        [(_, new)] = self.session.engine.queue("failed").redrive.move([(mid, queue)])
        self.session.engine.commit()
        return new

    def copy(self, qid: str, mid: int) -> int:
        """Copies a message to `copies`."""
        self.session.engine.copy(qid, mid, ["copies"])
        self.session.engine.commit()
        return mid

    def compact(self) -> None:
        """Fills segments with what is gone at once, until all is copied that was there."""
        log = self.session.engine._journal.open().log
        last = log.number
        for _ in range(100):
            if (log.segments.oldest or 0) > last:
                return
            [mid] = self.session.push("mail", bytes(9000))
            self.session.engine.queue("mail").delete(Receipt(mid))
            self.session.engine.commit()
            self.session.upkeep()
        raise AssertionError("it is not compacted")

    def crash(self) -> Picture:
        """Returns what is there."""
        self.session.crash()
        return start(self.root)

    def damage(self, is_meant: Callable[[Record], bool]) -> None:
        """Flips a bit in each record that is meant, and in the messages `after`: so there is something to repair."""
        found = 0
        for place, record in recover(self.directory).placed:
            found += is_meant(record)
            if is_after(record) or is_meant(record):
                flip(Path(self.directory, segment_name(segment_of(place))), start_of(place) + 9, 1)
        assert found

    def repair(self) -> tuple[Repaired, Picture]:
        done = repair(self.directory, Disk())
        assert done is not None
        verify(self.directory, Disk())
        return done, start(self.root)

    def records(self, kind: type[Record]) -> list[Record]:
        return [record for record in recover(self.directory).records() if isinstance(record, kind)]

    def letters(self) -> list[tuple[int, str]]:
        """The dead letters that a start finds, and where they came from."""
        session = Session(self.root)
        try:
            return session.engine.queue("failed").redrive.letters([], 10)
        finally:
            session.crash()


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    small_segments(monkeypatch, 64 << 10)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder) / "root"


def is_after(record: Record) -> bool:
    return getattr(record, "payload", b"") == b"after"


def without_after(picture: Picture) -> Picture:
    mail = {mid: found for mid, found in picture["mail"].items() if found[0] != b"after"}
    return picture | {"mail": mail}


def payloads(picture: Picture, qid: str) -> list[bytes | None]:
    return [payload for payload, _ in picture[qid].values()]


CHAINS: dict[str, Callable[[World, int], object]] = {
    "moved": lambda world, mid: world.make_dead_letter(mid),
    "moved twice": lambda world, mid: world.redrive(world.make_dead_letter(mid)),
    "copied, then moved": lambda world, mid: world.make_dead_letter(world.copy("orders", mid)),
    "moved, then copied": lambda world, mid: world.copy("failed", world.make_dead_letter(mid)),
    "moved, copied, moved": lambda world, mid: world.redrive(world.copy("failed", world.make_dead_letter(mid))),
    "moved, compacted": lambda world, mid: (world.make_dead_letter(mid), world.compact()),
    "moved, compacted, moved": lambda world, mid: (
        letter := world.make_dead_letter(mid),
        world.compact(),
        world.redrive(letter),
    ),
    "moved, copied, compacted": lambda world, mid: (world.copy("failed", world.make_dead_letter(mid)), world.compact()),
    "moved, compacted, copied": lambda world, mid: (
        letter := world.make_dead_letter(mid),
        world.compact(),
        world.copy("failed", letter),
    ),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_all_of_it_is_whole(root: Path, chain: str) -> None:
    """Damage elsewhere changes nothing of a message that has moved, and writes its payload once. It moves on after the
    repair, and is compacted with its origin."""
    world = World(root)
    CHAINS[chain](world, world.push())
    world.push(b"another one")
    right = world.crash()
    letters = world.letters()
    world.damage(is_after)
    done, found = world.repair()
    assert found == without_after(right)
    assert world.letters() == letters
    assert done.counts.lost == 0
    assert sum(getattr(record, "payload", b"") == b"moved" for record in recover(world.directory).records()) == 1
    world.session = Session(root)
    for letter, _ in letters:
        world.redrive(letter)
    world.compact()
    now = world.crash()
    assert sorted(payloads(now, "mail")) == sorted(payloads(found, "mail") + [b"moved"] * len(letters))
    assert payloads(now, "copies") == payloads(found, "copies")
    verify(world.directory, Disk())


@pytest.mark.parametrize("chain", ["moved", "moved twice", "copied, then moved"])
def test_the_payload_is_lost(root: Path, chain: str) -> None:
    """Messages whose payload is lost are lost with it, and counted."""
    world = World(root)
    CHAINS[chain](world, world.push())
    right = world.crash()
    world.damage(lambda record: isinstance(record, Push) and record.payload == b"moved")
    done, found = world.repair()
    lost = [payload for messages in right.values() for payload, _ in messages.values() if payload == b"moved"]
    assert done.counts.lost == len(lost)
    assert found == {
        qid: {mid: each for mid, each in messages.items() if each[0] != b"moved"}
        for qid, messages in without_after(right).items()
    }


def test_the_command_says_so(root: Path) -> None:
    """The command says how many messages are lost with a payload of which they had no record of their own."""
    world = World(root)
    CHAINS["copied, then moved"](world, world.push())
    world.crash()
    world.damage(lambda record: isinstance(record, Push) and record.payload == b"moved")
    said = list(command.repair(f"{root}/.journal"))
    assert "lost: 2 messages that had moved or were copies: their payloads cannot be read" in said


def test_lost_and_gone(root: Path) -> None:
    """A message that was deleted after it had moved is not counted as lost."""
    world = World(root)
    world.session.engine.queue("failed").delete(Receipt(world.make_dead_letter(world.push())))
    world.session.engine.commit()
    world.crash()
    world.damage(lambda record: isinstance(record, Push) and record.payload == b"moved")
    assert world.repair()[0].counts.lost == 0


@pytest.mark.parametrize("chain", ["moved twice", "moved, then copied", "moved, copied, moved"])
def test_a_link_of_the_chain_is_lost(root: Path, chain: str) -> None:
    """Where the first move is lost, the message has a payload of its own at the end, and is back where it was first."""
    world = World(root)
    mid = world.push()
    CHAINS[chain](world, mid)
    right = world.crash()
    assert mid not in right["orders"]
    world.damage(lambda record: isinstance(record, Transfer) and record.source == 1)
    done, found = world.repair()
    assert found["orders"] == {mid: (b"moved", 0)}
    for qid in ("mail", "copies"):
        assert found[qid] == without_after(right)[qid]
    assert not found["failed"]
    assert done.counts.lost == 0
    assert world.records(Moved)


@pytest.mark.parametrize("left", ["all", "all, damaged", "the oldest"])
@pytest.mark.parametrize("then", ["dead letter", "copy"])
def test_an_older_payload(root: Path, then: str, left: str) -> None:
    """Where the newest payload is lost, the repair takes an earlier copy, from an obsolete segment that was not removed
    yet."""
    world = World(root)
    mid = world.push()
    world.compact()
    world.compact()
    world.make_dead_letter(mid) if then == "dead letter" else world.copy("orders", mid)
    right = world.crash()
    oldest, *others = sorted(world.removed)
    for name in [oldest] if left == "the oldest" else [oldest, *others]:
        there = bytearray(world.removed[name])
        there[2 * BLOCK + 60] ^= left == "all, damaged"  # in the first frame with records
        Path(world.directory, name).write_bytes(there)
    world.damage(lambda record: isinstance(record, Moved) and record.payload == b"moved")
    done, found = world.repair()
    if left == "all":
        assert found == right
        assert done.counts.lost == 0
    else:
        assert b"moved" not in [payload for messages in found.values() for payload, _ in messages.values()]
        assert done.counts.lost == 1


def test_a_lost_message_was_gone_from_its_queue(root: Path) -> None:
    """A move whose payload is lost still says that the message is gone where it was, even if another message seems to
    be there: one that had the same id before, and whose deletion is lost."""
    world = World(root)
    [mid] = world.session.push("orders", b"before")
    world.session.clock.now -= 1
    assert world.session.push("mail", b"moved") == [mid]
    engine = world.session.engine
    world.copy("orders", mid)
    engine.queue("copies").delete(Receipt(mid))
    engine.commit()
    world.copy("mail", mid)
    letter = world.make_dead_letter(mid, "copies")
    engine.queue("mail").delete(Receipt(mid))
    engine.commit()
    world.session.push("mail", b"after")
    world.push()
    right = world.crash()
    numbers = {record.qid: record.number for record in recover(world.directory).records() if isinstance(record, Queue)}
    world.damage(
        lambda record: (
            (isinstance(record, Push) and record.mid == mid and record.payload == b"moved")
            or (isinstance(record, Shared) and record.source == numbers["mail"])
            or (isinstance(record, Delete) and record.number == numbers["copies"])
        )
    )
    done, found = world.repair()
    assert done.counts.lost == 1
    del right["failed"][letter]
    assert found == without_after(right)


def test_a_move_that_says_what_is_gone(root: Path) -> None:
    """A move whose own source is not known to have the payload still removes the message there."""
    world = World(root)
    letter = world.make_dead_letter(world.push())
    world.session.engine.copy("failed", letter, ["orders"])
    world.session.engine.commit()
    world.make_dead_letter(letter)
    right = world.crash()
    assert not right["orders"]
    world.damage(lambda record: isinstance(record, Shared))
    found = world.repair()[1]
    assert found == without_after(right)


def test_the_name_of_the_source_is_lost(root: Path) -> None:
    """The payload stands in a record whose queue is unknown: the dead letter gets its own, with its origin, and no file
    has it too."""
    world = World(root, without="failed")
    world.session.crash()
    world.session = Session(root)
    world.make_dead_letter(world.push())  # makes `failed`, whose name is in a frame of its own
    right = world.crash()
    letters = world.letters()
    journal = recover(world.directory)
    [number] = [segment_of(place) for place, record in journal.placed if isinstance(record, Transfer)]
    [last] = [segment for segment in journal.segments if segment.header.number == number]
    with open(last.path, "r+b") as file:
        file.seek(last.frames[0].start)
        file.write(bytes(last.frames[0].end - last.frames[0].start))
    assert last.frames[0].start == BLOCK
    done, found = world.repair()
    assert found["failed"] == right["failed"]
    assert world.letters() == letters != []
    assert [record.payload for record in world.records(Letter) if isinstance(record, Letter)] == [b"moved"]
    files = [path.read_bytes() for path in Path(done.aside).glob("queue-number-*/*")]
    assert sorted(files) == [b"after", b"before"]


def test_the_name_of_the_target_is_lost(root: Path) -> None:
    """A message that has moved to a queue of which no name is left becomes a file, and so does a copy there. Only the
    copied one is in its first queue still."""
    world = World(root)
    mid = world.push()
    world.session.engine.copy("orders", mid, ["failed"])
    world.session.engine.commit()
    other = world.make_dead_letter(world.push(b"another one"))
    world.crash()
    world.damage(lambda record: isinstance(record, Queue) and record.qid == "failed")
    done, found = world.repair()
    assert payloads(found, "orders") == [b"moved"]
    files = {int(path.name): path.read_bytes() for path in Path(done.aside).glob("queue-number-*/*")}
    assert files == {mid: b"moved", other: b"another one"}
    assert done.counts.unplaced == 2
