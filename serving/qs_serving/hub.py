"""Reads from all clients: waits for one epoll descriptor, and makes one pass over all sockets that are ready.

A task that waits for a socket is registered with the kernel, woken and registered again each time that a few bytes
come. The hub instead registers every socket once, and hands the bytes to its reader in a plain call, without waking the
reader's task; the reader decides whether to wake that task. After the pass, everything that the pass has gathered can
be done together.
"""

import os
import select
from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from time import perf_counter
from typing import Protocol

import trio

_READY = 256
"""The most ready readers that one call of the kernel returns."""
_TURN = 128 * 1024
"""Bytes that are read before the loop's tasks run: some 20 ms of work at most, and usually less than 5. The readers
that are left over come first the next time."""
_TIME = 0.003
"""Seconds after which a turn does not wait for further bytes."""
_READ = 1024
"""The least number of bytes that a read counts as."""
_LINGER = 0.001
"""Seconds that a turn waits for further bytes, if no task of the loop has anything to do: a client that has got its
answer often asks again, and a pass through the loop costs as much as its request. The kernel counts milliseconds."""
_SPINS = 250 if len(os.sched_getaffinity(0)) > 1 else 0
"""How often it asks before it sleeps for that moment: some 100 us. A processor that sleeps takes 30 to 40 us to wake,
and one client alone pays that with every request. With one processor, the client needs it."""


_descriptor = itemgetter(0)


class Reader(Protocol):
    """Reads from a descriptor. The hub calls it when something can be read."""

    watched: bool
    """True while the hub watches it; only the hub changes this."""

    def fileno(self) -> int:
        """Returns the descriptor that the hub watches."""

    def ready(self) -> int:
        """Reads once. Returns the number of bytes. Must raise nothing."""


class Hub:
    """Watches the descriptors of all connections, and calls the readers that are ready.

    Ensures:
    1. A reader that is ready is read once in each poll cycle at most, so that none keeps the others waiting.
    2. After each poll cycle `on_poll_end` is called, so that all requests of the cycle can be handled together.
    3. A turn ends after `_TURN` bytes or `_TIME`, so that the loop's tasks run in between.

    Assumes that readers raise nothing and return at once. The hub must never call a reader after `drop`: the kernel may
    have given its descriptor to another socket."""

    def __init__(
        self, on_poll_end: Callable[[], bool] = lambda: True, clock: Callable[[], float] = perf_counter
    ) -> None:
        """on_poll_end: called after each poll cycle; returns False to end the turn, so that the loop's tasks run;
        clock: returns seconds, which bound a turn."""
        self._clock = clock
        self._epoll = select.epoll()
        self._readers: dict[int, Reader] = {}
        self._ready: deque[Reader] = deque()
        self.on_poll_end = on_poll_end
        self.first: Reader | None = None
        """The reader that is read before all others, also when it may have nothing."""
        self.spins = True
        """False if nothing can come soon in this turn, as what was read waits for another server: then asking again and
        again would only take the processor from it. Set anew for each turn."""
        self.received = 0
        """Bytes that have come from the sockets of the readers, with TLS as they were encrypted."""
        self.sent = 0
        """Bytes that these sockets have taken."""

    async def serve(self) -> None:
        """Takes turns until cancelled. Sleeps while nothing comes."""
        while True:
            if self._ready:
                await trio.lowlevel.checkpoint()
            else:
                await self._wait()
            self._take_turn()

    async def _wait(self) -> None:
        """Waits until `_poll` will find a ready reader."""
        await trio.lowlevel.wait_readable(self._epoll.fileno())

    def _poll(self, linger_until: float) -> Iterable[Reader]:
        """Returns readers that are ready, `_READY` of them at most. If there are none, waits a moment for the first.

        linger_until: the time after which this does not wait for a first reader. It also does not sleep if a task of
        the loop could run meanwhile."""
        poll = self._epoll.poll
        found = poll(0, _READY)
        if not found and self._clock() < linger_until:
            for _ in range(_SPINS if self.spins else 0):
                found = poll(0, _READY)
                if found:
                    break
            else:  # asked only now, as the answer takes as long as ten polls
                if not trio.lowlevel.current_statistics().tasks_runnable:
                    found = poll(_LINGER, _READY)
        return map(self._readers.__getitem__, map(_descriptor, found))

    def _take_turn(self) -> None:
        """Reads from the ready readers until nothing more comes, or the turn is over."""
        ready, first, left = self._ready, self.first, _TURN
        self.spins = True
        until = self._clock() + _TIME
        if ready and first is not None:  # the last turn ended before all were read
            ready.appendleft(first)
        while left > 0:
            if not ready:
                ready.extend(self._poll(until if left < _TURN else 0))
                if not ready:
                    break
                if first is not None and first in ready:
                    ready.appendleft(first)
            while ready and left > 0:
                reader = ready.popleft()
                if reader.watched:  # the reader may have gone since the kernel named it
                    left -= max(reader.ready(), _READ)
            if not self.on_poll_end():
                break

    def watch(self, reader: Reader) -> None:
        """Watches a reader until `drop`: calls its `ready` whenever there is something to read. Does nothing once the
        hub is closed."""
        if self._epoll.closed:
            return
        reader.watched = True
        self._readers[reader.fileno()] = reader
        self._epoll.register(reader.fileno(), select.EPOLLIN)

    def drop(self, reader: Reader) -> None:
        """Ends `watch`. Call it before the descriptor is closed: the next socket may get the same number."""
        if reader.watched:
            reader.watched = False
            del self._readers[reader.fileno()]
            self._epoll.unregister(reader.fileno())

    def close(self) -> None:
        """Stops watching all readers."""
        for reader in list(self._readers.values()):
            self.drop(reader)
        self._epoll.close()
