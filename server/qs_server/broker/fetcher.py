"""Fetches messages for subscribers of queues on another server.

How it works. Subscriptions receive in a batch, which cannot wait for another server. So the first receive from such a
queue finds nothing, and notes the queue in `FetchedSource.wanted`. A call in a thread asks the other server for as many
messages as subscribers have free prefetch for, and waits until there are some. The messages are put into the source, a
batch is run, and the subscriptions receive them there like any others. Messages that no subscriber takes are given back
to the other server at once: this server keeps no store of messages that its subscribers cannot take.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from qs_storage.engine import Engine, Message, NoSuchQueueError, Receipt, StorageError
from qs_storage.remote_engine import RemoteEngine

from .committer import Committer
from .jobs import Call, run_call
from .remotes import Remotes, give_back, receive_wanted
from .subscriber import bytes_of
from .subscriptions import Subscriptions

_logger = logging.getLogger(__name__)
_WAIT = 20
"""Seconds that one call waits for messages. Then the subscriptions are asked again whether they want some."""
_RETRY = 1
"""Seconds until a server that has failed is asked again."""
_COUNT = 100
"""The most messages of one call: fewer than one batch delivers."""
_BYTES = 1 << 20
"""The most bytes of payload of one call, except for a larger first message: they are in memory for each such queue."""
_FETCHERS = trio.CapacityLimiter(1000)
"""Threads that fetch messages or give some back, one of each kind for a queue. So many, as each that fetches waits for
up to `_WAIT` seconds."""


class FetchedSource:
    """Implements the `Source` of subscriptions, with the server's own storage and the messages fetched from other
    servers.

    Ensures that `receive` and `release` return at once, for a remote queue too: they take the messages that were
    fetched, and leave the rest to the `Fetcher`, which learns of the work from `changes`. Assumes that the methods of
    `Source`, `put` and `take_left` are called in batches, in the loop or in the worker thread, and the other methods in
    the loop.

    The source must never call another server: that is the fetcher's work, in threads."""

    def __init__(self, storage: Engine, remotes: Remotes) -> None:
        self._storage = storage
        self._remotes = remotes
        self._fetched: dict[str, list[Message]] = {}  # by queue, until the next batch has delivered them
        self._woken: set[str] = set()  # queues that `changes` returns next
        self._more = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None  # of the loop in which `changes` waits
        self.wanted: dict[str, tuple[int, int | None]] = {}
        """By queue: (number of messages to fetch, visibility in microseconds or None)."""
        self.returned: dict[str, deque[Message]] = {}
        """By queue: messages to make visible again."""
        self.calls: dict[str, Call[list[Message]]] = {}
        """By queue: the call that fetches messages now."""

    async def changes(self) -> set[str]:
        """Waits until messages of some queues are wanted or to be given back. Returns these queues."""
        self._token = trio.lowlevel.current_trio_token()
        while not self._woken:
            await self._more.wait()
            self._more = trio.Event()
        woken, self._woken = self._woken, set()
        return woken

    def _wake(self, qid: str) -> None:
        """Makes `changes` return a queue. May be called in any thread."""
        if self._token is None:
            self._woken.add(qid)  # no loop waits in `changes` yet
        else:
            # A batch may run in the worker thread, where no event of trio can be set.
            self._token.run_sync_soon(self._wake_in_loop, qid, idempotent=True)

    def _wake_in_loop(self, qid: str) -> None:
        self._woken.add(qid)
        self._more.set()

    def has(self, qid: str) -> bool:
        """Tells whether there is a queue of this name, here or on another server."""
        return qid in self._storage.queues() or self._remotes.engine_of(qid) is not None

    def receive(
        self, qid: str, count: int, visibility: int | None, max_bytes: int, room: Callable[[str], int]
    ) -> list[Message]:
        """Implements `Source.receive`. If no message has been fetched, notes that messages of the queue are wanted."""
        if self._remotes.engine_of(qid) is None:
            return self._storage.receive((qid,), count, visibility, max_bytes, held=True)
        found = self._fetched.pop(qid, [])
        if len(found) > count:
            self._fetched[qid] = found[count:]
        if not found:
            self.wanted[qid] = min(max(count, room(qid)), _COUNT), visibility
            self._wake(qid)
        for message in found[:count]:  # noted now, and not when fetched: only these messages reach a client
            size = len(message.payload or b"") + bytes_of(message.headers)
            self._remotes.note("received", qid, message.mid, size, message.receives)
        return found[:count]

    def release(self, qid: str, receipt: Receipt, delay: int | None) -> int | None:
        """Releases a message, as `Queue` says. On another server, the release happens a little later, in a thread, and
        without the delay."""
        if self._remotes.engine_of(qid) is None:
            return self._storage.queue(qid).release(receipt, delay)
        self._remotes.note("released", qid, receipt.mid, receives=receipt.receives)
        message = Message(qid, receipt.mid, "delivered", receipt.receives or 0, 0)
        self.returned.setdefault(qid, deque()).append(message)
        self._wake(qid)
        return None

    def deserted(self, qid: str) -> None:
        """Stops the call for a queue that has no subscribers any more. Call this in any thread."""
        self.wanted.pop(qid, None)
        if (call := self.calls.get(qid)) is not None:
            call.stop.set()

    def put(self, qid: str, messages: list[Message]) -> None:
        self._fetched.setdefault(qid, []).extend(messages)

    def take_left(self, qid: str) -> list[Message]:
        """Removes and returns the fetched messages that no subscriber has taken."""
        return self._fetched.pop(qid, [])


