"""One connection: its requests, in groups of what is at hand, applied and answered in order."""

import trio

from qs_schemas import Message, Peer
from qs_serving.conversation import CHUNK, Conversation
from qs_serving.options import ServerLimits
from qs_serving.transport import Transport

from .committer import Committer
from .group import Group, weight
from .handlers import Service
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
        service: Service,
        committer: Committer,
        waiters: Waiters,
    ) -> None:
        super().__init__(stream, peer, limits, writers)
        self._service = service
        self._committer = committer
        self._waiters = waiters

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

    async def _read_ahead(self, waiting: trio.CancelScope) -> None:
        """Takes requests that come during a wait, up to the bounds; then the client has to wait too."""
        limits = self._limits
        try:
            while len(self._events) < limits.pipeline and self._unanswered < limits.outbox and not self._ended:
                self._take(await self._stream.receive_some(CHUNK))
        except trio.BrokenResourceError:
            self._ended = True  # sending will say so again
        if self._ended:
            waiting.cancel()
