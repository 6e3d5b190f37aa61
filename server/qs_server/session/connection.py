"""One connection: reads requests, hands those at hand to the committer together, and sends their answers in order.

Requests that can be answered at once never wake the connection's task: the hub reads them, the committer runs them in
its next batch, and the answers go straight to the socket. The task takes over where something has to be waited for.
"""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import trio

from qs_schemas import Figure, Limits, Peer, PushMessage
from qs_serving.access.caller import Caller
from qs_serving.conversation import Conversation
from qs_serving.figures import RequestCounts
from qs_serving.options import ServerLimits
from qs_serving.transport import Transport

from ..broker.calling import Call, run_call
from ..broker.committer import Committer
from ..broker.jobs import Job, Pause
from ..broker.remotes import Remotes
from ..broker.subscriber import Subscriber, cost
from ..broker.subscriptions import Subscriptions
from ..broker.waiting import Waiters
from ..operations.service import Service
from ..storage.engine import Engine
from .requests import RequestBatch, weight

_REQUESTS = 256
"""Requests of one connection that one batch takes, so that a busy one does not keep the others waiting."""
_MESSAGES = 1000
"""And messages, where the requests are lists."""
_CALLS = trio.CapacityLimiter(64)
"""Threads that ask other servers for something."""
_WAITS = trio.CapacityLimiter(500)
"""Threads that wait for messages there."""


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
        wire: Limits,
        storage: Engine,
        subscriptions: Subscriptions,
        committer: Committer,
        waiters: Waiters,
        remotes: Remotes,
        caller: Caller | None = None,
        figures: Callable[[bool], list[Figure]],
    ) -> None:
        """caller: who the client is, None if everybody may do everything; figures: returns those of the server; its
        argument: also those of each connection."""
        super().__init__(stream, peer, limits, writers, counts, caller=caller)
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
        )
        self._committer = committer
        self._waiters = waiters
        self._requests: RequestBatch | None = None  # that is under way
        self._since = 0.0  # when these were begun, or went on after a wait that was asked for
        self._sent = True  # the answers that were made last have been taken by the socket
        self._woken: Callable[[], None] | None = None  # ends the wait of the task
        self._landed: trio.Event | None = None  # set when the requests' batch is over, for a task that has to go

    # -- subscriptions --------------------------------------------------------------------------------------------

    @property
    def subscription_count(self) -> int:
        subscriber = self._service.subscriber
        return 0 if subscriber is None else len(subscriber.subscriptions)

    def _become_subscriber(self) -> Subscriber:
        return Subscriber(self._limits.outbox, self._deliver, self._service.peer)

    def _deliver(self) -> None:
        """Sends what a batch has handed out to this client."""
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

    async def _begin_subscriptions(self) -> None:
        """Starts subscriptions whose answers have been sent."""
        subscriber = self._service.subscriber
        if subscriber is not None and subscriber.new:
            await self._committer.run(Job(self._service.start_subscriptions))

    async def leave(self) -> None:
        """The client has gone: what it was sent and has not acknowledged becomes visible again, batch by batch."""
        subscriber = self._service.subscriber
        if subscriber is not None:
            await self._committer.run(Job(partial(self._subscriptions.drop, subscriber)))

    def rights_changed(self) -> None:
        """The access file has been read again: what the client may not do any more ends. A receive that waits looks
        again also if it is allowed: one that was woken for a message and is refused now leaves the message to it."""
        if self._woken is not None:
            self._woken()
        if self._service.subscriber is not None:
            self._committer.post(Job(self._service.end_forbidden_subscriptions))

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def _at_hand(self) -> bool:
        return self._requests is not None or super()._at_hand

    def _next_requests(self) -> RequestBatch:
        queue = self._events
        events = [queue.popleft()]
        if queue:
            held = weight(events[0])
            while queue and len(events) < _REQUESTS:
                event = queue[0]
                held += 1 if type(event) is PushMessage and not event.messages else weight(event)  # nearly always
                if held > _MESSAGES:
                    break
                events.append(queue.popleft())
        return RequestBatch(events, self._service, self._limits.outbox)

    # without the task

    def _begin(self) -> None:
        self._stream.hold()
        self._interruptible = None  # what is begun is finished
        self._requests = requests = self._next_requests()
        self._since = perf_counter()
        requests.ended = self._advanced
        self._committer.enqueue(requests)

    def _advanced(self) -> None:
        """Sends the answers when the batch is over, and reads on. The task is asleep, or has to go and waits for
        this."""
        requests, subscriber = self._requests, self._service.subscriber
        try:
            if requests is None or not self._put(requests) or requests.left or requests.closes or self._stopping:
                self._stream.rouse()
            else:
                self._requests = None
                if subscriber is not None and subscriber.new:  # at once: whoever asks for something now asks after it
                    self._committer.post(Job(self._service.start_subscriptions))
                if self._more:
                    self._parse()
                if self._landed is not None:
                    pass  # nothing more is begun
                elif self._events:
                    self._begin()
                    self._committer.hurry()
                else:
                    self._idle()
        except Exception as error:  # the others of the batch have nothing to do with it
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
        """Lets requests that are under way be finished, as the task has to go."""
        if requests.ended is not None:
            self._landed = trio.Event()
            with trio.CancelScope(shield=True):
                await self._landed.wait()
        self._waiters.leave(requests)

    # with the task

    async def _answer(self) -> bool:
        requests = self._requests
        if requests is None:
            self._requests = requests = self._next_requests()
            self._since = perf_counter()
            await self._advance(requests)
        try:
            while True:
                if not self._sent:
                    await self._outbox.drained()
                await self._begin_subscriptions()
                if requests.pause is not None:
                    await self._wait(requests)
                if not requests.left:
                    break
                await self._advance(requests)
            if not self._put(requests):  # of a wait that was ended
                await self._outbox.drained()
        finally:
            self._requests = None
            self._waiters.leave(requests)
        if requests.closes:
            return False
        self._parse()
        return True

    async def _advance(self, requests: RequestBatch) -> None:
        await self._committer.run(requests)
        self._put(requests)

    def _put(self, requests: RequestBatch) -> bool:
        """Sends the answers that there are. Returns whether the socket has taken them all."""
        answered, answers = requests.take_answers()
        if len(answers) == 1:
            self._sent = self._outbox.put(self._peer.send(answers[0]))
        else:
            self._sent = not answers or self._outbox.put(b"".join(map(self._peer.send, answers)))
        self._counts.answered(answered, answers, perf_counter() - self._since)
        return self._sent

    async def _wait(self, requests: RequestBatch) -> None:
        """Waits until the pause is over. Takes more requests meanwhile, up to the bound."""
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
        if not requests.is_allowed():  # the file was read again while the batch was under way
            woken.set()
        async with trio.open_nursery() as nursery:
            self._interruptible = nursery.cancel_scope
            if self._stopping or self._ended:
                nursery.cancel_scope.cancel()
            nursery.start_soon(self._read_ahead, nursery.cancel_scope)
            # On the loop's clock, which nobody sets.
            requests.deadline = trio.current_time() + pause.wait if requests.deadline is None else requests.deadline
            with trio.move_on_at(requests.deadline) as time:
                await woken.wait()
            nursery.cancel_scope.cancel()
        self._interruptible = self._woken = None
        if self._stopping or self._ended or not requests.is_allowed():
            # The client takes no messages any more, or may not: it gets none, and the next in line is woken.
            self._waiters.leave(requests)
            requests.end_wait()
        else:
            self._waiters.resume(requests)
            requests.resume(over=time.cancelled_caught)

    async def _wait_for_call(self, requests: RequestBatch, call: Call[Any]) -> None:
        """Waits until the call is done. Tells it to stop when nobody wants to wait any longer, or nobody may."""

        def stop_if_forbidden() -> None:
            if not requests.is_allowed():
                call.stop.set()

        if self._stopping or self._ended:
            call.stop.set()
        self._woken = stop_if_forbidden
        stop_if_forbidden()
        async with trio.open_nursery() as nursery:
            self._interruptible = nursery.cancel_scope
            nursery.start_soon(self._read_ahead, nursery.cancel_scope)
            await run_call(call, _WAITS if call.waits else _CALLS)
            nursery.cancel_scope.cancel()
        self._interruptible = self._woken = None
