"""`receive-message` with wait: which receives wait, what wakes them, and in which order. Time is a parameter."""

import os
import re
from functools import partial

import pytest
import trio
import trio.testing
from support.clients.documents import (
    PING,
    code,
    delete,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    req,
    request,
)
from support.servers.memory import EPOCH, Client, Clock, Serving

from qs_server.broker.jobs import Job, Pause, Waiters

SECOND = 1_000_000


async def waiting(running: Serving, *qids: str, **attributes: str | int | float) -> Client:
    """A client whose receive waits."""
    client = running.connect()
    await client.send(receive(*(qids or ("q",)), **{"wait": 3600, **attributes}))  # type: ignore[arg-type]
    assert await client.nothing_yet()
    return client


async def test_push_wakes_waiting_receive(running: Serving, autojump_clock: Clock) -> None:
    """A receive that waits is answered by a push of another connection, at once."""
    consumer, producer = await waiting(running), running.connect()
    began = trio.current_time()
    pushed = await producer.ask(push("q", "hello"))
    answer = await consumer.line()
    assert (payloads(answer), mids(answer)) == (["hello"], mids(pushed))
    assert trio.current_time() == began


async def test_release_wakes_waiting_receive(running: Serving, autojump_clock: Clock) -> None:
    """A released message goes to the waiting receive, with its count of receives."""
    holder = running.connect()
    mid = mids(await holder.ask(push("q", "again")))[0]
    await holder.ask(receive("q"))
    consumer = await waiting(running)
    await holder.ask(request("release-message", f"<qid>q</qid><mid>{mid}</mid>"))
    assert 'receives="2"' in await consumer.line()


async def test_window_end_wakes_waiting_receive(running: Serving, autojump_clock: Clock) -> None:
    """A message whose visibility window ends goes to the waiting receive, at that time and not later."""
    holder = running.connect()
    await holder.ask(push("q", "lost"))
    await holder.ask(receive("q", visibility=12.5))
    began = trio.current_time()
    consumer = await waiting(running)
    assert payloads(await consumer.line()) == ["lost"]
    assert trio.current_time() - began == pytest.approx(12.5, abs=0.01)


async def test_delay_end_wakes_waiting_receive(running: Serving, autojump_clock: Clock) -> None:
    """A message pushed with a delay goes to the waiting receive when the delay is over."""
    began = trio.current_time()
    consumer = await waiting(running)
    await running.connect().ask(push("q", "later", delay=7))
    assert payloads(await consumer.line()) == ["later"]
    assert trio.current_time() - began == pytest.approx(7, abs=0.01)


async def test_extend_wakes_nobody_early(running: Serving, autojump_clock: Clock) -> None:
    """Extending a window moves the time at which the waiting receive gets the message."""
    holder = running.connect()
    mid = mids(await holder.ask(push("q", "x")))[0]
    await holder.ask(receive("q", visibility=5))
    began = trio.current_time()
    await holder.ask(request("extend-message", f"<qid>q</qid><mid>{mid}</mid>", visibility=20))
    consumer = await waiting(running)
    assert mids(await consumer.line()) == [mid]
    assert trio.current_time() - began == pytest.approx(20, abs=0.01)


async def test_file_of_other_program_wakes_waiting_receive(running: Serving, autojump_clock: Clock) -> None:
    """A file that another program renames into the queue's directory goes to the waiting receive."""
    consumer = await waiting(running)
    directory = running.root / "q"
    (directory / f"{EPOCH}.new").write_text("by hand")
    os.rename(directory / f"{EPOCH}.new", directory / str(EPOCH))
    answer = await consumer.line()
    assert (payloads(answer), mids(answer)) == (["by hand"], [EPOCH])


async def test_wait_ends_with_empty_answer(running: Serving, autojump_clock: Clock) -> None:
    """When nothing comes the answer is an empty list, once the time asked for has passed."""
    client = running.connect()
    began = trio.current_time()
    answer = await client.ask(receive("q", wait=2.5))
    assert "<messages></messages>" in answer or "<messages/>" in answer
    assert trio.current_time() - began == pytest.approx(2.5, abs=0.01)
    assert "<ping/>" in await client.ask(PING)


async def test_receive_without_wait_answers_at_once(running: Serving, autojump_clock: Clock) -> None:
    """A receive with wait="0", like one without wait, is answered at once."""
    client = running.connect()
    began = trio.current_time()
    for attributes in ({}, {"wait": 0}):
        assert mids(await client.ask(receive("q", **attributes))) == []
    assert trio.current_time() == began


async def test_waiting_receives_are_woken_in_order(running: Serving, autojump_clock: Clock) -> None:
    """Messages go to waiting receives in the order in which these began to wait, one each."""
    consumers = [await waiting(running) for _ in range(5)]
    producer = running.connect()
    for number, consumer in enumerate(consumers):
        await producer.ask(push("q", str(number)))
        assert payloads(await consumer.line()) == [str(number)]


