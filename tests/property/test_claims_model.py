"""Claims and batches beside pushes and receives, with stops and crashes in between, against a model in memory."""

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.examples import run_machine
from support.power_loss.claims import Numbers, Shown, content, numbers_of_journal, show
from support.storage.calls import REOPENED
from support.storage.contract import postgres_bench
from support.storage.engines import ENGINES, LOTS, Bench
from support.storage.postgres import Postgres, needs_postgres

from qs_storage.engine import (
    BatchOrderError,
    ClaimOrderError,
    Draft,
    Engine,
    NoSuchClaimError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
)

CONSUMERS = st.sampled_from(["a", "b"])
SEQS = st.integers(0, 4)


class ClaimsMachine(RuleBasedStateMachine):
    """One queue. A message is known by its payload."""

    kind = "journal-none"

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp(prefix="qs-claims-")
        self.bench = self.new_bench(Path(self.root))
        self.bench.engine.create("q", Options())
        self.model = Shown(acknowledged={"a": 0, "b/ü": 0}, published={"p": -1, "..": -1})
        self.acknowledged = {"a": 0, "b": 0}
        self.staged: dict[tuple[int, int, int], list[bytes]] = {}
        self.number = 0

    def new_bench(self, root: Path) -> Bench:
        return Bench(ENGINES[self.kind](root))

    def numbers(self, engine: Engine) -> Numbers:
        """Looks up the numbers of consumers and producers."""
        return numbers_of_journal(engine)

    def teardown(self) -> None:
        self.bench.close()
        shutil.rmtree(self.root)

    def payloads(self, count: int) -> list[bytes]:
        self.number += count
        return [b"%05d" % number for number in range(self.number - count, self.number)]

    def last(self, consumer: str) -> int:
        return max([self.acknowledged[consumer], *(seq for who, seq in self.model.claims if who == consumer)])

    def visible(self) -> list[bytes]:
        mids = self.bench.engine.queue("q").list_mids(State.READY, 1000, -1)
        found = [self.bench.engine.queue("q").get(mid, peek=True, visibility=None).payload or b"" for mid in mids]
        assert set(found) == {payload for payload, until in self.model.messages.items() if not until}
        return found

    # -- what the engine is asked for

    @rule(count=st.integers(1, 4))
    def push(self, count: int) -> None:
        payloads = self.payloads(count)
        self.bench.engine.queue("q").push([Draft(payload) for payload in payloads])
        self.bench.engine.commit()
        self.model.messages |= dict.fromkeys(payloads, 0)

    @rule(count=st.integers(1, 3), window=st.integers(1, 20))
    def receive(self, count: int, window: int) -> None:
        expected = self.visible()[:count]
        found = self.bench.engine.receive(["q"], count, window, LOTS)
        assert [message.payload for message in found] == expected
        self.model.messages |= dict.fromkeys(expected, self.bench.clock.now + window)
        self.bench.engine.commit()

    @rule()
    def delete(self) -> None:
        engine = self.bench.engine
        for mid in engine.queue("q").list_mids(State.IN_FLIGHT, 1000, -1):
            if engine.queue("q").get(mid, peek=True, visibility=None).visible_at is not None:
                payload = engine.queue("q").read(Receipt(mid)).payload
                engine.queue("q").delete(Receipt(mid))
                engine.commit()
                del self.model.messages[payload or b""]
                return

    @rule(by=st.integers(1, 12))
    def time_passes(self, by: int) -> None:
        self.bench.clock.now += by
        self.model = self.model.at(self.bench.clock.now)

    @rule(consumer=CONSUMERS, seq=SEQS, count=st.integers(1, 5))
    def claim(self, consumer: str, seq: int, count: int) -> None:
        seq += self.acknowledged[consumer]
        known = self.model.claims.get((consumer, seq))
        expected = self.visible()[:count] if known is None else known
        following = self.last(consumer) + 1
        try:
            claims = self.bench.engine.queue("q").claims
            made = claims.claim(consumer, seq, count, None, None)
            found = content(claims, consumer, seq) if made.count else []
        except StaleReceiptError:
            assert seq <= self.acknowledged[consumer]
        except NoSuchClaimError:
            assert known is None
            assert self.acknowledged[consumer] < seq < following
        except ClaimOrderError:
            assert seq > following
        else:
            assert found == expected
            assert known is not None or seq == following
            if found:
                self.model.claims[consumer, seq] = found
            for payload in found:
                self.model.messages.pop(payload, None)
        self.bench.engine.commit()

    @rule(consumer=CONSUMERS, seq=SEQS)
    def acknowledge(self, consumer: str, seq: int) -> None:
        seq += self.acknowledged[consumer]
        try:
            self.bench.engine.queue("q").claims.acknowledge(consumer, seq)
        except ClaimOrderError:
            assert seq > self.last(consumer)
        else:
            assert seq <= self.last(consumer)
            self.acknowledged[consumer] = seq
            kept = [key for key in self.model.claims if key[0] != consumer or key[1] > seq]
            self.model.claims = {key: self.model.claims[key] for key in kept}
        self.bench.engine.commit()

    @rule(consumer=CONSUMERS, seq=SEQS)
    def release(self, consumer: str, seq: int) -> None:
        seq += self.acknowledged[consumer]
        known = self.model.claims.pop((consumer, seq), None)
        try:
            assert self.bench.engine.queue("q").claims.release(consumer, seq) == len(known or ())
        except NoSuchClaimError:
            assert known is None
        else:
            self.model.messages |= dict.fromkeys(known or (), 0)
        self.bench.engine.commit()

    @rule(parts=st.integers(1, 4))
    def look(self, parts: int) -> None:
        claims = self.bench.engine.queue("q").claims
        for (consumer, seq), known in self.model.claims.items():
            slices = [content(claims, consumer, seq, (part, parts)) for part in range(parts)]
            assert [payload for each in slices for payload in each] == known

    @rule(batch=st.integers(0, 2), part=st.integers(0, 1), count=st.integers(0, 3))
    def stage(self, batch: int, part: int, count: int) -> None:
        batch += self.model.published["p"]
        if batch < 0:
            return
        payloads = self.payloads(count)
        self.bench.engine.queue("q").batches.stage("p", (batch, part, 7), list(map(Draft, payloads)))
        self.bench.engine.commit()
        if batch > self.model.published["p"]:
            self.staged.setdefault((batch, part, 7), []).extend(payloads)

    @rule(ahead=st.integers(0, 2))
    def publish(self, ahead: int) -> None:
        batch = self.model.published["p"] + ahead
        if batch < 0:
            return
        if batch > max(0, self.model.published["p"], *(name[0] for name in self.staged)) + 1:
            with pytest.raises(BatchOrderError):
                self.bench.engine.queue("q").batches.publish("p", batch, [])
            return
        names = sorted(name for name in self.staged if name[0] == batch)
        self.bench.engine.queue("q").batches.publish("p", batch, [name[1:] for name in names])
        self.bench.engine.commit()
        if not names:
            return  # without parts, nothing happens
        for name in names:
            self.model.messages |= dict.fromkeys(self.staged[name], 0)
        self.model.published["p"] = batch
        self.staged = {name: payloads for name, payloads in self.staged.items() if name[0] > batch}

    @rule(how=st.sampled_from(sorted(REOPENED)))
    def reopen(self, how: str) -> None:
        if hasattr(self.bench.engine, "_journal"):
            self.bench.engine._journal.room.commit()  # a crash may lose receives
        REOPENED[how](self.bench)

    # -- what has to hold

    @invariant()
    def same(self) -> None:
        self.model.acknowledged["a"] = self.acknowledged["a"]
        found = show(self.bench.engine, self.bench.clock.now, None, self.numbers)
        assert found == self.model.at(self.bench.clock.now)
        assert [(each.consumer, each.seq) for each in self.bench.engine.queue("q").claims.all()] == sorted(
            self.model.claims
        )


