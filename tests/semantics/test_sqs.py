"""Keeps what the tests of SQS hold: those of the mock server moto, and its documentation. Attributes are headers here,
a message group is a group, a deduplication id is a key, changing the visibility is extend."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients.semantics import PATIENCE, SOON, awaited, drain, end_window, figures, take, texts
from support.servers.processes import ServerProcess

from qs_client import BadRequest, Conflict, Draft, NotFound, QueueClient, Stale


def group(name: str, *payloads: str, **options: object) -> list[Draft]:
    return [Draft(payload, group=name, **options) for payload in payloads]  # type: ignore[arg-type]


# -- queues -----------------------------------------------------------------------------------------------------------


def test_create_queue_with_the_same_options(client: QueueClient, q: str) -> None:
    """Making a queue again with the options that it has is no error; with others it is a conflict."""
    client.set_queue(q, visibility=7)
    assert client.new_queue(q, exist_ok=True, visibility=7) is False
    with pytest.raises(Conflict):
        client.new_queue(q, exist_ok=True, visibility=8)


def test_set_and_get_options(client: QueueClient, q: str) -> None:
    """Options can be set, read and removed, also those of order and pace."""
    client.set_queue(q, visibility=5, group_in_flight=2, max_in_flight=3, rate=0.5, fair=True)
    found = client.queue_options(q)
    assert (found.visibility, found.group_in_flight, found.max_in_flight) == (5, 2, 3)
    assert (found.rate, found.fair) == (0.5, True)


def test_counts(client: QueueClient, q: str) -> None:
    """The numbers of visible, hidden and delayed messages are exact."""
    client.push_many(q, ["1", "2", "3"])
    client.push(q, "4", delay=600)
    awaited(client, q)
    found = figures(client, q)
    assert (found.ready, found.in_flight, found.delayed) == (2, 1, 1)


def test_queue_visibility(client: QueueClient, q: str) -> None:
    """A receive that names no visibility has the queue's own."""
    client.set_queue(q, visibility=SOON)
    client.push(q, "x")
    assert [awaited(client, q).receives for _ in range(3)] == [1, 2, 3]


# -- attributes -------------------------------------------------------------------------------------------------------


def test_message_attributes(client: QueueClient, q: str) -> None:
    """Attributes come back with the message, with values of any text."""
    attributes = {"city": "Zürich", "xml": '<a b="c">&\'</a>', "lines": "a\r\nb\tc", "spaces": "  x  ", "n": "12.5"}
    client.push(q, "x", headers=attributes)
    message = awaited(client, q)
    assert dict(message.headers) == attributes
    assert message.text == "x"


@pytest.mark.parametrize("name", ["", "a b", "é", "a/b", "n" * 65, "qs-own", "QS-own"])
def test_wrong_attribute_names(client: QueueClient, q: str, name: str) -> None:
    """A name that is empty, too long, reserved or of other characters is refused, and nothing is stored."""
    with pytest.raises((ValueError, BadRequest)):
        client.push(q, "x", headers={name: "v"})
    assert figures(client, q).pushed == 0


def test_attribute_names_of_all_characters(client: QueueClient, q: str) -> None:
    """A name may have 64 characters, of letters, digits, dots, hyphens and underscores."""
    names = ["n" * 64, "AZaz09._-", "-", "."]
    client.push(q, "x", headers=dict.fromkeys(names, "v"))
    assert list(awaited(client, q).headers) == names


def test_attribute_names_are_unique(client: QueueClient, q: str) -> None:
    """Two names that differ in case alone are refused."""
    with pytest.raises((ValueError, BadRequest)):
        client.push(q, "x", headers={"Name": "1", "name": "2"})
    assert figures(client, q).pushed == 0


