"""The order and the limits of a queue of the journal against a model in memory: priorities, groups, lifetimes, keys
that count while their message is there, the most messages that are out; through restarts, kills and failed commits."""

import contextlib
import copy
import errno
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from support.examples import run_machine
from support.storage.contract import GatheringAsEngine
from support.storage.engines import LOTS, FaultyDisk, JournalEngine, ManualClock
from support.storage.postgres import Postgres, engine_on, needs_postgres

from qs_storage.engine import (
    Draft,
    Durability,
    Headers,
    Message,
    NoSuchMessageError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
)
from qs_storage.journal.upkeep.checkpoint import NAME as CHECKPOINT

PRIORITIES = st.sampled_from([0, 0, 0, 1, 5, 9])
GROUPS = st.sampled_from(["", "", "a", "b", "ü"])
LIFETIMES = st.none() | st.integers(1, 60)
KEYS = st.none() | st.sampled_from(["k", "l"])
HEADERS = st.sampled_from([(), (("traceparent", "00-1"), ("x", "<&\n>"))])
MOST = st.sampled_from([None, 1, 2, 3])


@dataclass
class Known:
    """A message in the model. until: the end of its window or delay, 0 for a visible one; end: of its life."""

    priority: int
    group: str
    end: int | None
    key: str | None
    headers: Headers
    until: int = 0
    delayed: bool = False
    receives: int = 0

    @property
    def is_out(self) -> bool:
        return self.until > 0 and not self.delayed


