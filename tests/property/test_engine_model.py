"""The files engine against a model in memory, while other processes work on the same directory."""

import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from engines import EPOCH, ManualClock, WithoutAttributes
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from qs_server.storage.disk import Disk
from qs_server.storage.engine import (
    Draft,
    Durability,
    NoSuchMessageError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
)
from qs_server.storage.files import FilesEngine

# Delays end at odd times and windows at even ones. A window that ends in the very microsecond at which an earlier delay
# of the message would have ended is taken for that delay by whoever reads the directory anew: that is known.
WINDOWS = st.integers(0, 20).map(lambda half: 2 * half)
DELAYS = WINDOWS.map(lambda even: even + 1)
COUNTS = st.none() | st.integers(0, 3)


@dataclass
class Known:
    """What the model holds of a message. until: 0 when visible."""

    payload: bytes
    until: int = 0
    delayed: bool = False
    receives: int = 0


class EngineMachine(RuleBasedStateMachine):
    """One queue; the clock moves by small steps, so that windows end all the time."""

    disk: type[Disk] = Disk
    mids = Bundle("mids")

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="qs-model-")
        self.clock = ManualClock()
        self.model: dict[int, Known] = {}
        self.foreign = itertools.count(EPOCH - 10**9, 7)
        self.abandoned: list[FilesEngine] = []
        self.blind = 0
        """For how many steps the engine still takes no reports between its operations."""
        self.engine = self.open()
        self.engine.create("q", Options(visibility=10))

    def open(self) -> FilesEngine:
        return FilesEngine(self.root, clock=self.clock, durability=Durability.NONE, disk=self.disk())

    def teardown(self) -> None:
        for engine in (self.engine, *self.abandoned):
            engine.close()
        shutil.rmtree(self.root)

    def expire(self) -> None:
        for known in self.model.values():
            if known.until and known.until <= self.clock.now:
                known.until, known.delayed = 0, False

    # -- what the engine is asked for

    @rule(target=mids, payloads=st.lists(st.binary(max_size=9), min_size=1, max_size=4), delay=st.just(0) | DELAYS)
    def push(self, payloads: list[bytes], delay: int) -> object:
        found = self.engine.push("q", [Draft(payload, delay) for payload in payloads])
        assert found == sorted(set(found))
        assert not self.model or found[0] > max(self.model)
        for mid, payload in zip(found, payloads, strict=True):
            self.model[mid] = Known(payload, self.clock.now + delay if delay else 0, bool(delay))
        self.engine.flush()
        return multiple(*found)

    @rule(count=st.integers(1, 4), window=WINDOWS, room=st.integers(0, 20))
    def receive(self, count: int, window: int, room: int) -> None:
        self.expire()
        expected: list[int] = []
        for mid in sorted(self.model):
            known = self.model[mid]
            if known.until:
                continue
            if len(expected) == count or (expected and len(known.payload) > room):
                break
            room -= len(known.payload)
            expected.append(mid)
        found = self.engine.receive(["q"], count, window, room + sum(len(self.model[mid].payload) for mid in expected))
        assert [message.mid for message in found] == expected
        for message in found:
            known = self.model[message.mid]
            known.receives += 1
            known.until, known.delayed = max(self.clock.now + window, 1), False
            assert (message.payload, message.receives) == (known.payload, known.receives)

    @rule(mid=mids, window=st.none() | WINDOWS)
    def get(self, mid: int, window: int | None) -> None:
        self.expire()
        known = self.model.get(mid)
        try:
            message = self.engine.get("q", mid, peek=window is None, visibility=window)
        except NoSuchMessageError:
            assert known is None
            return
        assert known is not None
        if not known.until and window is not None:
            known.receives += 1
            known.until = self.clock.now + window
        assert message.receives == known.receives
        assert (message.payload is None) == (message.status in ("delayed", "in-flight"))

    def held(self, mid: int, receives: int | None) -> Known | None:
        """What is expected: the message when the receipt is good, None when it raises."""
        self.expire()
        known = self.model.get(mid)
        return known if known is not None and receives in (None, known.receives) else None

    @rule(mid=mids, receives=COUNTS)
    def delete(self, mid: int, receives: int | None) -> None:
        expected = self.held(mid, receives)
        try:
            self.engine.delete("q", Receipt(mid, receives))
        except (NoSuchMessageError, StaleReceiptError) as error:
            stale = isinstance(error, StaleReceiptError)
            assert (expected, stale) == (None, mid in self.model)
        else:
            assert expected is not None
            del self.model[mid]

    @rule(mid=mids, receives=COUNTS, delay=st.just(0) | DELAYS)
    def release(self, mid: int, receives: int | None, delay: int) -> None:
        expected = self.held(mid, receives)
        try:
            self.engine.release("q", Receipt(mid, receives), delay)
        except (NoSuchMessageError, StaleReceiptError) as error:
            stale = isinstance(error, StaleReceiptError)
            assert (expected, stale) == (None, mid in self.model)
        else:
            assert expected is not None
            expected.until, expected.delayed = (self.clock.now + delay if delay else 0), bool(delay)

    @rule(mid=mids, receives=COUNTS, window=WINDOWS)
    def extend(self, mid: int, receives: int | None, window: int) -> None:
        expected = self.held(mid, receives)
        if expected is not None and (not expected.until or expected.delayed):
            expected = None
        try:
            self.engine.extend("q", Receipt(mid, receives), window)
        except (NoSuchMessageError, StaleReceiptError):
            assert expected is None
        else:
            assert expected is not None
            expected.until = self.clock.now + window

    @rule(mid=mids, count=st.integers(1, 3))
    def purge(self, mid: int, count: int) -> None:
        gone = [known for known in sorted(self.model) if known <= mid][:count]
        assert self.engine.purge("q", mid, count) == len(gone)
        for known in gone:
            del self.model[known]

    @rule(by=st.integers(1, 15).map(lambda half: 2 * half))
    def time_passes(self, by: int) -> None:
        self.clock.now += by

    @rule()
    def expire_some(self) -> None:
        self.engine.expire(2)

    # -- new processes

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = self.open()

    @rule()
    @precondition(lambda self: len(self.abandoned) < 3)
    def crash(self) -> None:
        """The old engine is not closed, and never used again."""
        self.abandoned.append(self.engine)
        self.engine = self.open()

    # -- what others do

    def path(self, mid: int, until: int = 0) -> str:
        return f"{self.root}/q/{mid}" + (f".{until}" if until else "")

    def on_disk(self, mid: int) -> str:
        """Where a message is: expired ones may have been renamed back, or not yet."""
        for path in (self.path(mid), self.path(mid, self.model[mid].until)):
            if os.path.exists(path):
                return path
        [name] = [name for name in os.listdir(f"{self.root}/q") if name.split(".")[0] == str(mid)]
        return f"{self.root}/q/{name}"

    @rule(target=mids, payload=st.binary(max_size=9))
    @precondition(lambda self: not self.blind)
    def foreign_publish(self, payload: bytes) -> int:
        mid = next(self.foreign) if len(self.model) % 2 else self.engine.last_mid("q") + 3
        with open(self.path(mid) + ".new", "xb") as file:
            file.write(payload)
        os.rename(self.path(mid) + ".new", self.path(mid))
        self.model[mid] = Known(payload)
        self.engine.refresh()
        return mid

    @rule(target=mids, payload=st.binary(max_size=9))
    @precondition(lambda self: not self.blind)
    def foreign_write(self, payload: bytes) -> int:
        """A file that a shell put there."""
        mid = next(self.foreign)
        with open(self.path(mid), "xb") as file:
            file.write(payload)
        self.model[mid] = Known(payload)
        self.engine.refresh()
        return mid

    @rule(mid=mids, window=WINDOWS)
    @precondition(lambda self: not self.blind)
    def foreign_receive(self, mid: int, window: int) -> None:
        known = self.model.get(mid)
        if known is None or os.path.basename(self.on_disk(mid)) != str(mid):
            return
        until = self.clock.now + window
        os.rename(self.path(mid), self.path(mid, until))
        known.until, known.delayed, known.receives = until, False, max(known.receives, 1)

    @rule(mid=mids)
    @precondition(lambda self: not self.blind)
    def foreign_requeue(self, mid: int) -> None:
        """As vsqs does when a window has ended, or an impatient administrator before."""
        known = self.model.get(mid)
        if known is not None and (path := self.on_disk(mid)) != self.path(mid):
            os.rename(path, self.path(mid))
            known.until, known.delayed = 0, False

    @rule(mid=consumes(mids))
    @precondition(lambda self: not self.blind)
    def foreign_delete(self, mid: int) -> None:
        if mid in self.model:
            os.unlink(self.on_disk(mid))
            del self.model[mid]

    @rule(mid=mids, until=WINDOWS, steps=st.integers(1, 5))
    def foreign_detour(self, mid: int, until: int, steps: int) -> None:
        """Away and back again: what the engine does next is right, and the reports about it come mixed with these."""
        if mid in self.model:
            path = self.on_disk(mid)
            away = self.path(mid, self.clock.now + until)
            if away != path:
                os.rename(path, away)
                os.rename(away, path)
                self.blind = steps

    # -- what has to hold

    @invariant()
    def same(self) -> None:
        if self.blind:
            self.blind -= 1
            return
        self.engine.refresh()
        self.expire()
        expected = {
            State.ALL: sorted(self.model),
            State.READY: sorted(mid for mid, known in self.model.items() if not known.until),
            State.DELAYED: sorted(mid for mid, known in self.model.items() if known.delayed),
            State.IN_FLIGHT: sorted(mid for mid, known in self.model.items() if known.until and not known.delayed),
            State.NEW: sorted(mid for mid, known in self.model.items() if not known.receives),
        }
        assert {state: self.engine.list_mids("q", state, 1000, -1) for state in State} == expected
        stats = self.engine.stats("q")
        counted = (stats.ready, stats.delayed, stats.in_flight, stats.new)
        assert counted == tuple(len(expected[s]) for s in (State.READY, State.DELAYED, State.IN_FLIGHT, State.NEW))
        assert stats.bytes == sum(len(known.payload) for known in self.model.values())
        until = [known.until for known in self.model.values() if known.until]
        assert self.engine.next_expiry() == (min(until) if until else None)

    @invariant()
    def nothing_stays_behind(self) -> None:
        names = os.listdir(f"{self.root}/q")
        assert not [name for name in names if name.endswith((".new", ".tmp")) or name.startswith(".batch")]


class SidecarMachine(EngineMachine):
    """On a file system without extended attributes."""

    disk = WithoutAttributes


@pytest.mark.parametrize("machine", [EngineMachine, SidecarMachine])
def test_engine_is_as_its_model(machine: type[EngineMachine]) -> None:
    """Any sequence of operations, reopenings, crashes and foreign changes leaves the engine as the model has it."""
    case = machine.TestCase
    case.settings = settings(
        max_examples=int(os.environ.get("QS_EXAMPLES", "60")),
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()