def test_number_of_attributes(client: QueueClient, q: str) -> None:
    """A message may have 32 attributes, and no more."""
    client.push(q, "x", headers={f"n{n}": "v" for n in range(32)})
    with pytest.raises((ValueError, BadRequest)):
        client.push(q, "y", headers={f"n{n}": "v" for n in range(33)})
    assert len(awaited(client, q).headers) == 32
    assert figures(client, q).pushed == 1


def test_size_of_attributes(client: QueueClient, q: str) -> None:
    """Names and values may have 8 KiB together, in bytes of UTF-8, and no more."""
    client.push(q, "x", headers={"name": "é" * 4094})
    with pytest.raises((ValueError, BadRequest)):
        client.push(q, "y", headers={"name": "é" * 4094 + "x"})
    assert awaited(client, q).headers["name"] == "é" * 4094


def test_attributes_count_as_bytes(client: QueueClient, q: str) -> None:
    """The bytes of a queue are those of its payloads and of its attributes, until the messages are deleted."""
    client.push(q, "12345")
    assert figures(client, q).bytes == 5
    client.push(q, "12345", headers={"name": "x" * 100})
    found = figures(client, q).bytes
    assert found is not None
    assert 5 + 109 <= found <= 5 + 109 + 50
    drain(client, q)
    assert figures(client, q).bytes == 0


# -- receiving --------------------------------------------------------------------------------------------------------


def test_a_batch_receives_up_to_its_maximum(client: QueueClient, q: str) -> None:
    """A receive gets up to 1000 messages; one of none is refused."""
    client.push_many(q, map(str, range(1001)))
    assert len(take(client, q, count=1001)) == 1000
    with pytest.raises(ValueError, match="max"):
        client.receive(q, max=0)


def test_receive_count(client: QueueClient, q: str) -> None:
    """Each receive counts, a peek does not."""
    mid = client.push(q, "x")
    for receives in (1, 2, 3):
        message = awaited(client, q)
        assert message.receives == receives
        assert client.peek(q, mid).receives == receives
        end_window(client, message)


def test_change_visibility_to_nothing(client: QueueClient, q: str) -> None:
    """A message whose visibility is set to 0 is received again at once, in the place of its age."""
    client.push_many(q, ["a", "b"])
    end_window(client, awaited(client, q))
    assert take(client, q) == ["a", "b"]


def test_delete_after_the_visibility(client: QueueClient, q: str) -> None:
    """A holder whose window is over can still delete its message, as long as nobody has received it since."""
    client.push_many(q, ["kept", "taken"])
    kept, taken = client.receive(q, max=2)
    for message in (kept, taken):
        end_window(client, message)
    client.delete(kept)
    awaited(client, q)
    with pytest.raises(Stale):
        client.delete(taken)


def test_long_poll_over_queues(client: QueueClient, other: QueueClient, q: str) -> None:
    """A receive that waits for several queues returns with the first message of any."""
    client.new_queue(f"{q}-2")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.receive, [q, f"{q}-2"], 1, PATIENCE)
        client.push(f"{q}-2", "x")
        assert texts(waiting.result()) == ["x"]


def test_long_poll_sees_a_delay_end(client: QueueClient, q: str) -> None:
    """A receive that waits gets a message when its delay is over."""
    client.push(q, "x", delay=SOON)
    assert awaited(client, q).text == "x"


def test_queues_in_the_order_given(client: QueueClient, q: str) -> None:
    """A receive may empty the first queue before it looks at the second."""
    client.new_queue(f"{q}-2")
    client.push(f"{q}-2", "older", priority=9)
    client.push_many(q, ["first", "second"])
    assert texts(client.receive([q, f"{q}-2"], max=9, order="given")) == ["first", "second", "older"]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_partial_failure(client: QueueClient, q: str) -> None:
    """Each call of a pipeline fails for itself; the others are done."""
    with client.pipeline() as batch:
        good = batch.push(q, "good")
        bad = batch.push(f"{q}-none", "bad")
        after = batch.push(q, "after")
        with pytest.raises(NotFound):
            bad.result()
    assert take(client, q) == ["good", "after"]
    assert good.result() < after.result()