class OrderMachine(RuleBasedStateMachine):
    """A machine of one queue, whose limits change."""

    mids = Bundle("mids")
    storage = "journal"

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="qs-order-")
        self.clock = ManualClock()
        self.options = Options(storage=self.storage, visibility=10)
        self.model: dict[int, Known] = {}
        self.engine: Any = self.open()
        self.engine.create("q", Options(visibility=10))
        self.commit()

    def open(self) -> object:
        """Returns an engine over what is there."""
        raise NotImplementedError

    def expire_engine(self) -> None:
        """Lets the engine end what is due in the queue."""
        self.engine.queue("q").expire()

    def teardown(self) -> None:
        self.engine.close()
        shutil.rmtree(self.root)

    # -- the model

    def expire(self) -> None:
        """Ends windows and lives that are over, as the engine does before a request."""
        now = self.clock.now
        for known in self.model.values():
            if known.until and known.until <= now:
                known.until, known.delayed = 0, False
        over = [mid for mid, known in self.model.items() if known.end and known.end <= now and not known.is_out]
        for mid in over:
            del self.model[mid]

    def next(self) -> int | None:
        """Returns the message that must be handed out next."""
        most = self.options.group_in_flight or 1
        heads: dict[str, int] = {}
        allowed: list[int] = []
        for mid in sorted(self.model):
            known = self.model[mid]
            if not known.group:
                if not known.until:
                    allowed.append(mid)
            elif known.group not in heads and (not known.until or (most == 1 and known.delayed)):
                heads[known.group] = mid
        for group, mid in heads.items():
            out = sum(known.is_out for known in self.model.values() if known.group == group)
            if out < most and not self.model[mid].until:
                allowed.append(mid)
        if self.options.max_in_flight is not None:
            out = sum(known.is_out for known in self.model.values())
            if out >= self.options.max_in_flight:
                return None
        return min(allowed, key=lambda mid: (-self.model[mid].priority, mid), default=None)

    def check(self, message: Message, known: Known) -> None:
        assert message.payload == b"%d" % known.priority
        assert (message.priority, message.group, message.headers) == (known.priority, known.group, known.headers)
        assert message.expires_at == known.end

    # -- what the engine is asked for

    @rule(
        target=mids,
        priorities=st.lists(PRIORITIES, min_size=1, max_size=4),
        group=GROUPS,
        delay=st.sampled_from([0, 0, 0, 7]),
        lifetime=LIFETIMES,
        key=KEYS,
        headers=HEADERS,
    )
    def push(
        self, priorities: list[int], group: str, delay: int, lifetime: int | None, key: str | None, headers: Headers
    ) -> object:
        self.expire_engine()
        self.expire()
        known = {each.key: mid for mid, each in self.model.items() if each.key}
        drafts = [
            Draft(b"%d" % priority, delay, key, key is not None, priority, lifetime, group, headers)
            for priority in priorities
        ]
        found = self.engine.queue("q").push(drafts)
        for mid, priority in zip(found, priorities, strict=True):
            if key is not None and key in known:
                assert mid == known[key]
                continue
            end = None if lifetime is None else self.clock.now + lifetime
            self.model[mid] = Known(
                priority, group, end, key, headers, self.clock.now + delay if delay else 0, delay > 0
            )
            if key is not None:
                known[key] = mid
        self.commit()
        return multiple(*found)

    @rule(count=st.integers(1, 4), window=st.integers(1, 20).map(lambda half: 2 * half))
    def receive(self, count: int, window: int) -> None:
        self.expire()
        found = self.engine.receive(["q"], count, window, LOTS)
        for message in found:
            assert message.mid == self.next()
            known = self.model[message.mid]
            self.check(message, known)
            known.until, known.receives = self.clock.now + window, known.receives + 1
        assert len(found) == count or self.next() is None
        self.commit()

    @rule(mid=mids)
    def get(self, mid: int) -> None:
        """Asks for one message, which a limit may keep back."""
        self.expire()
        known = self.model.get(mid)
        try:
            message = self.engine.queue("q").get(mid, peek=False, visibility=20)
        except NoSuchMessageError:
            assert known is None
            return
        assert known is not None
        if message.payload is not None:
            self.check(message, known)
            out = [each for each in self.model.values() if each.is_out]
            assert known.until == 0
            assert self.options.max_in_flight is None or len(out) < self.options.max_in_flight
            if known.group:
                assert sum(each.group == known.group for each in out) < (self.options.group_in_flight or 1)
            known.until, known.receives = self.clock.now + 20, known.receives + 1
        self.commit()

    @rule(mid=mids)
    def peek(self, mid: int) -> None:
        self.expire()
        try:
            message = self.engine.queue("q").get(mid, peek=True, visibility=None)
        except NoSuchMessageError:
            assert mid not in self.model
            return
        message.payload = self.engine.queue("q").read(Receipt(mid)).payload
        message.headers = self.engine.queue("q").read(Receipt(mid)).headers
        self.check(message, self.model[mid])

    @rule(mid=mids)
    def delete(self, mid: int) -> None:
        self.expire()
        self.expire_engine()
        with contextlib.suppress(NoSuchMessageError):
            self.engine.queue("q").delete(Receipt(mid))
        self.model.pop(mid, None)
        self.commit()

    @rule(mid=mids, delay=st.sampled_from([0, 5]))
    def release(self, mid: int, delay: int) -> None:
        self.expire()
        try:
            self.engine.queue("q").release(Receipt(mid), delay)
        except (NoSuchMessageError, StaleReceiptError):
            assert mid not in self.model or not self.model[mid].until
        else:
            known = self.model[mid]
            known.until, known.delayed = (self.clock.now + delay if delay else 0), delay > 0
            self.expire()
        self.commit()

    @rule(mid=mids, window=st.sampled_from([2, 40]))
    def extend(self, mid: int, window: int) -> None:
        self.expire()
        try:
            self.engine.queue("q").extend(Receipt(mid), window)
        except (NoSuchMessageError, StaleReceiptError):
            assert mid not in self.model or not self.model[mid].is_out
        else:
            self.model[mid].until = self.clock.now + window
        self.commit()

    @rule(mid=mids, count=st.integers(1, 3))
    def purge(self, mid: int, count: int) -> None:
        self.expire_engine()
        self.expire()
        gone = [known for known in sorted(self.model) if known <= mid][:count]
        assert self.engine.queue("q").purge(mid, count) == len(gone)
        for each in gone:
            del self.model[each]
        self.commit()

    @rule(group_in_flight=MOST, max_in_flight=MOST)
    def configure(self, group_in_flight: int | None, max_in_flight: int | None) -> None:
        self.options.group_in_flight, self.options.max_in_flight = group_in_flight, max_in_flight
        self.engine.configure("q", copy.copy(self.options))
        self.commit()

    @rule(by=st.integers(1, 30))
    def time_passes(self, by: int) -> None:
        self.clock.now += by

    @rule()
    def expire_all(self) -> None:
        """Expires everything that is due, as the server's timer does."""
        while self.engine.expire(2):
            pass
        self.expire()
        self.commit()

    def commit(self) -> None:
        self.engine.commit()
        self.saved = copy.deepcopy(self.model)

    # -- what has to hold

    @invariant()
    def same(self) -> None:
        self.expire_engine()
        self.expire()
        queue = self.engine.queue("q")
        assert queue.list_mids(State.ALL, 1000, -1) == sorted(self.model)
        assert queue.list_mids(State.READY, 1000, -1) == sorted(mid for mid, k in self.model.items() if not k.until)
        stats = queue.stats()
        nothing = self.next() is None
        assert bool(stats.limited) == (nothing and stats.ready > 0)
        self.engine.commit()


