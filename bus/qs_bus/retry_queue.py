"""Collects requests of the bus to the queue server that no task waits for, sends them together, and keeps them until
they succeed.

`ServerCalls` runs calls over the present connection. A `RetryQueue` collects the requests of one kind, and passes them
to `ServerCalls`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import trio

from qs_client import Error, Message, ServerError, ServerUnavailable
from qs_client.asking import Exchange
from qs_schemas import errors

if TYPE_CHECKING:
    from qs_client.async_connection import AsyncConnection
    from qs_client.place import Place
    from qs_client.waiting import Pending
    from qs_serving.hub import Hub
    from qs_serving.timers import Timers

K = TypeVar("K")
T = TypeVar("T")
_logger = logging.getLogger(__name__)
TIMEOUT = 60
"""Seconds for an answer before the connection is given up. It is long, as a new connection makes the server send again
all that the bus holds, and counts it as received."""
RETRY_AFTER = 1
"""Seconds before the bus asks again for what the server has refused: a queue that is full for long costs the server one
request a second."""
_STOPPING = errors.SHUTTING_DOWN.code, errors.SHUTTING_DOWN.kind
"""Code and type with which a server refuses that stops. It closes the connection then, and the next one is asked
again."""

Steps: TypeAlias = Generator[Exchange | Callable[[], Awaitable[None]], Any, None]
"""A call to the server. It yields exchanges, and is sent their answers; and functions, which a task awaits for it."""
Finished: TypeAlias = Callable[[ServerError | ServerUnavailable | None], None]


def _nothing() -> None:
    """Hands over nothing."""


class ServerCalls:
    """Runs calls over one connection at a time, and reads from that connection. A `Reader` of the hub.

    Ensures:
    1. Requests that are collected during one read are sent together at the end of the read; those that are collected at
       any other time, in the next pass of the loop. So the acknowledgements of many clients become one request.
    2. `finished` is called once for each call: with None, with the ServerError of a failed call, or with a
       ServerUnavailable if the connection has ended before the answer. Then nobody knows whether the server has done
       what was asked.
    3. A request that is not answered within `TIMEOUT` ends the connection.
    4. `hand_over` is called after each read, and before each answer to a call: what came before an answer can be taken
       together, and is taken before the call goes on.

    Assumes that everything happens in the loop's thread, and that a call raises nothing but ServerError. This class
    must never wait: it runs in the hub's pass over the sockets, and would hold up every client.
    """

    def __init__(self, hub: Hub, place: Place) -> None:
        """hub: tells when something can be read; place: names the server in errors."""
        self.watched = False
        self._hub = hub
        self._place = place
        self._connection: AsyncConnection | None = None
        self._due: list[Callable[[], None]] = []
        self._reading = False
        self._hand_over: Callable[[], None] = _nothing
        self._may_send = False  # the connection is prepared
        self._has_due = trio.Event()
        self._running: dict[Steps, Finished] = {}
        self._asked_at: dict[Pending, float] = {}  # unanswered requests, the oldest first
        self._asking_again: trio.Event | None = None  # set by the first request after all were answered
        self._failure: ServerUnavailable | None = None  # the reason for which this side ends the connection
        self._nursery: trio.Nursery

    # -- reading

    @contextmanager
    def use(
        self, connection: AsyncConnection, take: Callable[[Message], None], hand_over: Callable[[], None] = _nothing
    ) -> Iterator[None]:
        """Reads from a connection within a with block. take: called with each message that does not answer a call;
        hand_over: see the class."""
        self._hand_over = hand_over
        with connection.read_from_outside(take):
            self._connection = connection
            try:
                self.ready()  # the handshake of TLS may have left something that no socket announces
                self._hub.watch(self)
                yield
            finally:
                self._hub.drop(self)  # before the descriptor is closed, whose number may be reused
                self._connection = None

    def fileno(self) -> int:
        assert self._connection is not None  # noqa: S101 - watched only with a connection
        return self._connection.fileno()

    def ready(self) -> int:
        """Reads once, and sends the requests that the feeds have made because of the read. Returns the number of bytes
        read."""
        connection = self._connection
        if connection is None:  # the connection has ended since the kernel named it
            return 0
        self._reading = True
        count = connection.read()
        self._hand_over()
        self._reading = False
        if self._due:
            self._begin_due()
        connection.flush()
        return count

    # -- sending

    def collect(self, begin: Callable[[], None]) -> None:
        """Schedules a function that starts calls."""
        # A function that is due already has set the event, or will be called at the end of the read.
        if not (self._due or self._reading):
            self._has_due.set()
        self._due.append(begin)

    def _begin_due(self) -> None:
        """Calls the functions that are due. Keeps them until the connection is prepared."""
        if self._may_send:
            due, self._due = self._due, []
            for begin in due:
                begin()

    def start(self, steps: Steps, finished: Finished) -> None:
        """Starts a call. Only a collected function may call this, because requests are sent after such functions."""
        self._running[steps] = finished
        self._advance(steps, partial(next, steps))

    def _advance(self, steps: Steps, resume: Callable[[], Any]) -> None:
        """Continues a call up to its next request, or to its end. Does nothing if the call was lost with its
        connection in the meantime."""
        if steps not in self._running:
            return
        try:
            wanted = resume()
        except StopIteration:
            self._running.pop(steps)(None)
        except ServerError as error:
            self._running.pop(steps)(error)
        else:
            if isinstance(wanted, Exchange):
                self._ask(steps, wanted.request)
            else:
                self._nursery.start_soon(self._await, steps, wanted)

    def _ask(self, steps: Steps, request: Message) -> None:
        connection = self._connection
        assert connection is not None  # noqa: S101 - calls end with their connection
        # Only into the buffer: the end of the read, or of the pass, sends all of it with one system call.
        asked = connection.session.ask(request)
        asked.wake = partial(self._answered, steps, asked)
        self._asked_at[asked] = trio.current_time()
        if self._asking_again is not None:
            self._asking_again.set()

    def _answered(self, steps: Steps, asked: Pending) -> None:
        self._hand_over()
        self._asked_at.pop(asked, None)
        answer = asked.answer
        # A refusal by a stopping server is ignored: the end of the connection follows, and ends the call.
        if steps in self._running and not (isinstance(answer, Error) and (answer.code, answer.kind) == _STOPPING):
            self._advance(steps, partial(steps.send, answer))

    async def _await(self, steps: Steps, function: Callable[[], Awaitable[None]]) -> None:
        """Awaits a function for a call, which goes on in the next pass of the loop."""
        resume: Callable[[], Any] = partial(steps.send, None)
        try:
            await function()
        except ServerError as error:
            resume = partial(steps.throw, error)
        except ServerUnavailable as error:
            self._give_up(error)
            return
        self.collect(partial(self._advance, steps, resume))  # its next request is sent with the others

    async def serve(self) -> None:
        """Sends collected requests until cancelled. Call this inside `use`. Raises ServerUnavailable when the server
        does not answer."""
        self._may_send = True
        self._failure = None
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._send_collected)
                self._nursery.start_soon(self._watch_answers)
        finally:
            self._may_send = False
            self._asked_at.clear()
            self._lose_calls()
        if self._failure is not None:
            raise self._failure

    def _give_up(self, failure: ServerUnavailable) -> None:
        self._failure = failure
        self._nursery.cancel_scope.cancel()

    async def _send_collected(self) -> None:
        connection = self._connection
        assert connection is not None  # noqa: S101 - inside `use`
        while True:
            self._has_due = trio.Event()
            self._begin_due()
            connection.flush()
            await self._has_due.wait()

    async def _watch_answers(self) -> None:
        """Gives the connection up when a request has been unanswered for too long. Watches only the oldest request, so
        that a busy connection needs no timer for each."""
        while True:
            oldest = next(iter(self._asked_at.values()), None)
            if oldest is None:
                self._asking_again = trio.Event()
                await self._asking_again.wait()
                self._asking_again = None
            elif trio.current_time() - oldest >= TIMEOUT:
                self._give_up(self._place.no_answer(TIMEOUT))
                return
            else:
                await trio.sleep_until(oldest + TIMEOUT)

    def _lose_calls(self) -> None:
        """Ends the calls of a connection that has ended. Takes the last call first, so that each call puts its items
        back in front of later items."""
        running, self._running = self._running, {}
        for steps, finished in reversed(running.items()):
            steps.close()
            finished(ServerUnavailable("the connection has ended"))


class RetryQueue(Generic[K, T]):
    """Keeps the items of one kind of request, by key, until the server has done what they ask for.

    Ensures:
    1. The requests for the items of a key are made in the order in which the items were added; failed items come before
       later ones.
    2. An item that was added is done, discarded, or still kept, also after the connection has ended in the middle of
       its request. So a request may be made twice, and must do no harm then.
    3. A key that the server refuses waits for `RETRY_AFTER` and keeps no other key waiting.

    A queue must never give up an item: a message that is not deleted stays in flight as long as the bus runs.
    """

    def __init__(
        self,
        what: str,
        do: Callable[[K, list[T]], Steps],
        calls: ServerCalls,
        timers: Timers,
        *,
        most: int = 1,
        at_once: int = 1,
    ) -> None:
        """what: names the kind of request in the log; do: makes the call for a key and a batch, and may remove finished
        items from the batch before it fails; most: the most items of a batch; at_once: the most batches of a key under
        way."""
        self._what = what
        self._do = do
        self._calls = calls
        self._timers = timers
        self._most = most
        self._at_once = at_once
        self._items: dict[K, deque[T]] = {}
        self._under_way: dict[K, int] = {}
        self._failing: set[K] = set()  # keys that the log calls failing
        self._resting: set[K] = set()
        self._empty: trio.Event | None = None

    def add(self, key: K, *added: T) -> None:
        """Adds items for a key, one at least. Their requests are sent with the next batches of that key."""
        items = self._items.get(key)
        if items is None:
            self._items[key] = deque(added)
            self._calls.collect(partial(self._begin, key))
        else:
            items.extend(added)

    def discard(self, key: K) -> list[T]:
        """Drops the items of a key and returns them. Items whose request is under way are not dropped."""
        self._failing.discard(key)
        self._resting.discard(key)
        return list(self._items.pop(key, ()))

    def _begin(self, key: K) -> None:
        """Starts as many batches of a key as may be under way."""
        while key in self._items and self._under_way.get(key, 0) < self._at_once and key not in self._resting:
            # Removed while under way: an item that is added meanwhile starts a new deque, and is collected again.
            items = self._items.pop(key)
            if len(items) > self._most:
                batch = [items.popleft() for _ in range(self._most)]
                self._items[key] = items
            else:
                batch = list(items)
            self._under_way[key] = self._under_way.get(key, 0) + 1
            self._calls.start(self._do(key, batch), partial(self._end, key, batch))

    def _end(self, key: K, batch: list[T], error: ServerError | ServerUnavailable | None) -> None:
        """Notes the end of a batch, and keeps the items that are not done."""
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
        if error is None:
            if self._failing and key in self._failing:
                self._failing.discard(key)
                _logger.warning("%s works again", self._what)
        else:
            if batch:
                self._items.setdefault(key, deque()).extendleft(reversed(batch))
            # After a lost connection there is no need to rest: the next connection takes long enough.
            if isinstance(error, ServerError):
                self._rest(key, error)
        if key in self._items:
            self._calls.collect(partial(self._begin, key))
        elif self._empty is not None and self.is_empty:
            self._empty.set()

    def _rest(self, key: K, error: ServerError) -> None:
        if key not in self._failing:
            self._failing.add(key)
            _logger.warning("%s failed; the bus keeps trying: %s", self._what, error)
        if key not in self._resting:
            self._resting.add(key)
            self._timers.add(RETRY_AFTER, partial(self._end_rest, key))

    def _end_rest(self, key: K) -> None:
        self._resting.discard(key)
        if key in self._items:
            self._calls.collect(partial(self._begin, key))

    @property
    def is_empty(self) -> bool:
        """True if all items are done."""
        return not (self._items or self._under_way)

    async def emptied(self) -> None:
        """Waits until all items are done."""
        while not self.is_empty:
            self._empty = trio.Event()
            await self._empty.wait()