def test_a_list_fails_as_a_whole(client: QueueClient, q: str) -> None:
    """A list with one wrong message stores none of them."""
    with pytest.raises((ValueError, BadRequest)):
        client.push_many(q, [Draft("good"), Draft("bad", headers={"a b": "c"})])
    assert figures(client, q).pushed == 0


# -- first in, first out within groups --------------------------------------------------------------------------------


def test_order_within_a_group(client: QueueClient, q: str) -> None:
    """The messages of a group are received one after the other, in the order of their pushes."""
    client.push_many(q, [each for n in range(4) for each in (*group("a", f"a{n}"), *group("b", f"b{n}"))])
    found = drain(client, q)
    assert [text for text in found if str(text)[0] == "a"] == ["a0", "a1", "a2", "a3"]
    assert [text for text in found if str(text)[0] == "b"] == ["b0", "b1", "b2", "b3"]


def test_a_group_blocks_itself_only(client: QueueClient, q: str) -> None:
    """While a message of a group is in flight, no other one of it is received; other groups and loose ones are."""
    client.push_many(q, [*group("a", "a1", "a2"), *group("b", "b1"), Draft("free")])
    held = awaited(client, q)
    assert take(client, q) == ["b1", "free"]
    assert figures(client, q).limited == "group-in-flight"
    client.delete(held)
    assert take(client, q) == ["a2"]


def test_a_waiting_receive_gets_the_next_of_a_group(client: QueueClient, other: QueueClient, q: str) -> None:
    """The delete of a group's message wakes a receive that waits for the next one."""
    client.push_many(q, group("a", "1", "2"))
    held = awaited(client, q)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.receive, q, 1, PATIENCE)
        client.delete(held)
        assert texts(waiting.result()) == ["2"]


def test_a_group_after_a_window(client: QueueClient, q: str) -> None:
    """A message of a group whose window ends comes again before the younger ones of its group."""
    client.push_many(q, group("a", "1", "2"))
    awaited(client, q, visibility=SOON)
    again = awaited(client, q)
    assert (again.text, again.receives) == ("1", 2)


def test_a_released_message_blocks_its_group(client: QueueClient, q: str) -> None:
    """A message of a group that was given back with a delay is not overtaken meanwhile."""
    client.push_many(q, [*group("a", "1", "2"), *group("b", "b")])
    client.release(awaited(client, q), delay=600)
    assert take(client, q) == ["b"]


def test_a_released_message_is_the_next_of_its_group(client: QueueClient, q: str) -> None:
    """A message of a group that was given back at once is received before the younger ones."""
    client.push_many(q, group("a", "1", "2"))
    client.release(awaited(client, q))
    assert drain(client, q) == ["1", "2"]


def test_a_group_goes_on_after_a_dead_letter(client: QueueClient, q: str, dead: str) -> None:
    """A message of a group that becomes a dead letter lets the next one through, and keeps its group."""
    client.push_many(q, group("a", "bad", "good"))
    client.reject(awaited(client, q))
    assert take(client, q) == ["good"]
    assert awaited(client, dead).group == "a"


def test_a_delayed_push_and_its_group(client: QueueClient, q: str) -> None:
    """A message of a group that was pushed with a delay is not overtaken by the younger ones of its group."""
    client.push(q, "1", delay=SOON, group="a")
    client.push(q, "2", group="a")
    client.push(q, "other", delay=600, group="b")
    for expected in "12":
        message = awaited(client, q)
        assert message.text == expected
        client.delete(message)
    assert take(client, q) == []


def test_several_of_a_group(client: QueueClient, q: str) -> None:
    """A queue may let several messages of a group be out at a time."""
    client.set_queue(q, group_in_flight=2)
    client.push_many(q, group("a", "1", "2", "3"))
    held = client.receive(q, max=9)
    assert texts(held) == ["1", "2"]
    client.delete(held[1])
    assert take(client, q) == ["3"]


