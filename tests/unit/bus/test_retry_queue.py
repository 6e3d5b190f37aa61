"""Requests of the bus for the queue server: their order, their batches, and what becomes of those that fail."""

import contextlib
import logging
from collections.abc import Callable

import pytest
import trio
import trio.testing
from support.bus.memory import FakeHub, FakeServer

from qs_bus.retry_queue import RetryQueue, ServerCalls, Steps
from qs_client import Error, Message, ServerUnavailable
from qs_client.asking import ask
from qs_client.place import Place
from qs_schemas import DeleteMessage
from qs_serving.timers import Timers

settled = trio.testing.wait_all_tasks_blocked
NO_QUEUE = Error(code=404, kind="not-found", text="there is no queue 'a'")


class World:
    """A retry queue that deletes messages, at most three in a request. done: the batches that were done, in order."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        timers = Timers()
        nursery.start_soon(timers.serve)
        self._calls = ServerCalls(FakeHub(), Place("server:1"))  # type: ignore[arg-type]
        self.requests: RetryQueue[str, int] = RetryQueue("deleting messages", self._delete, self._calls, timers, most=3)
        self.server = FakeServer()
        self.done: list[tuple[str, list[int]]] = []

    def _delete(self, key: str, mids: list[int]) -> Steps:
        yield from ask(DeleteMessage(key, mids=list(mids)))
        self.done.append((key, mids))

    async def work(self) -> None:
        """Works until the connection ends."""
        self.server.closed = trio.Event()
        with self._calls.use(self.server, lambda message: None):  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._calls.serve)
                with contextlib.suppress(ServerUnavailable):
                    await self.server.broken()
                nursery.cancel_scope.cancel()

    async def connect(self) -> None:
        self._nursery.start_soon(self.work)
        await settled()

    @property
    def asked(self) -> list[list[int]]:
        return [request.mids for request in self.server.asked if isinstance(request, DeleteMessage)]  # type: ignore[misc]


@pytest.fixture
def world(nursery: trio.Nursery) -> World:
    return World(nursery)


def failing(*errors: Error) -> Callable[[Message], Message]:
    """Answers the first requests with these errors."""
    left = list(errors)
    return lambda request: left.pop(0) if left else request


async def test_add_makes_batches_in_order(world: World) -> None:
    """Things are done in the order in which they came, so many at a time, and what is of one key together."""
    for number in range(7):
        world.requests.add("a", number)
    world.requests.add("b", 10)
    await world.connect()
    assert [mids for key, mids in world.done if key == "a"] == [[0, 1, 2], [3, 4, 5], [6]]
    assert ("b", [10]) in world.done
    assert world.requests.is_empty


async def test_add_before_an_answer_waits_for_it(world: World) -> None:
    """Items that come while a batch is under way are sent together when that is done; other keys do not wait."""
    world.server.answers = lambda request: None if getattr(request, "qid", "") == "a" else request
    await world.connect()
    for number in range(2):
        world.requests.add("a", number)
        await settled()
    world.requests.add("a", 2)
    world.requests.add("b", 10)
    await settled()
    assert world.asked == [[0], [10]]
    assert not world.requests.is_empty


async def test_add_during_one_read_is_one_request(world: World) -> None:
    """All that is added because of one read is sent together at its end, without another pass of the loop."""
    await world.connect()

    def read() -> int:
        for number in range(3):
            world.requests.add("a", number)
        return 1

    world.server.read = read  # type: ignore[method-assign]
    world._calls.ready()
    assert world.asked == [[0, 1, 2]]


async def test_add_at_once_begins_several(nursery: trio.Nursery, world: World) -> None:
    """Where that is allowed, several batches of a key are under way."""
    world.server.answers = lambda request: None
    world.requests._at_once = 2
    await world.connect()
    for number in range(9):
        world.requests.add("a", number)
    await settled()
    assert world.asked == [[0, 1, 2], [3, 4, 5]]
    world.server.close()
    await settled()
    world.server.answers = lambda request: request
    await world.connect()
    await world.requests.emptied()
    assert [mid for _, mids in world.done for mid in mids] == list(range(9))


async def test_refused_batch_is_sent_again(
    world: World, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused request is sent again a second later, before the later ones, and the log says so once; other keys do
    not wait for it."""
    world.server.answers = failing(NO_QUEUE, Error(503, "unavailable", "the database is away"))
    for number in range(5):
        world.requests.add("a", number)
    began = trio.current_time()
    with caplog.at_level(logging.WARNING):
        await world.connect()
        await world.requests.emptied()
    assert trio.current_time() - began == pytest.approx(2)
    assert [mid for _, mids in world.done for mid in mids] == list(range(5))
    texts = [record.message for record in caplog.records]
    assert len(texts) == 2
    assert "deleting messages failed; the bus keeps trying: 404" in texts[0]
    assert texts[1] == "deleting messages works again"


async def test_lost_connection_keeps_the_order(world: World) -> None:
    """Requests under way when the connection ends keep their place, and are done on the next one."""
    world.server.answers = lambda request: None
    for number in range(4):
        world.requests.add("a", number)
    await world.connect()
    assert world.asked == [[0, 1, 2]]
    world.server.close()
    await settled()
    world.requests.add("a", 4)
    world.server.answers = lambda request: request
    await world.connect()
    assert [mid for _, mids in world.done for mid in mids] == list(range(5))


async def test_discard_leaves_what_is_under_way(world: World) -> None:
    """Discarded items are not sent any more. Items under way cannot be discarded."""
    world.server.answers = lambda request: None
    await world.connect()
    world.requests.add("a", 0)
    await settled()
    world.requests.add("a", 1)
    assert world.requests.discard("a") == [1]
    assert not world.requests.is_empty
    world.server.close()
    await settled()
    world.server.answers = lambda request: request
    await world.connect()
    assert world.done == [("a", [0])]


async def test_emptied_waits_for_the_last(world: World, nursery: trio.Nursery) -> None:
    """`emptied` ends when the last item is done, not when it is begun; at once when there is none."""
    await world.requests.emptied()
    world.server.answers = lambda request: None
    await world.connect()
    world.requests.add("a", 1)
    await settled()
    with trio.move_on_after(0) as waited:
        await world.requests.emptied()
    assert waited.cancelled_caught
    world.server.close()
    await settled()
    world.server.answers = lambda request: request
    await world.connect()
    await world.requests.emptied()
