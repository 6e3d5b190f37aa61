"""Implements the feed of one durable name, whose members share the messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from .feeds import PREFETCH, DeliveryBatch, DurableName, Feed, HeldMessage, Member, ServerRequests
from .queue_names import queue_of


class Share(Feed):
    """Gives each message of a durable name to one member, round robin, and to another member if the first one leaves.

    Ensures, beside what a feed does:
    1. A message is with one member at a time, and a member gets a message only if it can be sent one now.
    2. The server delivers no more messages than the members together may hold, plus the delayed ones.
    3. Messages that a member left behind go to other members before any newer ones, in the order of their ids.

    Assumes that only the bus takes messages from the queue of a name. A share must not keep messages when the last
    member has left: they go back to the queue, for another bus or for a member that comes later.
    """

    def __init__(self, name: DurableName, upstream: ServerRequests, memory: int) -> None:
        """memory: see `Feed`."""
        super().__init__(queue_of(name), name.qid, upstream, memory)
        self.name = name
        self.where: str | None = None
        """The condition of the name, as the options of its queue have it."""
        self.fault = ""
        """The reason why the condition cannot be used; empty if it can. The queue gets every message then."""
        self._backlog: deque[HeldMessage] = deque()
        self._delayed = 0

    @property
    def wanted(self) -> bool:
        return bool(self.members) and not self._stopped

    def join(self, member: Member) -> None:
        self._set_prefetch(member.prefetch)  # before the feed is synchronized, so that one request says all
        super().join(member)
        self._resume()  # messages may have waited for a member that can take them

    def leave(self, member: Member) -> None:
        self._set_prefetch(-member.prefetch)
        super().leave(member)
        if not self.members:
            # The members' own messages follow by `not_handled`, which releases them now that no member is left.
            backlog, self._backlog = self._backlog, deque()
            for message in backlog:
                self.release_payload(message)
                self._count_down(message)

    def _set_prefetch(self, more: int) -> None:
        # No more than the members can hold: other messages would wait here, in flight and of use to nobody.
        wanted = sum(member.prefetch for member in self.members) + more
        self.prefetch = max(min(wanted, PREFETCH), 1) + self._delayed

    def count_delayed(self, more: int) -> None:
        """Changes the number of delayed messages, and raises the prefetch by that number, because delayed messages do
        not count against the members' prefetch."""
        self._delayed += more
        self._set_prefetch(0)
        self._upstream.sync(self)

    def _distribute(self, messages: list[HeldMessage]) -> None:
        for message in messages:
            message.unhandled = 1
            if not self.members:
                self._count_down(message)
        if not self.members:
            return
        sent = 0 if self._backlog else self._send_in_turn(messages)  # nothing overtakes the backlog
        for message in messages[:sent]:
            self.keep_payload(message)
        for message in messages[sent:]:
            self._backlog.append(message)
            message.awaiting_room += 1
            self.keep_payload(message)
        if 0 < sent < len(messages):
            self._resume()  # the sockets may have taken all that was sent, so that there is room again

    def _send_in_turn(self, messages: Iterable[HeldMessage]) -> int:
        """Sends messages whose payloads are in memory to the members in turn, as long as one has room: each message to
        the member that has waited longest. What a member gets is sent together. Returns the number of messages sent."""
        rooms: dict[Member, list[int]] = {}  # messages and bytes; of those members whose turn has come
        shares: dict[Member, tuple[list[HeldMessage], list[bytes]]] = {}
        sent = 0
        for message in messages:
            for member in self.members:
                room = rooms.get(member) or rooms.setdefault(member, list(member.room))
                if room[0] > 0 and room[1] > 0:
                    break
            else:
                break
            if message.payload is None:
                break
            document = message.document(*member.form)
            room[0] -= 1
            room[1] -= len(document)
            share, documents = shares.setdefault(member, ([], []))
            share.append(message)
            documents.append(document)
            if len(self.members) > 1:  # the last in the order gets the next turn last
                del self.members[member]
                self.members[member] = None
            sent += 1
        for member, (share, documents) in shares.items():
            batch = DeliveryBatch(share, {member.form: documents})
            member.send(batch)
            batch.report()
        return sent

    def _release_for(self, message: HeldMessage, member: Member, delay: float | None, *, counts: bool) -> None:
        self._release(message, delay, counts=counts)

    def not_handled(self, message: HeldMessage) -> None:
        # If the server counts receives, it has to be told of a failed one, and sends the message again.
        if not self.members or (self.counted and message.delivered):
            super().not_handled(message)
            return
        # In front: it is older than the backlog. Its payload was dropped when it was sent, and is fetched again.
        message.awaiting_room += 1
        self._backlog.appendleft(message)

    def resend(self, message: HeldMessage, member: Member) -> None:
        self.not_handled(message)
        self._resume()

    def on_room(self, member: Member) -> None:
        self._resume()

    def _resume(self) -> None:
        while self._backlog:
            sent = self._send_in_turn(self._backlog)
            for _ in range(sent):
                self.release_payload(self._backlog.popleft())
            if not sent:
                if self._backlog[0].payload is None and any(member.room[0] > 0 for member in self.members):
                    self.fetch(self._backlog)
                return

    def _lost(self, message: HeldMessage) -> None:
        self._backlog.remove(message)
        self.release_payload(message)
        self._count_down(message)
