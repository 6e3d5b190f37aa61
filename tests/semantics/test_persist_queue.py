"""Keeps what the tests of persist-queue hold. Put is push here, get is receive, ack is delete, nack is release,
ack_failed is reject, and a size limit is a capacity."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients.semantics import awaited, drain, figures, take, texts
from support.servers.processes import ServerProcess

from qs_client import Draft, Full, NotFound, QueueClient


def test_raise_empty(client: QueueClient, q: str) -> None:
    """An empty queue gives nothing, at once or after a wait; a wait below 0 is refused."""
    client.push(q, "first")
    assert take(client, q) == ["first"]
    assert client.receive(q) == []
    assert client.receive(q, wait=0.01) == []
    with pytest.raises(ValueError, match="wait"):
        client.receive(q, wait=-1)


def test_empty(client: QueueClient, q: str) -> None:
    """A queue is empty when its only message is in flight, and not when that is given back."""
    assert figures(client, q).ready == 0
    client.push(q, "first")
    assert figures(client, q).ready == 1
    message = awaited(client, q)
    assert figures(client, q).ready == 0
    client.release(message)
    assert figures(client, q).ready == 1


def test_open_close_single(server: ServerProcess) -> None:
    """A message is there after a restart of the server."""
    with QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.push("q", b"var1")
    assert server.stop() == 0
    server.start()
    with QueueClient(server.host, server.port) as client:
        assert awaited(client, "q").payload == b"var1"


def test_open_close_1000(server: ServerProcess) -> None:
    """A thousand messages are there after a kill of the server, in order, and further ones come behind them."""
    with QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.push_many("q", [f"var{n}" for n in range(1000)])
    server.kill()
    server.start()
    with QueueClient(server.host, server.port) as client:
        client.push("q", "foobar")
        assert take(client, "q") == [f"var{n}" for n in range(1000)]
        assert take(client, "q") == ["foobar"]


def test_random_read_write(client: QueueClient, q: str) -> None:
    """A random sequence of puts and gets gives what a list gives."""
    chance, expected, number = random.Random(7), list[str](), 0
    for _ in range(400):
        if chance.random() < 0.5:
            message = client.receive_one(q)
            assert (None if message is None else message.text) == (expected.pop(0) if expected else None)
            if message is not None:
                client.delete(message)
        else:
            client.push(q, str(number))
            expected.append(str(number))
            number += 1
    assert drain(client, q) == expected


def test_multi_threaded_parallel(client: QueueClient, other: QueueClient, q: str) -> None:
    """A consumer that waits gets all messages of a producer beside it, in order."""

    def consume() -> list[str | None]:
        found: list[str | None] = []
        while len(found) < 200:
            message = awaited(other, q)
            found.append(message.text)
            other.delete(message)
        return found

    with ThreadPoolExecutor(1) as threads:
        consumer = threads.submit(consume)
        for n in range(200):
            client.push(q, str(n))
        assert consumer.result() == [str(n) for n in range(200)]


def test_multi_threaded_multi_producer(client: QueueClient, q: str) -> None:
    """Several producers lose nothing, and each one's messages stay in order."""

    def produce(name: int) -> None:
        with QueueClient(client.host, client.port) as producer:
            for n in range(20):
                producer.push(q, f"{name} {n}")

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(produce, range(5)))
    found = [str(text) for text in drain(client, q)]
    assert len(found) == 100
    for name in range(5):
        assert [text for text in found if text.startswith(f"{name} ")] == [f"{name} {n}" for n in range(20)]


def test_multiple_consumers(client: QueueClient, q: str) -> None:
    """Several consumers get each message once."""
    client.push_many(q, [str(n) for n in range(200)])

    def consume(_: int) -> list[str | None]:
        with QueueClient(client.host, client.port) as consumer:
            return drain(consumer, q)

    with ThreadPoolExecutor(4) as threads:
        found = [text for each in threads.map(consume, range(4)) for text in each]
    assert sorted(map(str, found)) == sorted(str(n) for n in range(200))
    assert figures(client, q).deleted == 200


def test_ack(client: QueueClient, q: str) -> None:
    """An acknowledged message is gone, and counts as deleted."""
    client.push_many(q, [str(n) for n in range(100)])
    assert len(client.delete_many(client.receive(q, max=100))) == 100
    found = figures(client, q)
    assert (found.deleted, found.ready, found.in_flight, found.bytes) == (100, 0, 0, 0)


