"""Workers of the storage postgres take turns: what comes while one asks makes the next transaction larger."""

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.storage.postgres import LONG, needs_postgres

from qs_storage.engine import Draft
from qs_storage.remote_engine import Push

if TYPE_CHECKING:
    from qs_storage.postgres.sweep import Sweeps

pytestmark = needs_postgres


class Transactions:
    """Stands for the database: each transaction asks, and commits, when the test says so."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[Transactions.One] = SimpleQueue()

    class One:
        def __init__(self) -> None:
            self.operations: Sequence[Any] = ()
            self.may_ask, self.may_commit = threading.Event(), threading.Event()

        def go(self) -> None:
            """Lets it ask and commit."""
            self.may_ask.set()
            self.may_commit.set()

    def run_on(self, link: object, shared: object, step: Callable[[Any], object], asked: Callable[[], object]) -> None:
        one = self.One()
        step(one)
        self.begun.put(one)
        assert one.may_ask.wait(LONG)
        asked()
        assert one.may_commit.wait(LONG)


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> Transactions:
    from qs_storage.postgres import sweep

    def note(self: "Sweeps", one: Transactions.One, operations: Sequence[Any]) -> None:
        one.operations = list(operations)

    made = Transactions()
    monkeypatch.setattr(sweep, "run_on", made.run_on)
    monkeypatch.setattr(sweep.Sweeps, "_sweep", note)
    return made


@pytest.fixture
def sweeps(transactions: Transactions) -> "Iterator[Sweeps]":
    from qs_storage.postgres.sweep import Sweeps

    def repeat(attempt: Callable[[], object], *_: object) -> object:
        return attempt()

    links = SimpleNamespace(new=lambda: SimpleNamespace(close=lambda: None), repeat=repeat)
    made = Sweeps(SimpleNamespace(links=links), 2, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    yield made
    made.close()


def _pushes(count: int) -> list[Push]:
    return [Push("q", [Draft(b"x")]) for _ in range(count)]


def test_others_gather_during_a_turn(
    sweeps: "Sweeps", transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a transaction asks, no other begins. When it commits, all that has come begins together, beside that."""
    monkeypatch.setattr("qs_storage.postgres.sweep._TURN", LONG)
    (alone, *others) = _pushes(4)
    sweeps.submit([alone])
    first = transactions.begun.get(timeout=LONG)
    assert first.operations == [alone]
    for operation in others:
        sweeps.submit([operation])
    first.may_ask.set()
    second = transactions.begun.get(timeout=LONG)  # the first one has not committed yet
    assert second.operations == others
    first.go()
    second.go()


def test_a_turn_is_short(sweeps: "Sweeps", transactions: Transactions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that waits for a lock does not hold others up: its turn ends by itself."""
    monkeypatch.setattr("qs_storage.postgres.sweep._TURN", 0.01)
    (waits, other) = _pushes(2)
    sweeps.submit([waits])
    first = transactions.begun.get(timeout=LONG)
    sweeps.submit([other])
    second = transactions.begun.get(timeout=LONG)  # the first one still asks
    assert second.operations == [other]
    first.go()
    second.go()


def test_a_turn_ends_for_what_came_before_the_other_worker_looked(
    sweeps: "Sweeps", transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has committed takes what came meanwhile, also if nobody wakes it."""
    monkeypatch.setattr("qs_storage.postgres.sweep._TURN", LONG)
    (one, other, third) = _pushes(3)
    sweeps.submit([one])
    first = transactions.begun.get(timeout=LONG)
    first.may_ask.set()
    sweeps.submit([other])
    second = transactions.begun.get(timeout=LONG)
    sweeps.submit([third])
    first.go()
    second.may_ask.set()
    last = transactions.begun.get(timeout=LONG)
    assert last.operations == [third]
    second.go()
    last.go()
