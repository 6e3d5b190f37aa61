"""One connection: reads requests, passes those that have arrived to the committer, and sends the answers in order.

Requests that can be answered at once never wake the connection's task: the hub reads them, the committer runs them in
its next batch, and the answers go straight to the socket. The task takes over when a request or the socket has to wait.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import trio

from qs_schemas import Figure, Limits, Peer
from qs_serving.access.caller import Caller
from qs_serving.conversation import Conversation
from qs_serving.figures import RequestCounts
from qs_serving.options import ServerLimits
from qs_serving.strangers import Strangers
from qs_serving.transport import Transport
from qs_storage.engine import Engine

from ..broker.committer import Committer
from ..broker.jobs import Call, Job, Pause, Waiters, run_call
from ..broker.remotes import Remotes
from ..broker.room import DiskRoom
from ..broker.subscriber import Subscriber, cost
from ..broker.subscriptions import Subscriptions
from ..operations.service import Service
from .requests import RequestBatch

_CALLS = trio.CapacityLimiter(64)
"""Threads for calls to other servers."""
_WAITS = trio.CapacityLimiter(500)
"""Threads for calls that wait for messages of other servers."""


class Connection(Conversation):
    """A client of the queue server."""

    def __init__(
        self,
        stream: Transport,
        peer: Peer,
        limits: ServerLimits,
        writers: trio.Nursery,
        counts: RequestCounts,
        *,
        strangers: Strangers,
        wire: Limits,
        storage: Engine,
        subscriptions: Subscriptions,
        committer: Committer,
        waiters: Waiters,
        remotes: Remotes,
        caller: Caller | None = None,
        figures: Callable[[bool], list[Figure]],
        room: DiskRoom,
    ) -> None:
        """caller: who the client is, None if everybody may do everything; figures: returns the server's figures; its
        argument: True to include those of each connection; room: is told of requests that find none on the disk."""
        super().__init__(stream, peer, limits, writers, counts, strangers=strangers, caller=caller)
        self._subscriptions = subscriptions
        self._service = Service(
            storage,
            subscriptions,
            self._become_subscriber,
            wire.list_length,
            wire.document,
            stream.peer,
            remotes=remotes,
            caller=caller,
            waiting=waiters.count,
            figures=figures,
            room=room,
        )
        self._committer = committer
        self._waiters = waiters
        self._requests: RequestBatch | None = None  # the requests under way
        self._since = 0.0  # when they began, or continued after a wait that the client asked for
        self._sent = True  # the socket has taken all answers
        self._woken: Callable[[], None] | None = None  # ends the wait of the task
        self._landed: trio.Event | None = None  # set at the end of the batch, for a task that has to end

    # -- subscriptions --------------------------------------------------------------------------------------------

    @property
    def subscription_count(self) -> int:
        subscriber = self._service.subscriber
        return 0 if subscriber is None else len(subscriber.subscriptions)

    def _become_subscriber(self) -> Subscriber:
        return Subscriber(self._limits.outbox, self._deliver, self._service.peer)

    def _deliver(self) -> None:
        subscriber = self._service.subscriber
        if subscriber is not None:
            mail, subscriber.mail = subscriber.mail, []
            size = sum(map(cost, mail))
            if self._outbox.put(b"".join(map(self._peer.send, mail)), size or None):
                self._written(size)

    def _written(self, token: Any) -> None:
        subscriber = self._service.subscriber
        if subscriber is not None and subscriber.has_read(token):
            self._committer.post(Job(partial(self._subscriptions.feed_all, subscriber)))

    async def leave(self) -> None:
        """Ends the client's subscriptions. Their messages become visible again, batch by batch."""
        subscriber = self._service.subscriber
        if subscriber is not None:
            await self._committer.call(partial(self._subscriptions.drop, subscriber))

    def rights_changed(self) -> None:
        """Ends subscriptions and waits that the access file does not allow any more. An allowed receive looks for
        messages again: a refused one may have been woken for them instead."""
        if self._woken is not None:
            self._woken()
        if self._service.subscriber is not None:
            self._committer.post(Job(self._service.end_forbidden_subscriptions))

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def _is_answering(self) -> bool:
        return self._requests is not None

    @property
    def _at_hand(self) -> bool:
        return self._requests is not None or (bool(self._events) and not self._closing)

    # without the task

    def _begin(self) -> None:
        self._stream.hold()
        self._interruptible = None  # requests that have begun are finished
        self._requests = requests = RequestBatch(self._events, self._service, self._limits.outbox)
        self._since = perf_counter()
        requests.ended = self._advanced
        self._committer.scheduled.append(requests)

    def _advanced(self) -> None:
        """Sends the answers after the batch, and reads on. Meanwhile the task sleeps, or waits for this to end."""
        requests, subscriber = self._requests, self._service.subscriber
        try:
            if requests is None or not self._put(requests) or requests.left or requests.closes or self._closing:
                self._stream.rouse()
            else:
                self._requests = None
                if subscriber is not None and subscriber.new:  # before any later request
                    self._committer.post(Job(self._service.start_subscriptions))
                if self._more:
                    self._parse()
                if self._landed is not None:
                    pass  # no more requests begin
                elif self._events:
                    self._begin()
                else:
                    self._idle()
        except Exception as error:  # it concerns this connection alone, not the rest of the batch
            self._stream.rouse(error)
        if self._landed is not None:
            self._landed.set()

    async def _listen(self) -> None:
        try:
            await super()._listen()
        except BaseException:
            if self._requests is not None:
                await self._abandon(self._requests)
            raise

    async def _abandon(self, requests: RequestBatch) -> None:
        """Waits until the requests under way are finished, as the task has to end."""
        if requests.ended is not None:
            self._landed = trio.Event()
            with trio.CancelScope(shield=True):
                await self._landed.wait()
        self._waiters.leave(requests)

    # with the task

    async def _answer(self) -> bool:
        requests = self._requests
        if requests is None:
            self._requests = requests = RequestBatch(self._events, self._service, self._limits.outbox)
            self._since = perf_counter()
            await self._advance(requests)
        try:
            while True:
                if not self._sent:
                    await self._outbox.drained()
                subscriber = self._service.subscriber
                if subscriber is not None and subscriber.new:
                    await self._committer.call(self._service.start_subscriptions)
                if requests.pause is not None:
                    await self._wait(requests)
                if not requests.left:
                    break
                await self._advance(requests)
        finally:
            self._requests = None
            self._waiters.leave(requests)
        if requests.closes:
            return False
        self._parse()
        return True

    async def _advance(self, requests: RequestBatch) -> None:
        await self._committer.run(requests)
        self._sent = not requests.answers or self._put(requests)

    def _put(self, requests: RequestBatch) -> bool:
        """Sends the answers that are ready. Returns True if the socket has taken them all."""
        answers, requests.answers = requests.answers, []
        if answers:
            document = self._peer.send(answers[0]) if len(answers) == 1 else b"".join(map(self._peer.send, answers))
            self._sent = self._outbox.put(document)
            answered = requests.events[requests.done - len(answers) : requests.done]
            self._counts.answered(answered, answers, perf_counter() - self._since)
        else:
            self._sent = True
        return self._sent

    async def _wait(self, requests: RequestBatch) -> None:
        """Waits until the pause is over, and reads ahead meanwhile."""
        pause = requests.pause
        if pause is None or (pause.call is None and not pause.qids):
            await trio.sleep(0 if pause is None else pause.wait)
            requests.resume()
        elif pause.call is not None:
            await self._wait_for_call(requests, pause.call)
            self._waiters.leave(requests)
            requests.resume()
        else:
            await self._wait_for_messages(requests, pause)
        if pause is not None and pause.is_asked_for:
            self._since = perf_counter()

    async def _wait_for_messages(self, requests: RequestBatch, pause: Pause) -> None:
        woken = self._waiters.woken(requests)
        self._woken = woken.set
        if self._caller is not None and not requests.is_allowed():  # the access file was read again during the batch
            woken.set()
        async with trio.open_nursery() as nursery:
            self._interruptible = nursery.cancel_scope
            if self._closing or self._ended:
                nursery.cancel_scope.cancel()
            nursery.start_soon(self._read_ahead, nursery.cancel_scope)
            # The loop's clock is monotonic.
            requests.deadline = trio.current_time() + pause.wait if requests.deadline is None else requests.deadline
            with trio.move_on_at(requests.deadline) as time:
                await woken.wait()
            nursery.cancel_scope.cancel()
        self._interruptible = self._woken = None
        if self._closing or self._ended or (self._caller is not None and not requests.is_allowed()):
            # The client cannot or may not take messages any more: the next in line is woken instead.
            self._waiters.leave(requests)
            requests.end_wait()
        else:
            self._waiters.resume(requests)
            requests.resume(over=time.cancelled_caught)

    async def _wait_for_call(self, requests: RequestBatch, call: Call[Any]) -> None:
        """Waits for the end of the call. Tells it to stop if the connection ends or the request is forbidden."""

        def stop_if_forbidden() -> None:
            if not requests.is_allowed():
                call.stop.set()

        if self._closing or self._ended:
            call.stop.set()
        self._woken = stop_if_forbidden
        stop_if_forbidden()
        async with trio.open_nursery() as nursery:
            self._interruptible = nursery.cancel_scope
            nursery.start_soon(self._read_ahead, nursery.cancel_scope)
            await run_call(call, _WAITS if call.waits else _CALLS)
            nursery.cancel_scope.cancel()
        self._interruptible = self._woken = None
