"""A model in memory of one queue, and the rules by which an engine is compared with it."""

import shutil
import tempfile
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, precondition, rule

from qs_storage.engine import (
    Draft,
    Engine,
    NoSuchMessageError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
)
from support.storage.calls import next_due
from support.storage.engines import ManualClock

# Delays end at odd times and windows at even ones. A window that ends in the very microsecond at which an earlier delay
# of the message would have ended is taken for that delay by a program that reads the directory anew: that is known.
WINDOWS = st.integers(0, 20).map(lambda half: 2 * half)
DELAYS = WINDOWS.map(lambda even: even + 1)
COUNTS = st.none() | st.integers(0, 3)


@dataclass
class Known:
    """A message in the model. until: the end of its window or delay, 0 for a visible message."""

    payload: bytes
    until: int = 0
    delayed: bool = False
    held: bool = False
    receives: int = 0


class EngineMachine(RuleBasedStateMachine):
    """A machine of one queue. Its clock moves by small steps, so that windows end all the time."""

    mids = Bundle("mids")

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="qs-model-")
        self.clock = ManualClock()
        self.model: dict[int, Known] = {}
        self.blind = 0
        """The number of steps for which the engine still gets no reports between its operations."""
        self.engine = self.open()
        self.engine.create("q", Options(visibility=10))

    def open(self) -> Engine:
        raise NotImplementedError

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.root)

    def expire(self) -> None:
        for known in self.model.values():
            if known.until and known.until <= self.clock.now:
                known.until, known.delayed = 0, False

    # -- what the engine is asked for

    @rule(target=mids, payloads=st.lists(st.binary(max_size=9), min_size=1, max_size=4), delay=st.just(0) | DELAYS)
    def push(self, payloads: list[bytes], delay: int) -> object:
        found = self.engine.queue("q").push([Draft(payload, delay) for payload in payloads])
        assert found == sorted(set(found))
        assert not self.model or found[0] > max(self.model)
        for mid, payload in zip(found, payloads, strict=True):
            self.model[mid] = Known(payload, self.clock.now + delay if delay else 0, bool(delay))
        self.engine.effects()
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
            message = self.engine.queue("q").get(mid, peek=window is None, visibility=window)
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
        """Returns the expected result: the message when the receipt is valid, None when the engine raises."""
        self.expire()
        known = self.model.get(mid)
        return known if known is not None and receives in (None, known.receives) else None

    @rule(mid=mids, receives=COUNTS)
    def delete(self, mid: int, receives: int | None) -> None:
        expected = self.held(mid, receives)
        try:
            self.engine.queue("q").delete(Receipt(mid, receives))
        except (NoSuchMessageError, StaleReceiptError) as error:
            stale = isinstance(error, StaleReceiptError)
            assert (expected, stale) == (None, mid in self.model)
        else:
            assert expected is not None
            del self.model[mid]

    @rule(mid=mids, receives=COUNTS, delay=st.just(0) | DELAYS)
    def release(self, mid: int, receives: int | None, delay: int) -> None:
        expected = self.held(mid, receives)
        if expected is not None and (not expected.until or (expected.delayed and receives is not None)):
            expected = None
        try:
            self.engine.queue("q").release(Receipt(mid, receives), delay)
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
            self.engine.queue("q").extend(Receipt(mid, receives), window)
        except (NoSuchMessageError, StaleReceiptError):
            assert expected is None
        else:
            assert expected is not None
            expected.until = self.clock.now + window

    @rule(mid=mids, count=st.integers(1, 3))
    def purge(self, mid: int, count: int) -> None:
        gone = [known for known in sorted(self.model) if known <= mid][:count]
        assert self.engine.queue("q").purge(mid, count) == len(gone)
        for known in gone:
            del self.model[known]

    @rule(by=st.integers(1, 15).map(lambda half: 2 * half))
    def time_passes(self, by: int) -> None:
        self.clock.now += by

    @rule()
    def expire_some(self) -> None:
        self.engine.expire(2)

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = self.open()

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
        assert {state: self.engine.queue("q").list_mids(state, 1000, -1) for state in State} == expected
        stats = self.engine.queue("q").stats()
        counted = (stats.ready, stats.delayed, stats.in_flight, stats.new)
        assert counted == tuple(len(expected[s]) for s in (State.READY, State.DELAYED, State.IN_FLIGHT, State.NEW))
        assert stats.bytes == sum(len(known.payload) for known in self.model.values())
        until = [known.until for known in self.model.values() if known.until]
        assert next_due(self.engine) == (min(until) if until else None)


class CrashingMachine(EngineMachine):
    """A machine whose engine may be left without being closed, as by a killed process."""

    mids = EngineMachine.mids

    def __init__(self) -> None:
        self.abandoned: list[Engine] = []
        super().__init__()

    def teardown(self) -> None:
        for engine in self.abandoned:
            engine.close()
        super().teardown()

    @rule()
    @precondition(lambda self: len(self.abandoned) < 3)
    def crash(self) -> None:
        """Leaves the old engine without closing it, and never uses it again."""
        self.abandoned.append(self.engine)
        self.engine = self.open()