async def test_list_push_wakes_several_receives(running: Serving, autojump_clock: Clock) -> None:
    """The messages of a list go to as many waiting receives, the oldest first."""
    consumers = [await waiting(running) for _ in range(4)]
    await running.connect().ask(push_list("q", "a", "b", "c"))
    answers = [payloads(await consumer.line()) for consumer in consumers[:3]]
    assert sorted(answers) == [["a"], ["b"], ["c"]]  # woken at the same moment, they run in any order
    assert await consumers[3].nothing_yet()


def test_woken_receive_without_message_keeps_its_place() -> None:
    """A receive that was woken and found another one faster keeps its place."""
    waiters, woken = Waiters(), list[Job]()
    first, second = (Job(), Pause(("q", "other"))), (Job(), Pause(("q",)))
    waiters.add(*first)
    waiters.add(*second)
    for _ in range(2):
        waiters.wake("q", 1)
        assert waiters.listen(first[0], pytest.fail)
        assert not waiters.listen(second[0], lambda: woken.append(second[0]))
        waiters.resume(first[0])
        waiters.add(*first)
    waiters.leave(first[0])
    waiters.wake("q", 1)
    assert woken == [second[0]]


def test_woken_waiter_that_leaves_wakes_next() -> None:
    """A waiter that goes after it was woken passes that on, in every queue it waited for; else nobody is woken."""
    waiters = Waiters()
    leaver, one, other = Job(), Job(), Job()
    waiters.add(leaver, Pause(("q", "other")))
    waiters.add(one, Pause(("q",)))
    waiters.add(other, Pause(("other",)))
    waiters.wake("q", 1)
    waiters.leave(leaver)
    assert waiters.listen(one, pytest.fail)
    assert waiters.listen(other, pytest.fail)
    waiters.leave(one)
    waiters.leave(other)
    waiters.wake("q", 5)  # nobody is left


async def test_closed_connection_takes_no_message(running: Serving, autojump_clock: Clock) -> None:
    """A waiting client that closes its connection takes no message with it: the next in line gets it."""
    first, second = await waiting(running), await waiting(running)
    await first.hang_up()
    await trio.testing.wait_all_tasks_blocked()
    await running.connect().ask(push("q", "for the second"))
    answer = await second.line()
    assert payloads(answer) == ["for the second"]
    assert 'receives="1"' in answer


async def test_connection_closed_as_push_comes_takes_no_message(running: Serving, autojump_clock: Clock) -> None:
    """A client that was woken, and leaves while its message is on the way, passes it on."""
    first, second = await waiting(running), await waiting(running)
    producer = running.connect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(producer.ask, push("q", "m"))
        nursery.start_soon(first.hang_up)
    answer = await second.line()
    assert payloads(answer) == ["m"]
    assert 'receives="1"' in answer


async def test_receive_waits_for_several_queues(running: Serving, autojump_clock: Clock) -> None:
    """A receive that waits for several queues gets the message of any of them, once, and leaves the lines of the
    others."""
    both, only = await waiting(running, "q", "other"), await waiting(running, "q")
    producer = running.connect()
    await producer.ask(push("other", "1"))
    assert payloads(await both.line()) == ["1"]
    await producer.ask(push("q", "2"))
    assert payloads(await only.line()) == ["2"]


async def test_two_receives_wait_for_same_queues(running: Serving, autojump_clock: Clock) -> None:
    """Messages that come into two queues at the same moment go to two who wait for both."""
    first, second = await waiting(running, "q", "other"), await waiting(running, "other", "q")
    await running.connect().ask(push("q", "1"), push("other", "2"))
    assert sorted([payloads(await client.line()) for client in (first, second)]) == [["1"], ["2"]]


async def test_a_receive_that_takes_from_another_queue(running: Serving, autojump_clock: Clock) -> None:
    """A receive that was woken for a message of one queue, and takes that of another, leaves its message to the next
    one in line."""
    producer, names = running.connect(), [f"queue{number}" for number in range(20)]
    await producer.ask(*map(new_queue, names))
    first = await waiting(running, *names)
    others = [await waiting(running, name) for name in names]
    began = trio.current_time()
    await producer.send("".join(push(name, name) for name in names))  # one batch, which wakes in any order
    taken = payloads(await first.line())
    for name, consumer in zip(names, others, strict=True):
        if name not in taken:
            assert payloads(await consumer.line()) == [name]
    assert trio.current_time() == began


async def test_receive_of_queue_named_twice(running: Serving, autojump_clock: Clock) -> None:
    """A queue that a request names twice is one queue."""
    client = await waiting(running, "q", "q", max=5)
    await running.connect().ask(push("q", "once"))
    assert payloads(await client.line()) == ["once"]
    assert payloads(await client.ask(receive("q", "q", max=5))) == []


