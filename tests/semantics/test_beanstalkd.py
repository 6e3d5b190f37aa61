"""Keeps what the tests of beanstalkd and its client greenstalk hold. Put is push here, reserve is receive, the time to
run is the visibility window, touch is extend, bury is reject, kick is redrive, and a tube is a queue."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients.semantics import PATIENCE, SOON, awaited, drain, end_window, figures, take, texts
from support.servers.processes import ServerProcess

from qs_client import BadRequest, Draft, NotFound, QueueClient, Stale


def test_basic_usage(client: QueueClient, q: str) -> None:
    """A pushed message is received under the id of the push with its text, and is gone after the delete."""
    mid = client.push(q, "测试@example.com")
    message = client.receive_one(q)
    assert message is not None
    assert (message.mid, message.text) == (mid, "测试@example.com")
    client.delete(message)
    assert list(client.list_messages(q, state="all")) == []


def test_put_priority(client: QueueClient, q: str) -> None:
    """A message of a higher priority is received first, however late it was pushed."""
    for priority in (2, 9, 0, 5):
        client.push(q, str(priority), priority=priority)
    assert drain(client, q) == ["9", "5", "2", "0"]


def test_equal_priorities(client: QueueClient, q: str) -> None:
    """Messages of one priority are received in the order of their pushes; none means 0."""
    client.push_many(q, [Draft("a"), Draft("b", priority=3), Draft("c", priority=0), Draft("d", priority=3)])
    assert take(client, q) == ["b", "d", "a", "c"]


@pytest.mark.parametrize("priority", [-1, 10, 4294967296])
def test_priorities_out_of_range(client: QueueClient, q: str, priority: int) -> None:
    """A priority below 0 or over 9 is refused, and nothing is stored."""
    with pytest.raises((ValueError, BadRequest)):
        client.push(q, "x", priority=priority)
    assert figures(client, q).pushed == 0


@pytest.mark.parametrize("priority", ["urgent", 1.5])
def test_garbage_priority(client: QueueClient, q: str, priority: object) -> None:
    """A priority that is no whole number is refused, and nothing is stored."""
    with pytest.raises((ValueError, TypeError, BadRequest)):
        client.push(q, "x", priority=priority)  # type: ignore[arg-type]
    assert figures(client, q).pushed == 0


def test_small_delay(client: QueueClient, q: str) -> None:
    """A delayed message is not received before its time, and wakes the receive that waits for it."""
    client.push(q, "later", delay=600)
    client.push(q, "delayed", delay=SOON)
    assert awaited(client, q).text == "delayed"
    assert take(client, q) == []


def test_delayed_to_ready(client: QueueClient, q: str) -> None:
    """A message whose delay is over takes the place of its priority."""
    client.push(q, "low")
    low = awaited(client, q)
    client.push(q, "high", delay=SOON, priority=9)
    high = awaited(client, q)
    assert high.text == "high"
    for message in (low, high):
        end_window(client, message)
    assert take(client, q) == ["high", "low"]


def test_negative_delay(client: QueueClient, q: str) -> None:
    """A delay below 0 is refused; one of 0 is none."""
    with pytest.raises(ValueError, match="delay"):
        client.push(q, "x", delay=-1)
    client.push(q, "y", delay=0)
    assert take(client, q) == ["y"]


def test_ttr_ends(client: QueueClient, q: str) -> None:
    """A message that is not deleted within its window is received again, and counts its receives."""
    client.push(q, "x")
    assert awaited(client, q, visibility=SOON).receives == 1
    again = awaited(client, q)
    assert (again.text, again.receives) == ("x", 2)
    assert figures(client, q).expired == 1


def test_ttr_large(client: QueueClient, q: str) -> None:
    """A window of more than 2³¹ ms is kept as it was asked for."""
    client.push(q, "x")
    message = awaited(client, q, visibility=5_000_000)
    assert message.visible_at is not None
    assert message.pushed_at is not None
    assert 0 <= message.visible_at - message.pushed_at - 5_000_000_000_000 < 60_000_000


def test_touch(client: QueueClient, q: str) -> None:
    """An extended window ends later than the one that was asked for, one that is cut short earlier."""
    client.push_many(q, ["touched", "left"])
    touched, left = client.receive(q, max=2, visibility=60)
    assert touched.visible_at is not None
    assert client.extend(touched, visibility=120) >= touched.visible_at + 60_000_000
    client.extend(left, visibility=SOON)
    assert awaited(client, q).text == "left"
    assert take(client, q) == []


def test_touch_of_another_holder(client: QueueClient, q: str) -> None:
    """A holder whose message has been received again since cannot extend, release or delete it."""
    client.push(q, "x")
    old = awaited(client, q)
    end_window(client, old)
    new = awaited(client, q)
    for late in (client.extend, client.release, client.delete):
        with pytest.raises(Stale):
            late(old)
    client.delete(new)


def test_reserve_timeout(client: QueueClient, q: str) -> None:
    """A receive of an empty queue returns nothing, at once or after its wait."""
    assert client.receive(q) == []
    assert client.receive(q, wait=0.01) == []


def test_reserve_with_timeout_of_two_connections(client: QueueClient, other: QueueClient, q: str) -> None:
    """Two receives that wait get one message each."""
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(each.receive, q, 1, PATIENCE) for each in (client, other)]
        with QueueClient(client.host, client.port) as producer:
            producer.push_many(q, ["1", "2"])
        assert sorted(str(each.text) for asked in waiting for each in asked.result()) == ["1", "2"]


def test_reserve_job(client: QueueClient, q: str) -> None:
    """A message can be received by its id, out of its turn."""
    first, second = client.push_many(q, ["a", "b"])
    assert client.get(q, second).text == "b"
    assert client.get(q, first).text == "a"
    assert take(client, q) == []


def test_reserve_job_already_reserved(client: QueueClient, q: str) -> None:
    """A message in flight is not given out by its id either; one that does not exist is not found."""
    mid = client.push(q, "a")
    client.get(q, mid)
    again = client.get(q, mid)
    assert (again.status, again.payload) == ("in-flight", None)
    with pytest.raises(NotFound):
        client.get(q, mid + 1)


def test_watch_multiple(client: QueueClient, q: str) -> None:
    """A receive of several queues takes their messages as if they were one queue's."""
    client.new_queue(f"{q}-2")
    client.push(q, "haskell")
    client.push(q, "rust")
    client.push(f"{q}-2", "python")
    assert take(client, f"{q}-2", q) == ["haskell", "rust", "python"]


