"""One connection: its requests, in groups of what is at hand, applied and answered in order."""

from functools import partial
from typing import Any

import trio

from qs_schemas import Limits, Message, Peer
from qs_serving.conversation import Conversation
from qs_serving.options import ServerLimits
from qs_serving.transport import Transport

from .committer import Committer
from .group import Chore, Group, weight
from .service import Service
from .storage.engine import Engine
from .subscriber import Subscriber, cost
from .subscriptions import Subscriptions
from .waiting import Waiters

_GROUP = 256
"""Requests of one connection that one batch takes, so that a busy one does not keep the others waiting."""
_MESSAGES = 1000
"""And messages, where the requests are lists."""


class Connection(Conversation):
    """A client of the queue server."""

    def __init__(
        self,
        stream: Transport,
        peer: Peer,
        limits: ServerLimits,
        writers: trio.Nursery,
        *,
        wire: Limits,
        storage: Engine,
        subscriptions: Subscriptions,
        committer: Committer,
        waiters: Waiters,
    ) -> None:
        super().__init__(stream, peer, limits, writers)
        self._subscriptions = subscriptions
        self._service = Service(storage, subscriptions, self._become_subscriber, wire.list_length, wire.document)
        self._committer = committer
        self._waiters = waiters

    # -- subscriptions --------------------------------------------------------------------------------------------

    def _become_subscriber(self) -> Subscriber:
        return Subscriber(self._limits.outbox, self._deliver)

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
            self._committer.post(Chore(partial(self._subscriptions.feed_all, subscriber)))

    async def _begin_subscriptions(self) -> None:
        """After the answers that say so."""
        subscriber = self._service.subscriber
        if subscriber is not None and subscriber.new:
            await self._committer.run(Chore(partial(self._subscriptions.start, subscriber)))

    async def leave(self) -> None:
        """The client has gone: what it was sent and has not acknowledged becomes visible again, batch by batch."""
        subscriber = self._service.subscriber
        if subscriber is not None:
            await self._committer.run(Chore(partial(self._subscriptions.drop, subscriber)))

    # -- requests -------------------------------------------------------------------------------------------------

    async def _answer(self) -> bool:
        events = [self._events.popleft()]
        held = weight(events[0])
        while self._events and len(events) < _GROUP and (held := held + weight(self._events[0])) <= _MESSAGES:
            events.append(self._events.popleft())
        group = Group(events, self._service, self._limits.outbox)
        try:
            while not group.done:
                await self._committer.run(group)
                await self._send(group.take_answers())
                await self._begin_subscriptions()
                if group.pause is not None:
                    await self._wait(group)
            await self._send(group.take_answers())  # of a wait that was ended
        finally:
            self._waiters.leave(group)
        if group.closes:
            return False
        self._parse()
        return True

    async def _send(self, answers: list[Message]) -> None:
        if answers:
            await self._outbox.send(b"".join(map(self._peer.send, answers)))

    async def _wait(self, group: Group) -> None:
        """Until what the group waits for is over. Meanwhile, what comes in is taken up to the bound."""
        pause = group.pause
        if pause is None or not pause.qids:
            await trio.lowlevel.checkpoint()
            group.resume()
            return
        woken = self._waiters.woken(group)
        async with trio.open_nursery() as nursery:
            self._interruptible = nursery.cancel_scope
            if self._stopping or self._ended:
                nursery.cancel_scope.cancel()
            nursery.start_soon(self._read_ahead, nursery.cancel_scope)
            # On the loop's clock, which nobody sets.
            group.deadline = trio.current_time() + pause.wait if group.deadline is None else group.deadline
            with trio.move_on_at(group.deadline) as time:
                await woken.wait()
            nursery.cancel_scope.cancel()
        self._interruptible = None
        if self._stopping or self._ended:
            # Nobody may be there any more to take what comes: it answers with nothing, and the next in line is woken.
            self._waiters.leave(group)
            group.end_wait()
        else:
            self._waiters.resume(group)
            group.resume(over=time.cancelled_caught)