def test_priorities_within_a_group(client: QueueClient, q: str) -> None:
    """A priority does not change the order within a group; its next message gives the group its place."""
    client.push_many(q, [*group("a", "a1"), *group("a", "a2", priority=9), Draft("free", priority=5)])
    assert drain(client, q) == ["free", "a1", "a2"]


def test_no_group_is_no_group(client: QueueClient, q: str) -> None:
    """Messages without a group do not wait for each other."""
    client.push_many(q, ["1", "2", "3"])
    assert take(client, q) == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["", "g" * 129])
def test_wrong_group_names(client: QueueClient, q: str, name: str) -> None:
    """A group's name has 1 to 128 characters."""
    with pytest.raises((ValueError, BadRequest)):
        client.push(q, "x", group=name)
    assert figures(client, q).pushed == 0


def test_groups_of_queues_are_apart(client: QueueClient, q: str) -> None:
    """A group of one queue does not block the one of the same name in another."""
    client.new_queue(f"{q}-2")
    client.push_many(q, group("a", "1"))
    client.push_many(f"{q}-2", group("a", "2"))
    awaited(client, q)
    assert take(client, f"{q}-2") == ["2"]


def test_groups_over_a_restart(server: ServerProcess) -> None:
    """A group whose message is in flight is blocked after a restart of the server too."""
    with QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.push_many("q", group("a", "1", "2"))
        held = awaited(client, "q", visibility=600)
    assert server.stop() == 0
    server.start()
    with QueueClient(server.host, server.port) as client:
        assert take(client, "q") == []
        client.delete(held)
        assert take(client, "q") == ["2"]


# -- deduplication ----------------------------------------------------------------------------------------------------


def test_deduplication_id(client: QueueClient, q: str) -> None:
    """A push with the key of an earlier one stores nothing and returns its id, also after that was deleted."""
    mid = client.push(q, "a", key="k")
    assert client.push(q, "b", key="k") == mid
    assert drain(client, q) == ["a"]
    assert client.push(q, "c", key="k") == mid
    assert take(client, q) == []


def test_deduplication_is_for_each_queue(client: QueueClient, q: str) -> None:
    """A key counts in its own queue: there is another message of it in each queue."""
    client.new_queue(f"{q}-2")
    client.push(q, "1", key="k")
    client.push(f"{q}-2", "2", key="k")
    client.push(q, "3", key="l")
    assert take(client, q, f"{q}-2") == ["1", "2", "3"]


def test_deduplication_within_a_list(client: QueueClient, q: str) -> None:
    """A key that comes twice in a list is one message."""
    first, second = client.push_many(q, [Draft("1", key="k"), Draft("2", key="k")])
    assert first == second
    assert take(client, q) == ["1"]


def test_deduplication_and_groups(client: QueueClient, q: str) -> None:
    """A push that is not stored again does not stand in its group either."""
    client.push(q, "1", key="k", group="a")
    client.push(q, "1", key="k", group="a")
    client.push(q, "2", group="a")
    assert drain(client, q) == ["1", "2"]


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_too_many_receives(client: QueueClient, q: str, dead: str) -> None:
    """A message that was received too often in vain is a dead letter with its attributes; the others stay."""
    client.set_queue(q, max_receives=2)
    client.push(q, "bad", headers={"k": "v"})
    for _ in range(2):
        client.release(awaited(client, q))
    client.push(q, "good")
    assert take(client, q) == ["good"]
    letter = awaited(client, dead)
    assert (letter.text, letter.dead_reason, letter.dead_receives, dict(letter.headers)) == (
        "bad",
        "receives",
        2,
        {"k": "v"},
    )


def test_windows_that_end_count(client: QueueClient, q: str, dead: str) -> None:
    """A message whose window ended too often is a dead letter too."""
    client.set_queue(q, max_receives=1)
    client.push(q, "bad")
    awaited(client, q, visibility=SOON)
    assert awaited(client, dead).text == "bad"