def test_multi_tube(client: QueueClient, q: str) -> None:
    """The highest priority is first over several queues; a queue that is not named gives nothing."""
    for name, priority in (("-2", 1), ("-3", 9)):
        client.new_queue(f"{q}{name}")
        client.push(f"{q}{name}", name, priority=priority)
    client.push(q, "-1", priority=5)
    assert take(client, q, f"{q}-2") == ["-1", "-2"]
    assert take(client, f"{q}-3") == ["-3"]


def test_binary_bodies(client: QueueClient, q: str) -> None:
    """Any bytes come back as they were pushed, also none."""
    bodies = [bytes(range(256)), b"", b"\0", b"a\r\nb", "ü".encode("latin-1")]
    client.push_many(q, bodies)
    assert [message.payload for message in client.receive(q, max=10)] == bodies


def test_peek(client: QueueClient, q: str) -> None:
    """A peek shows a message and gives nothing away."""
    mid = client.push(q, "job", priority=4)
    seen = client.peek(q, mid)
    assert (seen.mid, seen.text, seen.priority, seen.receives) == (mid, "job", 4, 0)
    assert take(client, q) == ["job"]


def test_peek_not_found(client: QueueClient, q: str) -> None:
    """A peek at an id that does not exist says so."""
    with pytest.raises(NotFound):
        client.peek(q, 111)


def test_peek_by_state(client: QueueClient, q: str, dead: str) -> None:
    """The ready, delayed, in-flight and rejected messages can be listed, each apart."""
    buried, held, ready = client.push_many(q, ["buried", "held", "ready"])
    delayed = client.push(q, "delayed", delay=60)
    client.get(q, held)
    client.get(q, buried)
    client.reject(q, buried)
    assert list(client.list_messages(q, state="ready")) == [ready]
    assert list(client.list_messages(q, state="delayed")) == [delayed]
    assert list(client.list_messages(q, state="in-flight")) == [held]
    (letter,) = client.peek_many(dead, client.list_messages(dead))
    assert (letter.text, letter.dead_mid) == ("buried", buried)


def test_release(client: QueueClient, q: str) -> None:
    """A released message is received again at once, in the place of its age."""
    client.push_many(q, ["a", "b"])
    first = awaited(client, q)
    client.release(first)
    assert take(client, q) == ["a", "b"]


def test_release_with_delay(client: QueueClient, q: str) -> None:
    """A message that is released with a delay is received again after it."""
    client.push_many(q, ["long", "short"])
    long, short = client.receive(q, max=2)
    client.release(long, delay=600)
    client.release(short, delay=SOON)
    assert awaited(client, q).text == "short"
    assert figures(client, q).delayed == 1


def test_release_keeps_the_priority(client: QueueClient, q: str) -> None:
    """A released message has the priority of its push."""
    client.push_many(q, [Draft("low", priority=1), Draft("high", priority=8)])
    client.release(awaited(client, q))
    assert take(client, q) == ["high", "low"]


