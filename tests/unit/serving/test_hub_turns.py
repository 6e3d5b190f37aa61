"""Tests how long a turn of the hub may take, whatever the clients do, by a clock and an epoll of the test's own."""

import select

import pytest

from qs_serving.hub import Hub

PAUSE = 0.0009
"""Seconds after which the client asks again: just within what a turn waits for."""
SOON = 0.008
"""Seconds within which a turn has to end that only waits."""


class FakeEpoll:
    """An epoll in which alone time passes. Its clients ask again whenever they have been read from."""

    closed = False

    def __init__(self, pause: float) -> None:
        self.pause = pause
        """Seconds between an answer and the next request; 0: it is there at once."""
        self.now = 1000.0
        self.waited = 0.0
        self._descriptors: list[int] = []

    def register(self, descriptor: int, events: int) -> None:
        self._descriptors.append(descriptor)

    def unregister(self, descriptor: int) -> None:
        self._descriptors.remove(descriptor)

    def poll(self, timeout: float = -1, maxevents: int = -1) -> list[tuple[int, int]]:
        taken = min(self.pause, timeout)
        self.now += taken
        self.waited += taken
        return [(each, select.EPOLLIN) for each in self._descriptors] if timeout >= self.pause else []

    def close(self) -> None:
        self.closed = True


class Client:
    """Sends a short request each time; to read and answer it takes a while."""

    watched = False

    def __init__(self, epoll: FakeEpoll, descriptor: int, work: float = 0.0) -> None:
        self.reads = 0
        self._epoll = epoll
        self._descriptor = descriptor
        self._work = work

    def fileno(self) -> int:
        return self._descriptor

    def ready(self) -> int:
        self.reads += 1
        self._epoll.now += self._work
        return 80


def hub_of(epoll: FakeEpoll) -> Hub:
    hub = Hub(clock=lambda: epoll.now)
    hub._epoll.close()
    hub._epoll = epoll  # type: ignore[assignment]
    return hub


def ready_at_first(hub: Hub, *clients: Client) -> None:
    """Makes the kernel report the readers as ready."""
    for client in clients:
        hub.watch(client)
        hub._ready.append(client)


async def test_a_client_that_asks_again_and_again() -> None:
    """A client that asks again and again is answered more than once in a turn, but soon the loop's tasks have
    theirs."""
    epoll = FakeEpoll(PAUSE)
    hub, client = hub_of(epoll), Client(epoll, 7)
    ready_at_first(hub, client)
    started = epoll.now
    hub._take_turn()
    assert client.reads >= 2
    assert epoll.now - started <= SOON


@pytest.mark.parametrize("clients", [2, 16])
async def test_several_that_ask_again_and_again(clients: int) -> None:
    """A turn that has to wait for each next request ends as soon with many readers as with few; each was read from."""
    epoll = FakeEpoll(PAUSE)
    hub = hub_of(epoll)
    asking = [Client(epoll, 7 + number, 0.00002) for number in range(clients)]
    ready_at_first(hub, *asking)
    started = epoll.now
    hub._take_turn()
    assert min(client.reads for client in asking) >= 1
    assert epoll.now - started <= SOON


async def test_work_that_takes_long_is_not_waited_after() -> None:
    """Once the time of a turn is over, the hub does not wait for further bytes."""
    epoll = FakeEpoll(PAUSE)
    hub, client = hub_of(epoll), Client(epoll, 7, work=1.0)
    ready_at_first(hub, client)
    hub._take_turn()
    assert (client.reads, epoll.waited) == (1, 0.0)


async def test_each_turn_has_its_own_time() -> None:
    """A turn that comes later may wait as much as the first one."""
    epoll = FakeEpoll(PAUSE)
    hub, client = hub_of(epoll), Client(epoll, 7)
    ready_at_first(hub, client)
    hub._take_turn()
    first, epoll.now = client.reads, epoll.now + 100
    hub._ready.append(client)
    hub._take_turn()
    assert client.reads == 2 * first


async def test_what_is_there_is_read() -> None:
    """A client whose next request is there at once is read from on end, up to the bytes of a turn."""
    epoll = FakeEpoll(0)
    hub, client = hub_of(epoll), Client(epoll, 7)
    ready_at_first(hub, client)
    hub._take_turn()
    assert (client.reads, epoll.waited) == (128, 0.0)
