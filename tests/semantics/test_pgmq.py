"""Keeps what the tests of pgmq hold. Send is push here, read is receive with a visibility, set_vt is extend, read_ct is
receives, vt is visible_at, and an archive is a queue that a message is copied to before it is deleted."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients.semantics import PATIENCE, SOON, awaited, drain, end_window, figures, take, texts

from qs_client import BadRequest, Conflict, Draft, NotEmpty, NotFound, QueueClient


def test_create_and_drop(client: QueueClient, q: str) -> None:
    """A queue that was made is listed until it is dropped, with its messages."""
    client.push(q, "x")
    with pytest.raises(NotEmpty):
        client.delete_queue(q)
    assert client.delete_queue(q, force=True)
    assert q not in client.queues()


def test_create_is_idempotent(client: QueueClient, q: str) -> None:
    """Making a queue again is a conflict, or no error if the program says so; its messages stay."""
    client.push(q, "x")
    with pytest.raises(Conflict):
        client.new_queue(q)
    assert client.new_queue(q, exist_ok=True) is False
    assert take(client, q) == ["x"]


def test_drop_of_no_queue(client: QueueClient) -> None:
    """Dropping a queue that is not there is an error, or none if the program says so."""
    with pytest.raises(NotFound):
        client.delete_queue("pgmq-none")
    assert client.delete_queue("pgmq-none", missing_ok=True) is False


def test_send_to_no_queue(client: QueueClient) -> None:
    """A send to a queue that is not there is an error, and makes none."""
    with pytest.raises(NotFound):
        client.push("pgmq-none", "x")
    assert "pgmq-none" not in client.queues()


def test_queue_name_length(client: QueueClient) -> None:
    """A name may have 200 characters, and no more; an empty one is none."""
    for name in ("", "n" * 201):
        with pytest.raises((ValueError, BadRequest)):
            client.new_queue(name)
    assert client.new_queue("n" * 200)


def test_ids_grow(client: QueueClient, q: str) -> None:
    """Each message has a greater id than the one before, in batches too."""
    mids = [client.push(q, "1"), *client.push_many(q, ["2", "3"]), client.push(q, "4")]
    assert mids == sorted(set(mids))
    assert list(client.list_messages(q)) == mids


def test_read_hides_for_its_visibility(client: QueueClient, q: str) -> None:
    """A message that was read is hidden from a second read until its visibility is over."""
    client.push(q, "x")
    first = awaited(client, q, visibility=SOON)
    second = awaited(client, q)
    assert (first.receives, second.receives) == (1, 2)
    assert first.visible_at is not None
    assert second.visible_at is not None
    assert second.visible_at > first.visible_at
    assert take(client, q) == []


def test_read_with_visibility_zero(client: QueueClient, q: str) -> None:
    """A message that is read with a visibility of 0 can be read again at once."""
    client.push(q, "x")
    assert awaited(client, q, visibility=0).receives == 1
    assert awaited(client, q).receives == 2


def test_read_an_empty_queue(client: QueueClient, q: str) -> None:
    """A read of an empty queue returns an empty list."""
    assert client.receive(q, max=10) == []
    assert client.receive_one(q) is None


def test_read_a_quantity(client: QueueClient, q: str) -> None:
    """A read returns at most as many messages as are asked for, the oldest ones, in order."""
    client.push_many(q, map(str, range(10)))
    assert take(client, q, count=3) == ["0", "1", "2"]
    assert take(client, q, count=100) == list("3456789")


def test_send_batch(client: QueueClient, q: str) -> None:
    """A batch is stored in its order, with an id for each; an empty one stores nothing."""
    mids = client.push_many(q, ["a", "b", "c"])
    assert [(message.mid, message.text) for message in client.receive(q, max=9)] == list(zip(mids, "abc", strict=True))
    assert client.push_many(q, []) == []


def test_send_batch_is_all_or_nothing(client: QueueClient, q: str) -> None:
    """A batch with a message that is refused stores none of it."""
    with pytest.raises((ValueError, BadRequest)):
        client.push_many(q, [Draft("good"), Draft("bad", priority=99)])
    assert figures(client, q).pushed == 0


def test_send_with_delay(client: QueueClient, q: str) -> None:
    """Each message of a batch has its own delay."""
    client.push_many(q, [Draft("long", delay=600), Draft("short", delay=SOON), Draft("none")])
    assert take(client, q, count=1) == ["none"]
    assert awaited(client, q).text == "short"
    assert take(client, q) == []


def test_times(client: QueueClient, q: str) -> None:
    """A message tells when it was sent and until when it is hidden, on the clock of the wall."""
    before = time.time_ns() // 1000
    client.push(q, "x")
    message = awaited(client, q, visibility=100)
    after = time.time_ns() // 1000
    assert message.pushed_at is not None
    assert message.visible_at is not None
    assert before <= message.pushed_at <= after
    assert before + 100_000_000 <= message.visible_at <= after + 100_000_000


def test_send_with_headers(client: QueueClient, q: str) -> None:
    """Headers come with a message as they were sent, in their order; one without any has none."""
    headers = {"x-trace": "00-4bf9", "Tenant": "zoë & co", "empty": ""}
    client.push(q, "x", headers=headers)
    client.push(q, "y")
    with_headers, without = client.receive(q, max=2)
    assert list(with_headers.headers.items()) == list(headers.items())
    assert dict(without.headers) == {}


def test_send_batch_with_headers(client: QueueClient, q: str) -> None:
    """Each message of a batch has its own headers."""
    client.push_many(q, [Draft(str(n), headers={"n": str(n)} if n % 2 else {}) for n in range(4)])
    assert [dict(message.headers) for message in client.receive(q, max=9)] == [{}, {"n": "1"}, {}, {"n": "3"}]


def test_headers_stay(client: QueueClient, q: str, dead: str) -> None:
    """Headers are there in peeks and second reads, in an archive and in the dead-letter queue."""
    client.new_queue(f"{q}-archive")
    mid = client.push(q, "x", headers={"k": "v"})
    client.copy(q, mid, f"{q}-archive")
    end_window(client, awaited(client, q))
    assert dict(client.peek(q, mid).headers) == {"k": "v"}
    message = awaited(client, q)
    assert dict(message.headers) == {"k": "v"}
    client.reject(message)
    assert dict(awaited(client, dead).headers) == {"k": "v"}
    assert dict(awaited(client, f"{q}-archive").headers) == {"k": "v"}


def test_set_vt(client: QueueClient, q: str) -> None:
    """A new visibility counts from now: a longer one hides further, one of 0 shows the message at once."""
    client.push(q, "x")
    message = awaited(client, q, visibility=60)
    end = client.extend(message, visibility=600)
    assert message.visible_at is not None
    assert end > message.visible_at + 500_000_000
    assert client.extend(message, visibility=0) < end
    assert awaited(client, q).receives == 2


def test_set_vt_of_no_message(client: QueueClient, q: str) -> None:
    """The visibility of a message that is not there cannot be set."""
    with pytest.raises(NotFound):
        client.extend(q, 1, visibility=1)


def test_set_vt_of_a_batch(client: QueueClient, q: str) -> None:
    """A pipeline sets the visibility of many messages, each for itself."""
    mids = client.push_many(q, ["a", "b", "c"])
    held = client.receive(q, max=3, visibility=60)
    client.delete(q, mids[1])
    with client.pipeline() as batch:
        ends = [batch.extend(message, visibility=0) for message in held]
        with pytest.raises(NotFound):
            ends[1].result()
    assert take(client, q) == ["a", "c"]


def test_delete(client: QueueClient, q: str) -> None:
    """A deleted message is gone; a second delete says so."""
    mid = client.push(q, "x")
    client.delete(q, mid)
    with pytest.raises(NotFound):
        client.delete(q, mid)
    assert take(client, q) == []


def test_delete_batch(client: QueueClient, q: str) -> None:
    """A delete of many returns the ids of those that were there."""
    mids = client.push_many(q, ["a", "b", "c"])
    client.delete(q, mids[0])
    assert client.delete_many(q, [*mids, mids[2] + 1]) == mids[1:]
    assert figures(client, q).ready == 0


def test_pop(client: QueueClient, q: str) -> None:
    """Receive and delete take the oldest message out; of an empty queue nothing is taken."""
    client.push_many(q, ["a", "b"])
    assert drain(client, q) == ["a", "b"]
    assert drain(client, q) == []


def test_archive(client: QueueClient, q: str) -> None:
    """A message that is copied to an archive and deleted is there under its id, as often as that is tried."""
    client.new_queue(f"{q}-archive")
    mid = client.push(q, "x")
    message = awaited(client, q)
    for _ in range(2):
        client.copy(message, queues=f"{q}-archive")
    client.delete(message)
    assert list(client.list_messages(q, state="all")) == []
    assert list(client.list_messages(f"{q}-archive")) == [mid]


def test_archive_batch(client: QueueClient, q: str) -> None:
    """Many messages are archived together, those that exist."""
    client.new_queue(f"{q}-archive")
    mids = client.push_many(q, ["a", "b", "c"])
    client.delete(q, mids[1])
    assert client.copy(q, mids, f"{q}-archive") == [mids[0], mids[2]]
    assert client.delete_many(q, mids) == [mids[0], mids[2]]
    assert take(client, f"{q}-archive") == ["a", "c"]


def test_purge(client: QueueClient, q: str) -> None:
    """A purge removes all messages, those in flight and delayed too, and counts them; the queue stays."""
    client.push_many(q, ["a", "b"])
    client.push(q, "c", delay=600)
    held = awaited(client, q)
    assert client.purge(q) == 3
    assert client.purge(q) == 0
    with pytest.raises(NotFound):
        client.delete(held)
    client.push(q, "d")
    assert take(client, q) == ["d"]


def test_metrics(client: QueueClient, q: str) -> None:
    """The figures tell the length of a queue, the age of its oldest message and how many there ever were."""
    empty = figures(client, q)
    assert (empty.ready, empty.oldest, empty.pushed) == (0, None, 0)
    client.push_many(q, ["a", "b"])
    client.delete(awaited(client, q))
    found = figures(client, q)
    assert (found.ready, found.pushed, found.deleted) == (1, 2, 1)
    assert found.oldest is not None
    assert 0 <= found.oldest < 60


def test_metrics_of_all(client: QueueClient, q: str) -> None:
    """The figures of all queues are had with one request; those of one that is not there are an error."""
    client.push(q, "x")
    assert {each.qid: each.ready for each in client.stats()}[q] == 1
    with pytest.raises(NotFound):
        client.stats(f"{q}-none")


def test_read_with_poll_returns_at_once(client: QueueClient, q: str) -> None:
    """A waiting read returns what is there, without waiting for more."""
    client.push_many(q, ["a", "b"])
    assert texts(client.receive(q, max=10, wait=PATIENCE)) == ["a", "b"]


def test_read_with_poll_waits(client: QueueClient, other: QueueClient, q: str) -> None:
    """A waiting read returns when a message is sent meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.receive, q, 10, PATIENCE)
        client.push(q, "x")
        assert texts(waiting.result()) == ["x"]


