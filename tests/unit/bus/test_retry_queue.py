"""Requests of the bus for the queue server: their order, their batches, and what becomes of those that fail."""

import logging

import pytest
import trio
import trio.testing

from qs_bus.retry_queue import RetryQueue
from qs_client import NotFound, ServerUnavailable

Done = list[tuple[str, list[int]]]


class Server:
    """Does what a queue asks, except when it has been told to raise something."""

    def __init__(self) -> None:
        self.done: Done = []
        self.asked: Done = []
        self.fails: list[BaseException] = []

    async def do(self, key: str, things: list[int]) -> None:
        self.asked.append((key, things))
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise self.fails.pop(0)
        self.done.append((key, things))


@pytest.fixture
def requests() -> RetryQueue[str, int]:
    return RetryQueue("deleting messages", 3)


async def test_in_order_and_in_batches(requests: RetryQueue[str, int], nursery: trio.Nursery) -> None:
    """Things are done in the order in which they came, so many at a time, and what is of one key together."""
    server = Server()
    for number in range(7):
        requests.add("a", number)
    requests.add("b", 10)
    nursery.start_soon(requests.serve, server.do)
    await requests.emptied()
    assert [things for key, things in server.done if key == "a"] == [[0, 1, 2], [3, 4, 5], [6]]
    assert server.done.index(("b", [10])) == 1  # many of one key do not keep another waiting


async def test_what_comes_later(requests: RetryQueue[str, int], nursery: trio.Nursery) -> None:
    """Requests that come to an empty queue are sent at once."""
    server = Server()
    nursery.start_soon(requests.serve, server.do)
    await trio.testing.wait_all_tasks_blocked()
    for number in range(2):
        requests.add("a", number)
        await trio.testing.wait_all_tasks_blocked()
    assert server.done == [("a", [0]), ("a", [1])]


async def test_what_the_server_refuses(
    requests: RetryQueue[str, int],
    nursery: trio.Nursery,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refused request is sent again a second later, before the later ones, and the log says so."""
    server = Server()
    server.fails = [NotFound(404, "not-found", "there is no queue 'a'")]
    for number in range(5):
        requests.add("a", number)
    began = trio.current_time()
    with caplog.at_level(logging.WARNING):
        nursery.start_soon(requests.serve, server.do)
        await requests.emptied()
    assert trio.current_time() - began == pytest.approx(1)
    assert [thing for _, things in server.done for thing in things] == list(range(5))
    assert "deleting messages failed; the bus keeps trying" in caplog.text


async def test_a_lost_connection(requests: RetryQueue[str, int], nursery: trio.Nursery) -> None:
    """Requests under way when the connection ends keep their place, and are done on the next one."""
    server = Server()
    server.fails = [ServerUnavailable("gone")]
    for number in range(4):
        requests.add("a", number)
    with pytest.raises(ServerUnavailable):
        await requests.serve(server.do)
    requests.add("a", 4)
    nursery.start_soon(requests.serve, server.do)
    await requests.emptied()
    assert [thing for _, things in server.done for thing in things] == list(range(5))


async def test_cancelled(requests: RetryQueue[str, int], nursery: trio.Nursery) -> None:
    """Requests under way when `serve` is cancelled keep their place too."""
    server = Server()
    requests.add("a", 1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await requests.serve(server.do)
    assert server.done == []
    nursery.start_soon(requests.serve, server.do)
    await requests.emptied()
    assert server.done == [("a", [1])]


async def test_emptied_waits_for_the_last(requests: RetryQueue[str, int], nursery: trio.Nursery) -> None:
    """`emptied` ends when the last item is done, not when it is begun; at once when there is none."""
    await requests.emptied()
    answered = trio.Event()

    async def do(key: str, things: list[int]) -> None:
        await answered.wait()

    nursery.start_soon(requests.serve, do)
    requests.add("a", 1)
    await trio.testing.wait_all_tasks_blocked()
    with trio.move_on_after(0) as waited:
        await requests.emptied()
    assert waited.cancelled_caught
    answered.set()
    await requests.emptied()