class JournalMachine(OrderMachine):
    """The journal, with commits that fail and crashes."""

    mids = OrderMachine.mids

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        super().__init__()

    def open(self) -> JournalEngine:
        return JournalEngine(self.root, clock=self.clock, durability=Durability.NONE, disk=self.disk)

    @rule(priority=PRIORITIES, group=GROUPS)
    def commit_fails(self, priority: int, group: str) -> None:
        """Takes back a push, and deletes of messages in any state."""
        queue = self.engine.queue("q")
        queue.expire()
        self.expire()
        self.commit()
        self.engine._journal.room.commit()
        queue.push([Draft(b"gone", priority=priority, group=group, expires=5, headers=(("a", "b"),))])
        for mid in list(self.model)[:3]:
            queue.delete(Receipt(mid))
        self.disk.arm(1, errno.ENOSPC, "_pwrite")
        with pytest.raises(OSError, match="space"):
            self.engine.commit()
        self.disk.disarm()
        self.model = copy.deepcopy(self.saved)

    def start(self, *, checkpoint: bool) -> None:
        if not checkpoint:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(f"{self.root}/.journal/{CHECKPOINT}")
        self.engine = self.open()
        self.expire()
        self.commit()

    @rule(checkpoint=st.booleans())
    def reopen(self, checkpoint: bool) -> None:
        self.engine.close()
        self.start(checkpoint=checkpoint)

    @rule(checkpoint=st.booleans())
    def crash(self, checkpoint: bool) -> None:
        self.engine._journal.room.commit()  # else receives are lost, which they may be
        self.disk.crash()
        self.engine._watch.close()
        self.start(checkpoint=checkpoint)

    @invariant()
    def knows_its_order(self) -> None:
        queue = self.engine.queue("q")
        assert (queue.obtainable == 0) == (self.next() is None)
        assert (queue.index.order is not None) == any(known.priority or known.group for known in self.model.values())


class PostgresMachine(OrderMachine):
    """A database of PostgreSQL, with two servers of which each does some of the requests."""

    mids = OrderMachine.mids
    storage = "postgres"
    postgres: ClassVar[Postgres]

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()
        self.database = self.stack.enter_context(self.postgres.database())
        super().__init__()
        self.other: Any = self.open()

    def open(self) -> object:
        return GatheringAsEngine(engine_on(self.database, self.root, self.clock))

    def expire_engine(self) -> None:
        """Lets the engine end everything that is due."""
        self.engine.expire(1000)

    def teardown(self) -> None:
        self.other.close()
        super().teardown()
        self.stack.close()

    @rule()
    def other_server(self) -> None:
        """Sends the next requests to the other server."""
        self.engine, self.other = self.other, self.engine

    @rule()
    def reopen(self) -> None:
        self.engine.close()
        self.engine = self.open()


def test_order_and_limits_are_as_their_model() -> None:
    """Any sequence of operations, changed limits, failures, restarts and kills leaves the queue as the model has it."""
    run_machine(JournalMachine, 60)


@needs_postgres
def test_order_and_limits_over_postgres(postgres: Postgres) -> None:
    """Two servers over one database keep the order and the limits, whichever gets a request."""
    PostgresMachine.postgres = postgres
    run_machine(PostgresMachine, 6, steps=30)
