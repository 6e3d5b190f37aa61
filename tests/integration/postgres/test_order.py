"""Groups, limits and unique keys of the storage postgres, with two servers at work on one database."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.storage.engines import LOTS, JournalEngine, ManualClock
from support.storage.postgres import Database, engine_on, needs_postgres

from qs_storage.engine import Draft, Durability, Message, Options, Receipt

if TYPE_CHECKING:
    from qs_storage.postgres.engine import PostgresEngine

pytestmark = needs_postgres
GROUPS = [f"g{number}" for number in range(6)]
SECONDS = 30
"""Only a failure waits that long."""


@pytest.fixture
def engines(database: Database, tmp_path: Path) -> "Iterator[list[PostgresEngine]]":
    """Two servers over one database, whose clock they have."""
    with (
        closing(engine_on(database, tmp_path / "a", of_database=True)) as one,
        closing(engine_on(database, tmp_path / "b", of_database=True)) as other,
    ):
        yield [one, other]


def make(engines: "list[PostgresEngine]", options: Options) -> None:
    """Makes the queue q, and waits until each engine knows it."""
    engines[0].create("q", options)
    deadline = time.monotonic() + SECONDS
    while not all("q" in engine.queues() for engine in engines):
        assert time.monotonic() < deadline
        engines[1]._upkeep.read_queues_now()


class Workers:
    """Threads that receive, delete and release messages, and look at what is out at a time.

    A message is noted after its receive, and taken off before its end: so what is noted is out."""

    def __init__(self, engines: "list[PostgresEngine]", *, most: int, number: int) -> None:
        """most: of a group that may be out; number: of messages to delete, after which the threads end."""
        self.most = most
        self.left = number
        self.faults: list[str] = []
        self.highest = 0
        """The most messages that were out at a time."""
        self._lock = threading.Lock()
        self._out: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._deadline = time.monotonic() + SECONDS
        self._threads = [
            threading.Thread(target=self._work, args=(engine, random.Random(number)), daemon=True)
            for engine in engines
            for number in range(3)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(SECONDS)
        assert (self.faults, self.left) == ([], 0)

    def _work(self, engine: "PostgresEngine", choices: random.Random) -> None:
        try:
            while self.left and not self.faults:
                if time.monotonic() > self._deadline:
                    raise AssertionError(f"{self.left} messages never come")
                for message in engine.receive(["q"], choices.randint(1, 3), None, LOTS, wait=0.2):
                    self._note(message)
                    self._end(engine, message, choices.random())
        except BaseException as error:
            self.faults.append(repr(error))

    def _note(self, message: Message) -> None:
        with self._lock:
            self._out[message.group] += 1
            self.highest = max(self.highest, self._out.total())
            out, number = self._out[message.group], int(message.payload or b"")
            if message.group and out > self.most:
                self.faults.append(f"{out} of group {message.group} are out")
            if message.group and self.most == 1:
                if number < self._last.get(message.group, 0):
                    self.faults.append(f"{number} of group {message.group} comes behind a younger one")
                self._last[message.group] = number

    def _end(self, engine: "PostgresEngine", message: Message, chance: float) -> None:
        receipt = Receipt(message.mid, message.receives)
        with self._lock:
            self._out[message.group] -= 1
        if chance < 0.8:
            engine.queue("q").delete(receipt)
            with self._lock:
                self.left -= 1
        else:
            engine.queue("q").release(receipt, 0 if chance < 0.9 else 3000)


def push_all(engines: "list[PostgresEngine]", drafts: list[Draft]) -> None:
    """Pushes drafts a few at a time, those of a group at one server."""
    for at in range(0, len(drafts), 7):
        for turn, engine in enumerate(engines):
            mine = [draft for draft in drafts[at : at + 7] if sum(draft.group.encode()) % 2 == turn]
            engine.queue("q").push(mine)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(group_in_flight=3),
        Options(fair=True),
        Options(fair=True, group_in_flight=2),
        Options(max_in_flight=2),
    ],
    ids=["strict", "three of a group", "fair", "fair, two of a group", "two in flight"],
)
def test_many_at_once(engines: "list[PostgresEngine]", options: Options) -> None:
    """However pushes, receives, deletes and releases of two servers meet: no group has more out than it may, a strict
    one is in order, and nothing waits for ever."""
    make(engines, options)
    choices = random.Random(1)
    drafts = [Draft(b"%d" % number, group=choices.choice([*GROUPS, ""])) for number in range(250)]
    workers = Workers(engines, most=options.group_in_flight or 1, number=len(drafts))
    push_all(engines, drafts)
    workers.finish()
    assert options.max_in_flight is None or workers.highest <= options.max_in_flight
    assert engines[0].queue("q").stats().ready == engines[0].queue("q").stats().in_flight == 0


def keyed(engine: "PostgresEngine", *, unique: bool) -> int:
    """Pushes a message with the key k. Returns its id, or that of the first one."""
    [mid] = engine.queue("q").push([Draft(b"x", key="k", unique=unique)])
    return mid


@pytest.mark.parametrize("end", ["delete", "dead letter", "purge", "expiry"])
def test_a_unique_key_ends_with_its_message(engines: "list[PostgresEngine]", end: str) -> None:
    """A unique key counts at both servers while its message is there, also in flight and after a release, and no
    longer, whatever the end."""
    one, other = engines
    make(engines, Options(dead_letter="dead"))
    [first] = one.queue("q").push([Draft(b"x", key="k", unique=True, expires=50_000 if end == "expiry" else None)])
    assert keyed(other, unique=True) == first
    if end != "expiry":
        [message] = other.receive(["q"], 1, None, LOTS)
        assert keyed(one, unique=True) == first
        one.queue("q").release(Receipt(first, message.receives), 0)
        assert keyed(one, unique=True) == keyed(other, unique=False) == first
    if end == "delete":
        other.queue("q").delete(Receipt(first))
    elif end == "dead letter":
        other.queue("q").reject(Receipt(first), None)
    elif end == "purge":
        other.queue("q").purge(first, 10)
    else:
        finish(one, until=lambda: not one.queue("q").stats().ready)
    second = keyed(other, unique=True)
    assert second != first
    assert keyed(one, unique=True) == second


def finish(engine: "PostgresEngine", until: Callable[[], bool]) -> None:
    """Waits until an engine has ended something by itself."""
    deadline = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < deadline


def test_keys_of_both_kinds(engines: "list[PostgresEngine]") -> None:
    """A key without `unique` counts for some minutes, whatever becomes of its message; with `unique`, only while the
    first one is there, with which kind of key ever."""
    one, other = engines
    make(engines, Options())
    first = keyed(one, unique=False)
    assert keyed(other, unique=True) == first
    one.queue("q").delete(Receipt(first))
    assert keyed(other, unique=False) == first
    second = keyed(other, unique=True)
    assert second != first
    assert keyed(one, unique=False) == second


def test_one_of_many_with_a_unique_key(engines: "list[PostgresEngine]") -> None:
    """One of many pushes at once with one unique key is stored, while its message ends and the next one comes."""
    make(engines, Options())
    stop = threading.Event()
    ids: set[int] = set()
    faults: list[BaseException] = []

    def push(engine: "PostgresEngine") -> None:
        try:
            while not stop.is_set():
                ids.add(keyed(engine, unique=True))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=push, args=[engine], daemon=True) for engine in engines * 2]
    for thread in threads:
        thread.start()
    deleted: list[int] = []
    while len(deleted) < 30 and not faults:
        found = engines[0].receive(["q"], 5, None, LOTS, wait=1)
        assert len(found) <= 1
        for message in found:
            engines[1].queue("q").delete(Receipt(message.mid))
            deleted.append(message.mid)
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert set(deleted) == ids - {message.mid for message in engines[0].receive(["q"], 5, None, LOTS)}


# -- pace


def test_a_rate_is_for_all_servers(engines: "list[PostgresEngine]") -> None:
    """Receives that wait at two servers get messages evenly at the rate of the queue, and each within milliseconds of
    the time from which it may be handed out."""
    make(engines, Options(rate=20))
    engines[0].queue("q").push([Draft(b"%d" % number) for number in range(40)])
    assert len(engines[0].receive(["q"], 40, None, LOTS)) == 20
    began = time.monotonic()
    times: list[float] = []

    def receive(engine: "PostgresEngine") -> None:
        for _ in range(5):
            assert len(engine.receive(["q"], 1, None, LOTS, wait=SECONDS)) == 1
            times.append(time.monotonic() - began)

    threads = [threading.Thread(target=receive, args=[engine]) for engine in engines * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    due = [1 + number / 20 for number in range(20)]
    late = sorted(time - due for time, due in zip(sorted(times), due, strict=True))
    assert late[0] > -0.01
    assert late[len(late) // 2] < 0.02  # half of them, as a busy machine delays some


def test_a_message_of_a_full_queue_comes_when_another_ends(engines: "list[PostgresEngine]") -> None:
    """A receive that waits at one server for a queue's bound is answered when a message in flight ends at the other, or
    is given back for later."""
    other, one = engines  # who has started last knows of the other, and sends hints
    make(engines, Options(max_in_flight=1))
    one.queue("q").push([Draft(b"a"), Draft(b"b"), Draft(b"c")])
    [message] = one.receive(["q"], 3, None, LOTS)
    assert not other.receive(["q"], 3, None, LOTS)
    assert other.queue("q").stats().limited == "max-in-flight"
    for end in (
        lambda receipt: one.queue("q").delete(receipt),
        lambda receipt: one.queue("q").release(receipt, 3_600_000_000),
    ):
        threading.Timer(0.05, end, [Receipt(message.mid)]).start()
        began = time.monotonic()
        [message] = other.receive(["q"], 3, None, LOTS, wait=SECONDS)
        assert time.monotonic() - began < 0.5  # not only at the next look of the server


def test_options_put_groups_right(engines: "list[PostgresEngine]") -> None:
    """When a queue's groups may have more out, or take turns, what waits comes, also at the other server."""
    other, one = engines  # who has started last knows of the other, and sends hints
    make(engines, Options())
    one.queue("q").push([Draft(b"a%d" % number, group="a") for number in range(4)] + [Draft(b"free")])
    assert payloads(one, 9) == [b"a0", b"free"]
    one.configure("q", Options(group_in_flight=3))
    assert [*payloads(other, 1), *payloads(other, 1)] == [b"a1", b"a2"]
    one.configure("q", Options(fair=True, group_in_flight=9))
    one.queue("q").push([Draft(b"b", group="b"), Draft(b"a4", group="a"), Draft(b"c"), Draft(b"d")])
    assert payloads(one, 3) == [b"a3", b"b", b"c"]
    one.configure("q", Options(group_in_flight=9))
    assert payloads(one, 9) == [b"a4", b"d"]