class PostgresMachine(ClaimsMachine):
    """A database of PostgreSQL."""

    postgres: ClassVar[Postgres]

    def __init__(self) -> None:
        self.stack = contextlib.ExitStack()
        super().__init__()

    def new_bench(self, root: Path) -> Bench:
        self.database = self.stack.enter_context(self.postgres.database())
        return postgres_bench(root, self.database)

    def numbers(self, engine: Engine) -> Numbers:
        acknowledged = dict(self.database.sql("SELECT consumer, acknowledged FROM qs.consumers"))
        published = dict(self.database.sql("SELECT producer, published FROM qs.producers"))
        return {"a": 0, "b/ü": 0} | {"a": acknowledged.get("a", 0)}, {"p": -1, "..": -1} | published

    def teardown(self) -> None:
        super().teardown()
        self.stack.close()


@pytest.mark.parametrize("kind", ["journal-none", "journal-cold", "journal-compacting"])
def test_claims_are_as_their_model(kind: str) -> None:
    """Any sequence of operations, stops and crashes leaves the queue as the model has it. Takes some 3 s each."""
    machine = type("Machine", (ClaimsMachine,), {"kind": kind})
    run_machine(machine, 25, steps=30)


@needs_postgres
def test_claims_over_postgres(postgres: Postgres) -> None:
    """The claims and batches of a database are as their model, too."""
    PostgresMachine.postgres = postgres
    run_machine(PostgresMachine, 4, steps=25)