class Fetcher:
    """Fetches messages for the source, and gives back those that no subscriber takes.

    Ensures:
    1. One call at a time fetches for a queue, and only while a subscriber wants messages.
    2. A fetched message is delivered or given back, also if the call is given up, the server stops, or the subscribers
       have gone meanwhile. Only if the other server hangs or fails then, the message stays hidden until its window
       ends.
    3. A server that fails is asked again every second, and the log says so once for each queue.

    A queue has two tasks, one that fetches and one that gives back, so that neither waits for the other: a fetch may
    take `_WAIT` seconds.

    The fetcher must never hold up a batch, and changes the source only in jobs of the committer."""

    def __init__(
        self, source: FetchedSource, remotes: Remotes, committer: Committer, subscriptions: Subscriptions
    ) -> None:
        self._source = source
        self._remotes = remotes
        self._committer = committer
        self._subscriptions = subscriptions
        self._fetching: set[str] = set()  # queues with a task that fetches
        self._returning: set[str] = set()  # queues with a task that gives back
        self._failing: set[str] = set()  # queues of which the log says that their server fails

    async def serve(self) -> None:
        """Runs until cancelled. Messages that were released before that are still given back."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    woken = await self._source.changes()
                    for qid in woken - self._fetching:
                        self._fetching.add(qid)
                        nursery.start_soon(self._fetch_wanted, qid)
                    for qid in woken - self._returning:
                        self._returning.add(qid)
                        nursery.start_soon(self._return, qid)
        finally:
            with trio.move_on_after(0, shield=True):  # calls have `_STOP_TIMEOUT` to end
                async with trio.open_nursery() as nursery:
                    for qid in list(self._source.returned):
                        nursery.start_soon(self._return, qid)

    async def _return(self, qid: str) -> None:
        returned = self._source.returned.get(qid, ())
        while returned and (engine := self._remotes.engine_of(qid)) is not None:
            await _give_back(engine, [returned.popleft() for _ in range(len(returned))])
        self._returning.discard(qid)

    async def _fetch_wanted(self, qid: str) -> None:
        while (wanted := self._source.wanted.pop(qid, None)) and (engine := self._remotes.engine_of(qid)) is not None:
            if not await self._fetch(engine, qid, wanted):
                await trio.sleep(_RETRY)
                await self._committer.call(partial(self._subscriptions.has_come, qid))  # asks again if still wanted
        self._fetching.discard(qid)

    async def _fetch(self, engine: RemoteEngine, qid: str, wanted: tuple[int, int | None]) -> bool:
        """Fetches messages once. Returns False if the other server has failed."""
        count, visibility = wanted
        # held: so that an engine can give back what a server held for its subscribers when it was killed.
        call = Call(partial(receive_wanted, engine, [qid], count, visibility, max_bytes=_BYTES, wait=_WAIT, held=True))
        self._source.calls[qid] = call
        try:
            await run_call(call, _FETCHERS)
            found = call.result()
        except NoSuchQueueError:
            return True  # the subscriptions notice this in their next batch
        except (StorageError, OSError) as error:
            if qid not in self._failing:
                self._failing.add(qid)
                _logger.error("messages of %r cannot be fetched: %s; it is tried again every second", qid, error)
            return False
        except trio.Cancelled:
            # Messages that came while the call was stopped would stay hidden for a window.
            with trio.CancelScope(shield=True):
                await _give_back(engine, call.found())
            raise
        finally:
            del self._source.calls[qid]
        if qid in self._failing:
            self._failing.discard(qid)
            _logger.warning("messages of %r can be fetched again", qid)
        await self._deliver(engine, qid, found)
        return True

    async def _deliver(self, engine: RemoteEngine, qid: str, found: list[Message]) -> None:
        def put() -> None:
            self._source.put(qid, found)
            self._subscriptions.has_come(qid)

        left: list[Message] = []
        await self._committer.call(put)  # its batch delivers them, after its commit
        while self._subscriptions.is_waiting(qid):  # other queues came first in that batch
            await self._committer.call(lambda: None)
            await trio.lowlevel.checkpoint()
        await self._committer.call(lambda: left.extend(self._source.take_left(qid)))
        await _give_back(engine, left)


async def _give_back(engine: RemoteEngine, messages: list[Message]) -> None:
    if messages:
        await run_call(Call(lambda stop: give_back(engine, messages)), _FETCHERS)