def payloads(engine: "PostgresEngine", count: int) -> list[bytes | None]:
    return [message.payload for message in engine.receive(["q"], count, None, LOTS, wait=SECONDS)]


# -- claims


@pytest.mark.parametrize("options", [Options(), Options(group_in_flight=3), Options(fair=True)])
def test_a_claim_takes_whole_groups_by_age(engines: "list[PostgresEngine]", options: Options) -> None:
    """A claim has the messages of a group in their order, however many wait, and none of a group that has one out.
    Those without a group hold nobody up."""
    one, other = engines
    make(engines, options)
    drafts = [Draft(b"%d" % number, group="ab"[number % 2] if number < 300 else "") for number in range(310)]
    mids = one.queue("q").push(drafts)
    for out in (mids[0], mids[300]):
        assert one.queue("q").get(out, peek=False, visibility=None).status == "delivered"
    claims = other.queue("q").claims
    claim = claims.claim("c", 1, 1000, None, None)
    claimed = [message.mid for message in claims.part("c", 1, (0, 1), 1000, LOTS) or ()]
    assert claimed == [*mids[1:300:2], *mids[301:]]
    one.queue("q").delete(Receipt(mids[0]))
    assert one.receive(["q"], 1, None, LOTS)[0].mid == mids[2]
    assert claims.acknowledge("c", 1) == claim.count
    one.queue("q").push([Draft(b"x", group="b")])
    assert other.queue("q").claims.claim("c", 2, 1000, None, None).count == 1


