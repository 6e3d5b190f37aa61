"""Fetches messages for subscribers of queues on another server.

Subscriptions receive without waiting. So a thread asks the other server for as many messages as subscribers have room
for, and waits until there are some; `FetchedSource` keeps them until the next batch delivers them.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import trio

from qs_storage.engine import Engine, Message, NoSuchQueueError, Receipt, StorageError
from qs_storage.remote_engine import RemoteEngine

from .calling import Call, run_call
from .committer import Committer
from .jobs import Job
from .remotes import Remotes, give_back, receive_wanted
from .subscriptions import Subscriptions

_logger = logging.getLogger(__name__)
_WAIT = 20
"""Seconds that one call waits for messages; then it is checked that there still is a subscriber."""
_RETRY = 1
"""Seconds until a server that has failed is asked again."""
_COUNT = 100
"""The most messages of one call: fewer than one batch delivers."""
_BYTES = 1 << 20
"""The most bytes of payload of one call, except for a larger first message."""
_FETCHERS = trio.CapacityLimiter(1000)
"""Threads that wait for messages, one for each queue."""


class _QueueNames(Collection[str]):
    """The names of all queues. Copies nothing, as one is made for each delivery."""

    def __init__(self, storage: Engine, remotes: Remotes) -> None:
        self._storage = storage
        self._remotes = remotes

    def __contains__(self, qid: object) -> bool:
        return qid in self._storage.queues() or (isinstance(qid, str) and self._remotes.engine_of(qid) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter({*self._storage.queues(), *self._remotes.queues()})

    def __len__(self) -> int:
        return sum(1 for _ in self)


class FetchedSource:
    """The `Source` of subscriptions: the server's own storage, and the messages fetched from other servers."""

    def __init__(self, storage: Engine, remotes: Remotes, wake: Callable[[str], None]) -> None:
        """wake: called, in any thread, with a queue of which messages are wanted or given back."""
        self._storage = storage
        self._remotes = remotes
        self._wake = wake
        self._fetched: dict[str, list[Message]] = {}
        self.room: Callable[[str], int] = lambda qid: 0
        """Returns how many messages of a queue all its subscribers together could take."""
        self.wanted: dict[str, tuple[int, int | None]] = {}
        """By queue: (number of messages to fetch, visibility in microseconds or None)."""
        self.returned: dict[str, deque[Message]] = {}
        """By queue: messages to make visible again."""

    def queues(self) -> Collection[str]:
        """See Engine."""
        return _QueueNames(self._storage, self._remotes)

    def receive(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int, *, held: bool = False
    ) -> list[Message]:
        """See Engine; qids: one queue. If no message was fetched, has some fetched for a later call."""
        [qid] = qids
        if self._remotes.engine_of(qid) is None:
            return self._storage.receive(qids, count, visibility, max_bytes, held=held)
        found = self._fetched.pop(qid, [])
        if len(found) > count:
            self._fetched[qid] = found[count:]
        if not found:
            self.wanted[qid] = min(max(count, self.room(qid)), _COUNT), visibility
            self._wake(qid)
        for message in found[:count]:
            self._remotes.note("received", qid, message.mid, len(message.payload or b""), message.receives)
        return found[:count]

    def release(self, qid: str, receipt: Receipt, delay: int | None) -> int | None:
        """See Queue. On another server, the release happens a little later."""
        if self._remotes.engine_of(qid) is None:
            return self._storage.queue(qid).release(receipt, delay)
        self._remotes.note("released", qid, receipt.mid, receives=receipt.receives)
        message = Message(qid, receipt.mid, "delivered", receipt.receives or 0, 0)
        self.returned.setdefault(qid, deque()).append(message)
        self._wake(qid)
        return None

    def put(self, qid: str, messages: list[Message]) -> None:
        self._fetched.setdefault(qid, []).extend(messages)

    def take_left(self, qid: str) -> list[Message]:
        """Removes and returns the fetched messages that no subscriber has taken."""
        return self._fetched.pop(qid, [])