def test_read_with_poll_gives_up(client: QueueClient, q: str) -> None:
    """A waiting read of an empty queue returns nothing when its time is over, and not before."""
    start = time.monotonic()
    assert client.receive(q, wait=SOON) == []
    assert time.monotonic() - start >= SOON


def test_read_grouped(client: QueueClient, q: str) -> None:
    """A read gives out one message of a group at a time, and no younger one before that is deleted."""
    client.push_many(q, [Draft("a1", group="a"), Draft("a2", group="a"), Draft("b1", group="b"), Draft("free")])
    held = client.receive(q, max=10)
    assert texts(held) == ["a1", "b1", "free"]
    assert take(client, q) == []
    client.delete(held[0])
    assert take(client, q) == ["a2"]


@pytest.mark.parametrize(
    ("fair", "expected"),
    [(False, "free a1 a2 a3 b1 b2 a4 a5 a6"), (True, "free a1 b1 a2 b2 a3 a4 a5 a6")],
)
def test_read_grouped_in_turn(client: QueueClient, q: str, fair: bool, expected: str) -> None:
    """A fair queue serves its groups in turn, so that a long one holds up no short one; another one goes by age."""
    client.set_queue(q, fair=fair)
    client.push_many(q, [Draft("free"), *[Draft(f"a{n}", group="a") for n in (1, 2, 3)]])
    client.push_many(q, [Draft("b1", group="b"), Draft("b2", group="b")])
    client.push_many(q, [Draft(f"a{n}", group="a") for n in (4, 5, 6)])
    assert drain(client, q) == expected.split()