# -- the journal's order


@pytest.mark.parametrize(
    ("options", "groups", "priorities"),
    [
        (Options(), ["a", "b", ""], [0, 5]),
        (Options(group_in_flight=2), ["a", "b", ""], [0, 0, 5, 9]),
        (Options(fair=True), ["a", "b", "c"], [0]),
        (Options(fair=True, group_in_flight=2), ["a", "b", "c"], [0, 0, 5]),
    ],
    ids=["strict", "two of a group", "fair", "fair, two of a group"],
)
def test_the_order_is_that_of_the_journal(
    database: Database, tmp_path: Path, options: Options, groups: list[str], priorities: list[int]
) -> None:
    """Pushes, receives, deletes and releases give the messages that they give with a queue of the journal."""
    engine = engine_on(database, tmp_path / "postgres", of_database=True)
    journal = JournalEngine(str(tmp_path / "journal"), clock=ManualClock(), durability=Durability.NONE)
    with closing(engine), closing(journal):
        for seed in range(5):
            _Beside(engine, journal, f"q{seed}", options).run(random.Random(seed), groups, priorities)


class _Beside:
    """A queue of the storage postgres, and one of the journal."""

    def __init__(self, engine: "PostgresEngine", journal: JournalEngine, qid: str, options: Options) -> None:
        self.engines = (engine, journal)
        self.qid = qid
        for each in self.engines:
            each.create(qid, options)

    def run(self, choices: random.Random, groups: list[str], priorities: list[int]) -> None:
        held: list[tuple[Message, ...]] = []
        for number in range(80):
            step = choices.choice("pprrdl")
            if step == "p":
                drafts = [
                    Draft(b"%d-%d" % (number, at), group=choices.choice(groups), priority=choices.choice(priorities))
                    for at in range(choices.randint(1, 4))
                ]
                for engine in self.engines:
                    engine.queue(self.qid).push(drafts)
            elif step == "r":
                count = choices.randint(1, 4)
                found, expected = (engine.receive([self.qid], count, 10**12, LOTS) for engine in self.engines)
                assert [message.payload for message in found] == [message.payload for message in expected]
                held += zip(found, expected, strict=True)
            elif held:
                pair = held.pop(choices.randrange(len(held)))
                for engine, message in zip(self.engines, pair, strict=True):
                    queue, receipt = engine.queue(self.qid), Receipt(message.mid)
                    queue.delete(receipt) if step == "d" else queue.release(receipt, 0)
            self.engines[1].commit()
