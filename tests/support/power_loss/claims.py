"""Records a run of claims and batches beside pushes and receives, and plays a power loss at any point of the run.

A message is known by its payload, which no other one has: a batch that is published again gets other ids. Answered
operations hold. The operation under way has happened or not, and repeating it leads to the same state: a consumer that
does not know whether its claim was acknowledged asks again.
"""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from qs_storage.engine import (
    Draft,
    Engine,
    NoSuchClaimError,
    NoSuchQueueError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
)
from qs_storage.journal.queues.batches import Producer
from qs_storage.journal.queues.claims import Consumer, LogClaims
from support.power_loss.check import VARIANTS, Alter, PowerLosses, When, fast_directory, nobody_else
from support.power_loss.disk import Entry, RecordingDisk, everything_recorded
from support.power_loss.engines import ENGINES, UnderTest
from support.power_loss.file_system import Image
from support.power_loss.run import copied_by
from support.storage.engines import LOTS, ManualClock, failed

_CONSUMERS = ("a", "b/ü")
_PRODUCERS = ("p", "..")
Name = tuple[int, int, int]


@dataclass
class Shown:
    """The visible state of a queue. messages: the messages, and until when each is hidden (0: visible), without those
    in claims; claims: the payloads of each; acknowledged, published: the last number of each consumer and producer."""

    messages: dict[bytes, int] = field(default_factory=dict)
    claims: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    published: dict[str, int] = field(default_factory=dict)

    def at(self, now: int) -> "Shown":
        """Returns the state at a time, when some windows have ended."""
        messages = {payload: until if until > now else 0 for payload, until in self.messages.items()}
        return Shown(messages, self.claims, self.acknowledged, self.published)


@dataclass
class Operation:
    """An operation of the run. now: its time; text: in words; again: repeats it, None if repeating is not allowed;
    after: the state after it."""

    now: int
    text: str
    again: Callable[[Engine], object] | None
    after: Shown


def claim(engine: Engine, consumer: str, seq: int, count: int, upto: int | None = None) -> list[bytes]:
    """Makes a claim and returns the payloads of its messages."""
    claims = engine.queue("q").claims
    made = claims.claim(consumer, seq, count, None, upto)
    return [] if not made.count else content(claims, consumer, seq)


def content(claims: LogClaims, consumer: str, seq: int, part: tuple[int, int] = (0, 1)) -> list[bytes]:
    found = claims.part(consumer, seq, part, LOTS, LOTS)
    assert found is not None
    assert [message.mid for message in found] == sorted({message.mid for message in found})
    return [message.payload or b"" for message in found]


def acknowledge(engine: Engine, consumer: str, seq: int) -> None:
    engine.queue("q").claims.acknowledge(consumer, seq)


def release(engine: Engine, consumer: str, seq: int) -> int:
    return engine.queue("q").claims.release(consumer, seq)


Numbers = tuple[dict[str, int], dict[str, int]]


def numbers_of_journal(engine: Engine) -> Numbers:
    """Returns up to which claim each consumer has acknowledged, and which batch each producer has published."""
    claims, batches = engine.queue("q").claims, engine.queue("q").batches
    acknowledged = {each: claims.consumers.get(each, Consumer()).acked for each in _CONSUMERS}
    return acknowledged, {each: batches.producers.get(each, Producer()).last for each in _PRODUCERS}


def show(
    engine: Engine,
    now: int,
    hidden: list[int] | None = None,
    numbers: Callable[[Engine], Numbers] = numbers_of_journal,
) -> Shown:
    """Returns everything that can be seen. No message may be there twice, and no visible one in a claim. hidden: takes
    the ids of messages that are hidden without a claim; without this list, there may be none. numbers: looks up those
    of consumers and producers, which no operation shows."""
    claims, shown = engine.queue("q").claims, Shown()
    claimed: dict[int, bytes] = {}
    for each in claims.all():
        found = claims.part(each.consumer, each.seq, (0, 1), LOTS, LOTS)
        assert found is not None
        again = claims.claim(each.consumer, each.seq, 1, None, None)
        assert again == each
        shown.claims[each.consumer, each.seq] = [message.payload or b"" for message in found]
        assert not claimed.keys() & {message.mid for message in found}, "a message is in two claims"
        claimed |= {message.mid: message.payload or b"" for message in found}
    for mid in engine.queue("q").list_mids(State.ALL, 10**6, -1):
        message = engine.queue("q").get(mid, peek=True, visibility=None)
        if mid in claimed:
            assert (message.status, message.payload, message.visible_at) == ("in-flight", None, None)
            _refuses(engine, mid)
            continue
        if hidden is not None and (message.status, message.visible_at) == ("in-flight", None):
            hidden.append(mid)
            continue
        payload = message.payload or engine.queue("q").read(Receipt(mid)).payload
        assert payload is not None
        assert payload not in shown.messages, f"{payload!r} is there twice"
        assert message.status in ("ready", "in-flight")
        shown.messages[payload] = message.visible_at or 0
    ready = [payload for payload, until in shown.messages.items() if not until]
    assert engine.queue("q").stats().ready == len(ready)
    assert engine.queue("q").stats().in_flight == len(shown.messages) - len(ready) + len(claimed) + len(hidden or ())
    shown.acknowledged, shown.published = numbers(engine)
    return shown.at(now)