async def test_receive_goes_on_when_one_queue_is_deleted(running: Serving, autojump_clock: Clock) -> None:
    """When one of the queues that a client waits for is deleted, it gets what comes into the other."""
    both, only = await waiting(running, "q", "other"), await waiting(running, "q")
    producer = running.connect()
    await producer.ask(request("delete-queue", "<qid>other</qid>"), push("q", "1"))
    assert payloads(await both.line()) == ["1"]
    await producer.ask(push("q", "2"))
    assert payloads(await only.line()) == ["2"]


async def test_receive_fails_when_only_queue_is_deleted(running: Serving, autojump_clock: Clock) -> None:
    """A receive whose only queue is deleted fails, at the latest when the wait ends; the connection stays."""
    client = await waiting(running, wait=5)
    await running.connect().ask(request("delete-queue", "<qid>q</qid>"))
    assert code(await client.line()) == 404
    assert "<ping/>" in await client.ask(PING)


async def test_receive_of_missing_queue_is_404_at_once(running: Serving, autojump_clock: Clock) -> None:
    """404 comes at once, with wait or without, also when another queue of the list exists."""
    client = running.connect()
    began = trio.current_time()
    assert code(await client.ask(receive("q", "absent", wait=60))) == 404
    assert trio.current_time() == began


async def test_half_closed_stream_ends_wait(running: Serving, autojump_clock: Clock) -> None:
    """A client that ends its half of the connection gets an empty answer at once, and then the end."""
    client = await waiting(running)
    began = trio.current_time()
    await client.stream.send_eof()
    (answer,) = await client.rest()
    assert (code(answer), mids(answer)) == (0, [])
    assert trio.current_time() == began


async def test_half_closed_stream_answers_requests_behind_wait(running: Serving, autojump_clock: Clock) -> None:
    """Requests behind a waiting receive are answered when the client ends its half."""
    client = running.connect()
    await client.send(receive("q", wait=3600, req="1"), push("q", "x", req="2"), receive("q", wait=3600, req="3"))
    await client.stream.send_eof()
    answers = await client.rest()
    assert [(req(answer), payloads(answer)) for answer in answers] == [("1", []), ("2", []), ("3", ["x"])]


async def test_requests_behind_wait_are_answered_in_order(running: Serving, autojump_clock: Clock) -> None:
    """Requests behind a waiting receive are done and answered after it, in order."""
    client, producer = running.connect(), running.connect()
    requests = [push("other", "1", req="a"), receive("q", wait=50, req="b"), push("other", "2", req="c")]
    await client.send(*requests, request("list-messages", "<qid>other</qid>", req="d"))
    assert req(await client.line()) == "a"
    assert await client.nothing_yet()
    assert len(mids(await producer.ask(request("list-messages", "<qid>other</qid>")))) == 1
    await producer.ask(push("q", "now"))
    answers = await client.lines(3)
    assert [req(answer) for answer in answers] == ["b", "c", "d"]
    assert payloads(answers[0]) == ["now"]
    assert len(mids(answers[2])) == 2


async def test_own_push_behind_wait_does_not_end_it(running: Serving, autojump_clock: Clock) -> None:
    """A push behind a waiting receive on the same connection does not end the wait: requests are applied in order."""
    client = running.connect()
    began = trio.current_time()
    await client.send(receive("q", wait=4), push("q", "behind"))
    assert mids(await client.line()) == []
    assert trio.current_time() - began == pytest.approx(4, abs=0.01)
    assert len(mids(await client.line())) == 1


async def test_waiting_receive_with_own_visibility(running: Serving, autojump_clock: Clock) -> None:
    """Messages for a waiting receive are hidden for the time that its request names, from their receive on."""
    consumer = await waiting(running, visibility=9)
    await trio.sleep(100)
    await running.connect().ask(push("q", "x"))
    found = re.search(r'visible-at="(\d+)"', await consumer.line())
    assert found is not None
    assert int(found[1]) / SECOND == pytest.approx(EPOCH / SECOND + trio.current_time() + 9, abs=0.01)


async def test_thousand_receives_wait(running: Serving, autojump_clock: Clock) -> None:
    """A thousand clients wait for one queue and each gets one message; deleting them leaves it empty."""
    clients = [running.connect() for _ in range(1000)]
    for client in clients:
        await client.send(receive("q", wait=3600))
    await trio.testing.wait_all_tasks_blocked()
    producer = running.connect()
    pushed = mids(await producer.ask(push_list("q", *map(str, range(1000)))))
    got = [mids(await client.line())[0] for client in clients]
    assert sorted(got) == pushed
    await producer.ask(*(delete("q", mid) for mid in got))
    assert mids(await producer.ask(request("list-messages", "<qid>q</qid>", state="all"))) == []


def test_wake_of_several_passes_over_who_gives_up() -> None:
    """Two messages wake two receives, also if the first in line gives up at once."""
    waiters, woken = Waiters(), list[str]()
    works = {name: Job() for name in "abc"}
    for name, work in works.items():
        waiters.add(work, Pause(("q",)))
        waiters.listen(work, (lambda: waiters.leave(works["a"])) if name == "a" else partial(woken.append, name))
    waiters.wake("q", 2)
    assert woken == ["b", "c"]