def test_release_of_what_nobody_holds(client: QueueClient, q: str) -> None:
    """A message that nobody has received cannot be released."""
    with pytest.raises(Stale):
        client.release(q, client.push(q, "x"))


def test_bury(client: QueueClient, q: str, dead: str) -> None:
    """A rejected message is not received again; it waits in the dead-letter queue with its reason and priority."""
    client.push(q, "bad", priority=7)
    client.reject(awaited(client, q), reason="no such customer")
    assert take(client, q) == []
    letter = awaited(client, dead)
    assert (letter.text, letter.dead_reason, letter.reason, letter.priority) == (
        "bad",
        "rejected",
        "no such customer",
        7,
    )


def test_kick(client: QueueClient, q: str, dead: str) -> None:
    """A redrive moves as many dead letters back as it is told, oldest first, and counts them."""
    client.push_many(q, ["a", "b", "c"])
    for message in client.receive(q, max=3):
        client.reject(message)
    assert len(client.redrive(dead, max=2)) == 2
    assert drain(client, q) == ["a", "b"]
    assert len(client.redrive(dead, max=10)) == 1
    assert client.redrive(dead, max=10) == []


def test_kick_job(client: QueueClient, q: str, dead: str) -> None:
    """A redrive of one dead letter moves that one, and it has never been received."""
    client.push_many(q, ["a", "b"])
    for message in client.receive(q, max=2):
        client.reject(message)
    second = list(client.list_messages(dead))[1]
    client.redrive(dead, [second])
    message = awaited(client, q)
    assert (message.text, message.receives) == ("b", 1)


def test_kick_job_of_a_delayed_message(client: QueueClient, q: str) -> None:
    """A release of a delayed message ends its delay."""
    mid = client.push(q, "x", delay=3600)
    client.release(q, mid)
    assert take(client, q) == ["x"]


def test_stats_tube(client: QueueClient, q: str) -> None:
    """The figures count messages by state, and what was done since the start."""
    mids = client.push_many(q, ["1", "2", "3"])
    client.push(q, "4", delay=60)
    client.get(q, mids[0])
    client.delete(q, mids[1])
    found = figures(client, q)
    assert (found.ready, found.in_flight, found.delayed) == (1, 1, 1)
    assert (found.pushed, found.delivered, found.deleted) == (4, 1, 1)


def test_list_tubes(client: QueueClient, q: str) -> None:
    """All queues can be listed; one that was deleted is not there any more."""
    client.new_queue(f"{q}-2")
    assert {q, f"{q}-2"} <= set(client.queues())
    client.delete_queue(f"{q}-2")
    assert f"{q}-2" not in client.queues()


def test_pause_tube(client: QueueClient, other: QueueClient, q: str) -> None:
    """A paused queue gives nothing out; the end of the pause wakes a receive that waits."""
    client.push(q, "x")
    client.pause(q)
    assert take(client, q) == []
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.receive, q, 1, PATIENCE)
        client.resume(q)
        assert texts(waiting.result()) == ["x"]


def test_delete_states(client: QueueClient, q: str) -> None:
    """A ready, a delayed and a message in flight can be deleted by their ids; a second delete does not find them."""
    mids = [client.push(q, "held"), client.push(q, "ready"), client.push(q, "delayed", delay=60)]
    client.get(q, mids[0])
    for mid in mids:
        client.delete(q, mid)
        with pytest.raises(NotFound):
            client.delete(q, mid)


def test_close_releases(client: QueueClient, other: QueueClient, q: str) -> None:
    """Others receive what a subscriber holds as soon as its connection ends."""
    client.push_many(q, ["a", "b"])
    deliveries = other.subscribe(q, prefetch=2)
    assert next(deliveries).text == "a"
    assert take(client, q) == []
    other.disconnect()
    assert awaited(client, q).text in {"a", "b"}


def test_a_restart_keeps_all(server: ServerProcess) -> None:
    """Priorities, delays, dead letters and receives are what they were after a restart of the server."""
    with QueueClient(server.host, server.port) as client:
        client.new_queue("dead")
        client.new_queue("q", dead_letter="dead", max_receives=9)
        client.push_many("q", [Draft("bad", priority=9), Draft("low", priority=1), Draft("high", priority=3)])
        client.push("q", "delayed", delay=600, priority=9)
        client.reject(awaited(client, "q"))
        client.release(awaited(client, "q"))
    assert server.stop() == 0
    server.start()
    with QueueClient(server.host, server.port) as client:
        assert [(m.text, m.receives) for m in client.receive("q", max=9)] == [("high", 2), ("low", 1)]
        assert figures(client, "q").delayed == 1
        letter = awaited(client, "dead")
        assert (letter.text, letter.priority) == ("bad", 9)