def _refuses(engine: Engine, mid: int) -> None:
    for operation in (
        partial(engine.queue("q").delete, Receipt(mid)),
        partial(engine.queue("q").release, Receipt(mid), 0),
        partial(engine.queue("q").extend, Receipt(mid), 1000),
    ):
        try:
            operation()  # type: ignore[operator] # functions of several kinds
        except StaleReceiptError:
            continue
        raise AssertionError(f"{mid} is in a claim, and was let go")


@dataclass
class ClaimsRecording:
    """log: with the markers `begin` and `answered`; operations: the first one made the queue; copied: bytes that
    compaction has copied."""

    log: list[Entry]
    operations: list[Operation]
    copied: int = 0


def record_claims(under_test: UnderTest, root: str, seed: int, operations: int) -> ClaimsRecording:
    """Records a run on the empty directory root; each operation is committed. The same seed gives the same run."""
    disk = RecordingDisk(root, direct=under_test.direct)
    with everything_recorded(disk):
        return _Run(under_test, disk, seed).run(operations)


class _Run:
    def __init__(self, under_test: UnderTest, disk: RecordingDisk, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.disk = disk
        self.under_test = under_test
        self.background = under_test.background
        self.copied = 0
        self.model = Shown(acknowledged=dict.fromkeys(_CONSUMERS, 0), published=dict.fromkeys(_PRODUCERS, -1))
        self.released: set[tuple[str, int]] = set()
        self.staged: dict[str, dict[Name, list[bytes]]] = {producer: {} for producer in _PRODUCERS}
        self.operations: list[Operation] = []
        self.numbers = iter(range(10**6))
        self.engine = under_test.make(self.clock, disk, disk.root)

    def run(self, operations: int) -> ClaimsRecording:
        try:
            self._note(self._create)
            while len(self.operations) < operations:
                self._note(self._choose())
                if self.background is not None and self.rng.random() < 0.25:
                    self.background(self.engine)
                if self.under_test.keys and self.rng.random() < 0.03:
                    self._close()
                    self.engine = self.under_test.make(self.clock, self.disk, self.disk.root)
            assert show(self.engine, self.clock.now) == self.model
        finally:
            self._close()
        return ClaimsRecording(self.disk.log, self.operations, self.copied)

    def _close(self) -> None:
        self.copied += copied_by(self.engine)
        self.engine.close()

    def _note(self, what: Callable[[], tuple[str, Callable[[Engine], object] | None]]) -> None:
        self.clock.now += 1000 * self.rng.randint(1, 5)
        self.model = deepcopy(self.model.at(self.clock.now))
        self.disk.mark("begin", len(self.operations) + 1)
        text, again = what()
        self.engine.commit()
        assert failed(self.engine) == {}
        self.operations.append(Operation(self.clock.now, text, again, self.model))
        self.disk.mark("answered", len(self.operations))

    def _choose(self) -> Callable[[], tuple[str, Callable[[Engine], object] | None]]:
        few = len(self.model.messages) < 8
        weighted = {
            self._push: 6 if few else 1,
            self._receive: 3,
            self._delete: 1 if few else 5,
            self._claim: 2 if few else 7,
            self._acknowledge: 4,
            self._release: 1.5,
            self._stage: 4,
            self._publish: 2.5,
            self._purge: 0.7,
        }
        return self.rng.choices(list(weighted), list(weighted.values()))[0]

    def _payload(self) -> bytes:
        return b"%06d:" % next(self.numbers) + self.rng.randbytes(self.rng.choice((0, 3, 40, 600, 3000)))

    def _visible(self) -> list[bytes]:
        """Returns the visible messages in order of their ids, which is the order of the numbers: staged messages get
        their ids when they are published."""
        mids = self.engine.queue("q").list_mids(State.READY, 10**6, -1)
        found = [self.engine.queue("q").get(mid, peek=True, visibility=None).payload or b"" for mid in mids]
        assert set(found) == {payload for payload, until in self.model.messages.items() if not until}
        return found

    # -- operations

    def _create(self) -> tuple[str, None]:
        self.engine.create("q", Options())
        return "create", None

    def _push(self) -> tuple[str, None]:
        payloads = [self._payload() for _ in range(self.rng.choice((1, 1, 4)))]
        self.engine.queue("q").push([Draft(payload) for payload in payloads])
        self.model.messages |= dict.fromkeys(payloads, 0)
        return f"push {len(payloads)}", None

    def _receive(self) -> tuple[str, None]:
        window = self.rng.choice((2000, 20_000, 10**9))
        for message in self.engine.receive(["q"], 1, window, LOTS):
            assert self.model.messages[message.payload or b""] == 0
            self.model.messages[message.payload or b""] = self.clock.now + window
        return f"receive for {window}", None

    def _delete(self) -> tuple[str, None]:
        taken = [
            mid
            for mid in self.engine.queue("q").list_mids(State.IN_FLIGHT, 10**6, -1)
            if self.engine.queue("q").get(mid, peek=True, visibility=None).visible_at is not None
        ]
        for mid in taken[:1]:
            payload = self.engine.queue("q").read(Receipt(mid)).payload
            self.engine.queue("q").delete(Receipt(mid))
            del self.model.messages[payload or b""]
        return f"delete {taken[:1]}", None

    def _purge(self) -> tuple[str, None]:
        mids = self.engine.queue("q").list_mids(State.ALL, 1, -1)
        if mids:
            message = self.engine.queue("q").get(mids[0], peek=True, visibility=None)
            payload = message.payload
            if payload is None and message.visible_at is not None:
                payload = self.engine.queue("q").read(Receipt(mids[0])).payload
            assert self.engine.queue("q").purge(mids[0], 1) == 1
            if payload is not None:
                del self.model.messages[payload]
            else:
                self._forget_claimed()
        return f"purge {mids}", None

    def _forget_claimed(self) -> None:
        """Forgets the oldest message, which was in a claim: the claim is one shorter."""
        shown = show(self.engine, self.clock.now).claims
        [(key, left)] = [(key, left) for key, left in shown.items() if left != self.model.claims[key]]
        assert left == self.model.claims[key][1:]
        self.model.claims[key] = left

    def _last(self, consumer: str) -> int:
        return max([self.model.acknowledged[consumer], *(seq for who, seq in self.model.claims if who == consumer)])

    def _claim(self) -> tuple[str, Callable[[Engine], object]]:
        consumer, count = self.rng.choice(_CONSUMERS), self.rng.choice((1, 3, 5, 100))
        seq = self._last(consumer) + 1
        expected = self._visible()[:count]
        assert claim(self.engine, consumer, seq, count) == expected
        if expected:
            self.model.claims[consumer, seq] = expected
            for payload in expected:
                del self.model.messages[payload]
        return f"claim {seq} of {consumer}: {len(expected)}", lambda engine: claim(engine, consumer, seq, count)

    def _acknowledge(self) -> tuple[str, Callable[[Engine], object]]:
        consumer = self.rng.choice(_CONSUMERS)
        least, most = self.model.acknowledged[consumer], self._last(consumer)
        seq = self.rng.randint(least, most)
        acknowledge(self.engine, consumer, seq)
        self.model.acknowledged[consumer] = seq
        self.model.claims = {
            (who, number): mids for (who, number), mids in self.model.claims.items() if who != consumer or number > seq
        }
        return f"acknowledge {seq} of {consumer}", lambda engine: acknowledge(engine, consumer, seq)

    def _release(self) -> tuple[str, Callable[[Engine], object] | None]:
        if not self.model.claims:
            return self._claim()
        consumer, seq = self.rng.choice(sorted(self.model.claims))
        release(self.engine, consumer, seq)
        self.model.messages |= dict.fromkeys(self.model.claims.pop((consumer, seq)), 0)

        def again(engine: Engine) -> None:
            try:
                release(engine, consumer, seq)
            except NoSuchClaimError:
                return

        return f"release {seq} of {consumer}", again

    def _stage(self) -> tuple[str, None]:
        producer = self.rng.choice(_PRODUCERS)
        name = self.model.published[producer] + self.rng.choice((1, 1, 1, 0)), self.rng.randint(0, 2), 10**18 - 1
        payloads = [self._payload() for _ in range(self.rng.randint(0, 4))]
        self.engine.queue("q").batches.stage(producer, name, list(map(Draft, payloads)))
        if name[0] > self.model.published[producer]:
            self.staged[producer].setdefault(name, []).extend(payloads)
        return f"stage {len(payloads)} as {name} of {producer}", None

    def _publish(self) -> tuple[str, Callable[[Engine], object]]:
        producer = self.rng.choice(_PRODUCERS)
        staged = self.staged[producer]
        batch = max([0, self.model.published[producer] + self.rng.randint(0, 1), *(name[0] for name in staged)])
        parts = [name[1:] for name in staged if name[0] == batch]
        self.engine.queue("q").batches.publish(producer, batch, parts)
        if parts and batch > self.model.published[producer]:
            for name in sorted(staged):
                self.model.messages |= dict.fromkeys(staged[name], 0)
            self.model.published[producer] = batch
            self.staged[producer] = {}
        return (
            f"publish {batch} of {producer}: {sum(map(len, staged.values()))} messages",
            lambda engine: engine.queue("q").batches.publish(producer, batch, parts),
        )


Trouble = list[str]


def run_of(name: str, seed: int, operations: int) -> ClaimsRecording:
    with fast_directory(Path.cwd()) as made, nobody_else():
        return record_claims(ENGINES[name], str(made), seed, operations)


class Check(PowerLosses):
    """Compares what is left of a run of claims and batches with what was answered and begun."""

    def __init__(
        self, name: str, recording: ClaimsRecording, directory: Path, *, ordered: bool = False, alter: Alter = list
    ) -> None:
        """directory, ordered, alter: as for PowerLosses."""
        super().__init__(recording.log, ENGINES[name].make, directory, ordered=ordered, alter=alter)
        self._notes = "receive" in ENGINES[name].leniency.notes
        self._operations = recording.operations

    def now(self, begun: int) -> int:
        return self._operations[max(begun - 1, 0)].now

    def where(self, number: int, variant: str, when: When) -> str:
        answered, begun, _ = when
        going = [operation.text for operation in self._operations[answered:begun]]
        return f"power loss at {number}/{variant}, {self.log[number]}; answered {answered}, under way {going}"

    def seconds(self, step: int) -> Sequence[str]:
        return VARIANTS[step % 4 : step % 4 + 1]

    def compare(self, image: Image, when: When, *, long_ago: bool) -> Trouble:
        self.checked += 1
        key = image.key, when
        if key not in self._seen:
            found = self.opened(image, when[2], lambda engine: self._look(engine, when))
            self._seen[key] = [found] if isinstance(found, str) else found
        return self._seen[key]

    def _look(self, engine: Engine, when: When) -> Trouble:
        answered, begun, now = when
        allowed = [self._operations[number - 1].after.at(now) for number in range(max(answered, 1), begun + 1)]
        try:
            found = compare(self._shown(engine, now, allowed), allowed)
            again = self._operations[begun - 1].again if begun else None
            if not found and again is not None:
                again(engine)
                engine.commit()
                found = compare(self._shown(engine, now, allowed), allowed[-1:], "asked once more, ")
        except NoSuchQueueError:
            return [] if not answered else ["the queue is gone"]
        return found

    def _shown(self, engine: Engine, now: int, allowed: Sequence[Shown]) -> Shown:
        shown = show(engine, now)
        return sooner(shown, allowed) if self._notes else shown


def compare(found: Shown, allowed: Sequence[Shown], what: str = "") -> Trouble:
    return [] if found in allowed else [f"{what}found {short(found)}", *(f"  not {short(each)}" for each in allowed)]


def sooner(found: Shown, allowed: Sequence[Shown]) -> Shown:
    """Returns the state with the windows that are allowed. A receive may be lost, because nobody waits until it is
    durable: then its message is visible sooner."""
    windows = {payload: until for each in allowed for payload, until in each.messages.items() if until}
    messages = {payload: until or windows.get(payload, 0) for payload, until in found.messages.items()}
    return Shown(messages, found.claims, found.acknowledged, found.published)


def short(shown: Shown) -> str:
    messages = {payload[:6].decode(): until for payload, until in sorted(shown.messages.items())}
    claims = {key: [payload[:6].decode() for payload in payloads] for key, payloads in shown.claims.items()}
    return f"{messages} claims {claims} acknowledged {shown.acknowledged} published {shown.published}"


def first_trouble(check: Check, numbers: Sequence[int], variants: Sequence[str]) -> Trouble:
    """Returns the first finding at these points. variants: of the usual four, one in turn at each point; of others, all
    at each."""
    for index, (number, file_system, when) in enumerate(check.sweep(numbers)):
        turn = (index + index // 4) % 4
        for variant in variants if len(variants) != 4 else variants[turn : turn + 1]:
            if trouble := check.trouble(number, file_system, when, variant):
                return trouble
    return []