def test_redrive(client: QueueClient, q: str, dead: str) -> None:
    """A dead letter that is moved back is a new message of its queue, with its attributes, and no longer dead."""
    client.push(q, "x", headers={"k": "v"}, group="a", priority=3)
    client.reject(awaited(client, q))
    client.redrive(dead)
    message = awaited(client, q)
    assert (message.text, message.receives, message.dead_from) == ("x", 1, None)
    assert (dict(message.headers), message.group, message.priority) == ({"k": "v"}, "a", 3)
    assert figures(client, dead).ready == 0


def test_redrive_to_another_queue(client: QueueClient, q: str, dead: str) -> None:
    """Dead letters can be moved to another queue than their own; to one that is not there none is moved."""
    client.new_queue(f"{q}-2")
    client.push(q, "x")
    client.reject(awaited(client, q))
    with pytest.raises(NotFound):
        client.redrive(dead, to=f"{q}-none")
    client.redrive(dead, to=f"{q}-2")
    assert take(client, f"{q}-2") == ["x"]


# -- the time of a message --------------------------------------------------------------------------------------------


def test_delay_of_each_message(client: QueueClient, q: str) -> None:
    """Each message has a delay of its own; it may be longer than 15 minutes."""
    client.push(q, "day", delay=86_400)
    client.push(q, "soon", delay=SOON)
    client.push(q, "now")
    assert [awaited(client, q).text for _ in range(2)] == ["now", "soon"]
    assert figures(client, q).delayed == 1


def test_expiry(client: QueueClient, q: str) -> None:
    """A message that has expired is not received any more, and counts as retired; the others stay."""
    client.pause(q)
    client.push_many(q, [Draft("gone", expires=0.001), Draft("stays", expires=600)])
    client.new_queue(f"{q}-2")
    client.push(f"{q}-2", "timer", delay=SOON)
    awaited(client, f"{q}-2")
    client.resume(q)
    assert take(client, q) == ["stays"]
    assert figures(client, q).retired == 1


def test_retention(client: QueueClient, q: str) -> None:
    """A message that is older than the queue keeps messages is removed."""
    client.set_queue(q, retention=SOON)
    client.push(q, "gone")
    client.new_queue(f"{q}-2")
    client.push(f"{q}-2", "timer", delay=3 * SOON)
    awaited(client, f"{q}-2")
    assert take(client, q) == []
    assert figures(client, q).retired == 1


def test_expiry_of_a_dead_letter(client: QueueClient, q: str, dead: str) -> None:
    """A dead letter does not expire any more."""
    client.push(q, "x", expires=60)
    message = awaited(client, q)
    assert message.expires_at is not None
    client.reject(message)
    assert awaited(client, dead).expires_at is None


# -- pace -------------------------------------------------------------------------------------------------------------


def test_messages_in_flight_are_bounded(client: QueueClient, other: QueueClient, q: str) -> None:
    """A queue gives out no more than its bound, says so, and goes on when a message is deleted."""
    client.set_queue(q, max_in_flight=2)
    client.push_many(q, ["1", "2", "3"])
    held = client.receive(q, max=9)
    assert texts(held) == ["1", "2"]
    assert figures(client, q).limited == "max-in-flight"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(other.receive, q, 1, PATIENCE)
        client.delete(held[1])
        assert texts(waiting.result()) == ["3"]


def test_a_rate(client: QueueClient, q: str) -> None:
    """A queue with a rate gives out a second's worth at once, then nothing before its time, and says so."""
    client.set_queue(q, rate=0.01)
    client.push_many(q, ["1", "2"])
    assert take(client, q) == ["1"]
    assert take(client, q) == []
    assert figures(client, q).limited == "rate"
    client.set_queue(q, rate=None)
    assert take(client, q) == ["2"]