class Fetcher:
    """Fetches and gives back messages, in two tasks for each queue, so that neither waits for the other."""

    def __init__(self, storage: Engine, remotes: Remotes) -> None:
        self._remotes = remotes
        self._token: trio.lowlevel.TrioToken
        self._committer: Committer
        self._subscriptions: Subscriptions
        self._more = trio.Event()
        self._woken: set[str] = set()
        self._fetching: set[str] = set()
        self._returning: set[str] = set()
        self._failing: set[str] = set()
        self._calls: dict[str, Call[list[Message]]] = {}
        self.source = FetchedSource(storage, remotes, self._wake)

    def _wake(self, qid: str) -> None:
        self._token.run_sync_soon(self._woken_in_loop, qid, idempotent=True)

    def _woken_in_loop(self, qid: str) -> None:
        self._woken.add(qid)
        self._more.set()

    async def serve(self, committer: Committer, subscriptions: Subscriptions) -> None:
        """Runs until it is cancelled. Messages returned before that are still given back."""
        self._token = trio.lowlevel.current_trio_token()
        self._committer, self._subscriptions = committer, subscriptions
        self.source.room = subscriptions.room
        subscriptions.deserted = self._deserted
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._more.wait()
                    self._more = trio.Event()
                    woken, self._woken = self._woken, set()
                    for qid in woken - self._fetching:
                        self._fetching.add(qid)
                        nursery.start_soon(self._fetch_wanted, qid)
                    for qid in woken - self._returning:
                        self._returning.add(qid)
                        nursery.start_soon(self._return, qid)
        finally:
            with trio.move_on_after(0, shield=True):  # calls have `_STOP_TIMEOUT` to end
                async with trio.open_nursery() as nursery:
                    for qid in list(self.source.returned):
                        nursery.start_soon(self._return, qid)

    def _deserted(self, qid: str) -> None:
        """Stops the call for a queue without subscribers, from any thread."""
        self.source.wanted.pop(qid, None)
        if (call := self._calls.get(qid)) is not None:
            call.stop.set()

    async def _return(self, qid: str) -> None:
        returned = self.source.returned.get(qid, ())
        while returned and (engine := self._remotes.engine_of(qid)) is not None:
            await _give_back(engine, [returned.popleft() for _ in range(len(returned))])
        self._returning.discard(qid)

    async def _fetch_wanted(self, qid: str) -> None:
        while (wanted := self.source.wanted.pop(qid, None)) and (engine := self._remotes.engine_of(qid)) is not None:
            if not await self._fetch(engine, qid, wanted):
                await trio.sleep(_RETRY)
                await self._committer.run(Job(partial(self._subscriptions.has_come, qid)))  # asks again if still wanted
        self._fetching.discard(qid)

    async def _fetch(self, engine: RemoteEngine, qid: str, wanted: tuple[int, int | None]) -> bool:
        """Fetches messages once. Returns False if the other server has failed."""
        count, visibility = wanted
        call = Call(partial(receive_wanted, engine, [qid], count, visibility, max_bytes=_BYTES, wait=_WAIT))
        self._calls[qid] = call
        try:
            await run_call(call, _FETCHERS)
            found = call.result()
        except NoSuchQueueError:
            return True
        except (StorageError, OSError) as error:
            if qid not in self._failing:
                self._failing.add(qid)
                _logger.error("messages of %r cannot be fetched: %s; it is tried again every second", qid, error)
            return False
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await _give_back(engine, call.found())
            raise
        finally:
            del self._calls[qid]
        if qid in self._failing:
            self._failing.discard(qid)
            _logger.warning("messages of %r can be fetched again", qid)
        await self._hand_out(engine, qid, found)
        return True

    async def _hand_out(self, engine: RemoteEngine, qid: str, found: list[Message]) -> None:
        def put() -> None:
            self.source.put(qid, found)
            self._subscriptions.has_come(qid)

        left: list[Message] = []
        await self._committer.run(Job(put))
        while self._subscriptions.is_waiting(qid):  # other queues came first in that batch
            await self._committer.run(Job())
            await trio.lowlevel.checkpoint()
        await self._committer.run(Job(lambda: left.extend(self.source.take_left(qid))))
        await _give_back(engine, left)


async def _give_back(engine: RemoteEngine, messages: list[Message]) -> None:
    if messages:
        await run_call(Call(lambda stop: give_back(engine, messages)), _FETCHERS)
