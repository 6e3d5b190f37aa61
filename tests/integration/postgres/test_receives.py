"""Receives of a sweep that share what they find: each gets what it would have got alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from support.storage.engines import LOTS
from support.storage.postgres import Database, engine_on, needs_postgres

from qs_storage.engine import Draft, Options, Receipt, StaleReceiptError, State, StorageError
from qs_storage.postgres.known import PLAIN_PLACE
from qs_storage.postgres.taking import take
from qs_storage.postgres.transaction import Transaction
from qs_storage.remote_engine import Delete, Push, Receive

if TYPE_CHECKING:
    from qs_storage.postgres.engine import PostgresEngine

pytestmark = needs_postgres


@pytest.fixture
def engine(database: Database, tmp_path: Path) -> "Iterator[PostgresEngine]":
    """An engine with one worker and a queue `q`."""
    engine = engine_on(database, tmp_path, of_database=True, connections=1)
    engine.create("q", Options())
    yield engine
    engine.close()


def test_many_receives_of_one_sweep(engine: "PostgresEngine") -> None:
    """None of them is told that a queue is empty which has messages for all."""
    for _ in range(5):
        engine.queue("q").push([Draft(b"x")] * 1000)
    operations = [Receive(("q",), 1000, None, LOTS) for _ in range(5)]
    for operation in operations:
        operation.begin_wait()
    engine.submit(operations)
    assert [len(operation.wait()) for operation in operations] == [1000] * 5


def test_given_order_holds_where_not_all_fit(engine: "PostgresEngine") -> None:
    """The messages of the first queue come first, though a later queue has older ones, and there is room for one."""
    engine.create("older", Options())
    engine.queue("older").push([Draft(b"x" * 100)])
    engine.queue("q").push([Draft(b"y" * 100)])
    [message] = engine.receive(["q", "older"], 10, None, 150, given=True)
    assert message.qid == "q"


def test_a_fault_with_one_operation(engine: "PostgresEngine") -> None:
    """An operation that the program cannot do fails alone, and the others of its sweep are done, once."""
    impossible = Delete("q", [Receipt(1 << 70, None)])
    push = Push("q", [Draft(b"x")])
    for operation in (push, impossible):
        operation.begin_wait()
    engine.submit([push, impossible])
    with pytest.raises(StorageError, match="fault"):
        impossible.wait()
    [mid] = push.wait()
    assert engine.queue("q").list_mids(State.ALL, 10, -1) == [mid]


def test_a_receipt_with_more_receives_than_there_can_be(engine: "PostgresEngine") -> None:
    """Such a receipt is stale, like any other that does not fit."""
    queue = engine.queue("q")
    [mid] = queue.push([Draft(b"x")])
    engine.receive(["q"], 1, None, LOTS)
    with pytest.raises(StaleReceiptError):
        queue.delete(Receipt(mid, 10**18 - 1))


def test_a_queue_that_lets_out_any_number_of_a_group(engine: "PostgresEngine") -> None:
    """The option may be larger than a number of the database."""
    engine.create("wide", Options(group_in_flight=10**17))
    engine.queue("wide").push([Draft(b"x", group="g")] * 3)
    assert len(engine.receive(["wide"], 10, None, LOTS)) == 3


def test_messages_that_were_locked_and_did_not_fit(engine: "PostgresEngine") -> None:
    """A receive at the same time, which has passed them, does not keep the next one from finding them."""
    engine.queue("q").push([Draft(b"x" * 100)] * 10)
    floors = engine.shared.known("q").floors
    floors.looked(1000)  # no look at the whole line saves it
    changes = floors.changes
    assert len(engine.receive(["q"], 10, None, 250)) == 2
    floors.taken([PLAIN_PLACE + 1000], changes)  # as the other receive does at its end
    assert len(engine.receive(["q"], 10, None, LOTS)) == 8


def test_messages_that_a_failed_transaction_had_taken(
    engine: "PostgresEngine", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive at the same time, which has passed them, does not keep the repeated one from finding them."""
    engine.queue("q").push([Draft(b"x")] * 2)
    floors = engine.shared.known("q").floors
    tries = []

    def fail_once(tx: Transaction, receives: Sequence[Receive]) -> None:
        take(tx, receives)
        tries.append(1)
        if len(tries) == 1:
            floors.looked(1000)
            floors.taken([PLAIN_PLACE + 1000], floors.changes)
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr("qs_storage.postgres.sweep.take", fail_once)
    assert len(engine.receive(["q"], 10, None, LOTS)) == 2
    assert len(tries) == 2


def test_no_transaction_is_for_all_receives(engine: "PostgresEngine", monkeypatch: pytest.MonkeyPatch) -> None:
    """Many large receives are several transactions."""
    wanted = []

    def note(tx: Transaction, receives: Sequence[Receive]) -> None:
        wanted.append(sum(each.count for each in receives))
        take(tx, receives)

    monkeypatch.setattr("qs_storage.postgres.sweep.take", note)
    operations = [Receive(("q",), 1000, None, LOTS) for _ in range(50)]
    for operation in operations:
        operation.begin_wait()
    engine.submit(operations)
    assert [operation.wait() for operation in operations] == [[]] * 50
    assert max(wanted) <= 10_000
