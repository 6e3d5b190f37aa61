"""Requests of two servers that concern the same messages of one database: what is done once is done once."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypeVar, cast

import pytest
from support.storage.engines import LOTS, ManualClock
from support.storage.postgres import Database, engine_on, needs_postgres

from qs_storage.engine import Draft, Options, Queue, Receipt, State, UnsupportedError

if TYPE_CHECKING:
    from qs_storage.postgres.engine import PostgresEngine

pytestmark = needs_postgres
T = TypeVar("T")
ROUNDS = 5


@pytest.fixture
def engines(database: Database, tmp_path: Path) -> "Iterator[list[PostgresEngine]]":
    """Two servers' engines, which know a queue `q` whose dead letters go to `dead`."""
    clock = ManualClock()
    first = engine_on(database, tmp_path, clock)
    first.create("dead", Options())
    first.create("q", Options(dead_letter="dead", max_receives=9))
    second = engine_on(database, tmp_path, clock)
    yield [first, second]
    first.close()
    second.close()


def together(*calls: Callable[[], T]) -> list[T]:
    """Calls functions in threads that begin at the same moment. Returns their results."""
    results: list[T] = []
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> None:
        barrier.wait()
        results.append(call())

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(calls)
    return results


def test_get_receives_once(engines: "list[PostgresEngine]") -> None:
    """One of those who get one message at the same time receives it, and the others see it in flight."""
    for _ in range(ROUNDS):
        [mid] = engines[0].queue("q").push([Draft(b"x")])
        calls = [partial(engine.queue("q").get, mid, peek=False, visibility=10**9) for engine in engines]
        found = together(*calls, *calls)
        assert sorted(message.status for message in found) == ["delivered", "in-flight", "in-flight", "in-flight"]


def test_one_claim_is_made_once(engines: "list[PostgresEngine]") -> None:
    """A claim that a consumer asks of two servers at once is one claim; claims of two consumers share no message."""
    for seq in range(1, ROUNDS + 1):
        engines[0].queue("q").push([Draft(b"x")] * 10)
        calls = [
            partial(engine.queue("q").claims.claim, consumer, seq, 5, None, None)
            for engine in engines
            for consumer in ("c", "d")
        ]
        made = {(claim.consumer, claim.checksum): claim.count for claim in together(*calls)}
        assert len(made) == 2
        parts = [engines[0].queue("q").claims.part(consumer, seq, (0, 1), 10, LOTS) or () for consumer in ("c", "d")]
        mids = [message.mid for part in parts for message in part]
        assert len(mids) == len(set(mids)) == sum(made.values())


def test_one_batch_is_published_once(engines: "list[PostgresEngine]") -> None:
    """One of two servers that publish a batch at the same time does."""
    for batch in range(ROUNDS):
        engines[0].queue("q").batches.stage("p", (batch, 0, 0), [Draft(b"x")] * 3)
        calls = [partial(engine.queue("q").batches.publish, "p", batch, [(0, 0)]) for engine in engines]
        assert sorted(together(*calls)) == [0, 3]
    assert engines[0].queue("q").stats().ready == 3 * ROUNDS


def test_purges_share_the_work(engines: "list[PostgresEngine]") -> None:
    """Each of the messages that two purges remove at the same time is counted by one of them."""
    engines[0].queue("q").push([Draft(b"x")] * 500)
    assert sum(together(*[partial(engine.queue("q").purge, 10**18, 1000) for engine in engines])) == 500
    assert engines[0].queue("q").list_mids(State.ALL, 10, -1) == []


def test_a_dead_letter_queue_that_another_server_removed(engines: "list[PostgresEngine]") -> None:
    """The dead-letter queue is made again, though this server still knows the one that was removed."""
    first, second = engines
    [mid] = first.queue("q").push([Draft(b"x")])
    [message] = first.receive(["q"], 1, None, LOTS)
    removed = first.shared.known("dead")
    second.remove("dead", force=True)
    first.shared.queues = {**first.shared.queues, "dead": removed}  # it was not told yet
    first.queue("q").reject(Receipt(mid, message.receives), "bad")
    assert first.shared.known("dead").number != removed.number
    [letter] = first.receive(["dead"], 1, None, LOTS)
    assert (letter.payload, letter.reason) == (b"x", "bad")


def test_letters_for_a_queue_of_another_storage(engines: "list[PostgresEngine]") -> None:
    """Dead letters of a queue that has another storage now stay where they are."""
    elsewhere = cast(Queue, SimpleNamespace(options=Options(storage="null")))
    with pytest.raises(UnsupportedError, match="'null'"):
        engines[0].queue("dead").redrive.move([(1, elsewhere)])


@pytest.mark.parametrize("way", ["purge", "acknowledge", "reject"])
def test_a_unique_key_is_free_again(engines: "list[PostgresEngine]", way: str) -> None:
    """Whatever removes a message from its queue frees its unique key."""
    queue = engines[0].queue("q")
    draft = Draft(b"x", key="k", unique=True)
    [mid] = queue.push([draft])
    assert engines[1].queue("q").push([draft]) == [mid]
    if way == "purge":
        queue.purge(mid, 1)
    elif way == "acknowledge":
        queue.claims.claim("c", 1, 1, None, None)
        assert queue.claims.acknowledge("c", 1) == 1
    else:
        [message] = engines[0].receive(["q"], 1, None, LOTS)
        queue.reject(Receipt(mid, message.receives), None)
    assert engines[1].queue("q").push([draft]) != [mid]


def test_schema_and_condition_of_another_server(engines: "list[PostgresEngine]") -> None:
    """A queue that was made at one server has its schema and its condition at the other too, also when they change."""
    first, second = engines
    first.create("made", Options(schema="order", where="/order[total > 100]"))
    second._upkeep.read_queues_now()
    assert (second.options("made").schema, second.options("made").where) == ("order", "/order[total > 100]")
    second.configure("made", Options(where="/a"))
    first._upkeep.read_queues_now()
    assert (first.options("made").schema, first.options("made").where) == ("", "/a")