def test_ack_unknown_item(client: QueueClient, q: str) -> None:
    """No message that is not in the queue can be acknowledged, given back or rejected, and nothing else changes."""
    client.set_queue(q, dead_letter=f"{q}-dead", max_receives=9)
    client.push(q, "val1")
    message = awaited(client, q)
    for settle in (client.delete, client.release, client.reject):
        with pytest.raises(NotFound):
            settle(q, 5)
    assert figures(client, q).in_flight == 1
    client.delete(message)
    assert figures(client, q).in_flight == 0


def test_ack_unack_ack_failed(client: QueueClient, q: str, dead: str) -> None:
    """Each of three messages is settled in its own way, and none is in flight then."""
    client.push_many(q, ["val1", "val2", "val3"])
    first, second, third = client.receive(q, max=3)
    assert figures(client, q).in_flight == 3
    client.release(first)
    client.delete(second)
    client.reject(third)
    found = figures(client, q)
    assert (found.ready, found.in_flight, found.deleted, found.dead) == (1, 0, 1, 1)
    again = awaited(client, q)
    assert (again.text, again.receives) == ("val1", 2)
    assert take(client, dead) == ["val3"]


def test_nack_that_does_not_count(client: QueueClient, q: str) -> None:
    """A message that is given back untried has not been received."""
    client.push(q, "x")
    client.release(awaited(client, q), count=False)
    assert awaited(client, q).receives == 1


def test_resume_unack(server: ServerProcess) -> None:
    """A message that was in flight when the server was stopped is in flight afterwards, and can be given back."""
    with QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.push("q", "val1")
        message = awaited(client, "q", visibility=600)
    assert server.stop() == 0
    server.start()
    with QueueClient(server.host, server.port) as client:
        assert (figures(client, "q").ready, figures(client, "q").in_flight) == (0, 1)
        client.release(message)
        again = awaited(client, "q")
        assert (again.text, again.receives) == ("val1", 2)


def test_auto_resume(client: QueueClient, other: QueueClient, q: str) -> None:
    """A message that a subscriber had not acknowledged is received again when it has gone."""
    client.push_many(q, ["1", "2"])
    deliveries = other.subscribe(q)
    other.delete(next(deliveries))
    assert next(deliveries).text == "2"
    other.disconnect()
    assert awaited(client, q).text == "2"


def test_put_0(client: QueueClient, q: str) -> None:
    """A payload of nothing, or of `0`, is a message."""
    client.push_many(q, ["", "0"])
    assert take(client, q) == ["", "0"]


def test_get_id(client: QueueClient, q: str) -> None:
    """A message is received by its id, and the others stay in their order."""
    mids = client.push_many(q, ["val1", "val2", "val3"])
    assert client.get(q, mids[1]).text == "val2"
    assert take(client, q) == ["val1", "val3"]


def test_get_next_in_order(client: QueueClient, q: str) -> None:
    """The message behind an id is found by paging, also when that one is gone."""
    mids = client.push_many(q, ["val1", "val2", "val3"])
    client.delete(q, mids[1])
    assert list(client.list_messages(q, state="all", after=mids[0])) == [mids[2]]
    assert list(client.list_messages(q, state="all", after=mids[1])) == [mids[2]]


def test_active_size(client: QueueClient, q: str) -> None:
    """A message counts until it is acknowledged."""
    client.push(q, "val1")
    message = awaited(client, q)
    assert len(list(client.list_messages(q, state="all"))) == 1
    client.delete(message)
    assert list(client.list_messages(q, state="all")) == []


def test_queue_contents(client: QueueClient, q: str) -> None:
    """All messages can be looked at with their payloads, and stay."""
    client.push_many(q, ["val1", "val2", "val3"])
    for _ in range(2):
        assert texts(client.peek_many(q, client.list_messages(q, state="all"))) == ["val1", "val2", "val3"]
    assert take(client, q) == ["val1", "val2", "val3"]


def test_unique_item(client: QueueClient, q: str) -> None:
    """A unique message whose twin waits is not stored, and gets the id of that."""
    mid = client.push(q, "1111", key="1111", unique=True)
    assert client.push(q, "1111", key="1111", unique=True) == mid
    assert client.push(q, "2222", key="2222", unique=True) != mid
    assert take(client, q) == ["1111", "2222"]


def test_unique_after_ack(client: QueueClient, q: str) -> None:
    """A unique message counts while it is in flight, and can be pushed again as soon as it is deleted."""
    mid = client.push(q, "1", key="k", unique=True)
    message = awaited(client, q)
    assert client.push(q, "2", key="k", unique=True) == mid
    client.delete(message)
    assert client.push(q, "3", key="k", unique=True) != mid
    assert take(client, q) == ["3"]


def test_unique_and_dead(client: QueueClient, q: str, dead: str) -> None:
    """A unique message that became a dead letter does not count any more, and neither does the dead letter."""
    client.push(q, "1", key="k", unique=True)
    client.reject(awaited(client, q))
    client.push(q, "2", key="k", unique=True)
    client.redrive(dead)
    assert drain(client, q) == ["2", "1"]


def test_unique_after_purge(client: QueueClient, q: str) -> None:
    """A purge frees all keys of unique messages."""
    client.push(q, "1", key="k", unique=True)
    client.purge(q)
    client.push(q, "2", key="k", unique=True)
    assert take(client, q) == ["2"]


def test_unique_needs_a_key(client: QueueClient, q: str) -> None:
    """A unique message without a key is refused."""
    with pytest.raises(Exception, match="key"):
        client.push(q, "1", unique=True)
    assert figures(client, q).pushed == 0


def test_unique_over_a_restart(server: ServerProcess) -> None:
    """A unique message counts after a kill of the server too."""
    with QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        mid = client.push("q", "1", key="k", unique=True)
    server.kill()
    server.start()
    with QueueClient(server.host, server.port) as client:
        assert client.push("q", "2", key="k", unique=True) == mid
        client.delete("q", mid)
        assert client.push("q", "3", key="k", unique=True) != mid


def test_priority_queue(client: QueueClient, q: str) -> None:
    """A random mix of priorities comes out sorted, and by age within a priority."""
    chance = random.Random(3)
    pushed = [(chance.randrange(10), n) for n in range(200)]
    client.push_many(q, [Draft(f"{priority} {n}", priority=priority) for priority, n in pushed])
    expected = [f"{priority} {n}" for priority, n in sorted(pushed, key=lambda each: (-each[0], each[1]))]
    assert take(client, q, count=7) + take(client, q) == expected


def test_priority_queue_over_a_restart(server: ServerProcess) -> None:
    """Priorities and ages are what they were after a kill of the server."""
    with QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.push_many("q", [Draft(str(n), priority=n % 3) for n in range(9)])
    server.kill()
    server.start()
    with QueueClient(server.host, server.port) as client:
        assert take(client, "q") == list("258147036")


def test_max_size(client: QueueClient, q: str) -> None:
    """A full queue refuses a push with an error, and takes one again when a message is acknowledged."""
    client.set_queue(q, capacity=2)
    client.push_many(q, ["1", "2"])
    with pytest.raises(Full):
        client.push(q, "3")
    message = awaited(client, q)
    with pytest.raises(Full):  # a message in flight takes its room
        client.push(q, "3")
    client.delete(message)
    client.push(q, "3")
    assert take(client, q) == ["2", "3"]


def test_max_size_of_a_list(client: QueueClient, q: str) -> None:
    """A list that does not fit stores none of its messages."""
    client.set_queue(q, capacity=2)
    with pytest.raises(Full):
        client.push_many(q, ["1", "2", "3"])
    assert figures(client, q).ready == 0


def test_clear(client: QueueClient, q: str) -> None:
    """A purge empties the queue, and what is pushed then is received."""
    client.push_many(q, ["1", "2"])
    assert client.purge(q) == 2
    client.push(q, "3")
    assert take(client, q) == ["3"]


def test_types(client: QueueClient, q: str) -> None:
    """A payload is text or bytes; anything else is refused before it is sent."""
    for payload in (1, None, ["x"], {"a": 1}, 1.5):
        with pytest.raises(TypeError):
            client.push(q, payload)  # type: ignore[arg-type]
    client.push(q, bytearray(b"x"))  # type: ignore[arg-type]
    assert take(client, q) == ["x"]


def test_a_large_item(client: QueueClient, q: str) -> None:
    """A payload of a million bytes comes back whole."""
    payload = random.Random(1).randbytes(1_000_000)
    client.push(q, payload)
    assert awaited(client, q).payload == payload
