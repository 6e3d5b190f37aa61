"""The feed of a durable name: each message goes to one member."""

from collections import deque

from .feeds import PREFETCH, Feed, ServerRequests
from .names import DurableName, queue_of
from .records import Member, Record


class Share(Feed):
    """Gives each message to one member, in turn, and to another when that member goes."""

    def __init__(self, name: DurableName, upstream: ServerRequests, memory: int) -> None:
        """memory: see `Feed`."""
        super().__init__(queue_of(name), name.qid, upstream, memory)
        self.name = name
        self._backlog: deque[Record] = deque()
        self._delayed = 0

    @property
    def wanted(self) -> bool:
        return bool(self.members) and not self._stopped

    def join(self, member: Member) -> None:
        self._set_prefetch(member.prefetch)
        super().join(member)
        self._resume()

    def leave(self, member: Member) -> None:
        self._set_prefetch(-member.prefetch)
        super().leave(member)
        if not self.members:
            backlog, self._backlog = self._backlog, deque()
            for record in backlog:
                self.release_payload(record)
                self._count_down(record)

    def _set_prefetch(self, more: int) -> None:
        wanted = sum(member.prefetch for member in self.members) + more
        self.prefetch = max(min(wanted, PREFETCH), 1) + self._delayed

    def count_delayed(self, more: int) -> None:
        """Raises the prefetch by the number of delayed messages: they do not count against what the members may
        hold."""
        self._delayed += more
        self._set_prefetch(0)
        self._upstream.sync(self)

    def _distribute(self, record: Record) -> None:
        record.waiting = 1
        member = None if self._backlog else self._next()
        if member is not None:
            document = record.document(*member.form)
            self.keep_payload(record)
            self._take_turn(member)
            member.send(record, document)
        elif self.members:
            self._backlog.append(record)
            record.keepers += 1
            self.keep_payload(record)
        else:
            self._count_down(record)

    def _next(self) -> Member | None:
        """Returns the first member in turn that has room, or None."""
        return next((member for member in self.members if member.has_room), None)

    def _take_turn(self, member: Member) -> None:
        del self.members[member]
        self.members[member] = None

    def _nack(self, record: Record, member: Member, delay: float | None, *, counts: bool) -> None:
        self._give_back(record, delay, counts=counts)

    def let_go(self, record: Record) -> None:
        if not self.members or (self.counted and record.handed_out):
            super().let_go(record)
            return
        record.keepers += 1
        self._backlog.appendleft(record)

    def resend(self, record: Record, member: Member) -> None:
        self.let_go(record)
        self._resume()

    def on_room(self, member: Member) -> None:
        self._resume()

    def _resume(self) -> None:
        while self._backlog and (member := self._next()) is not None:
            record = self._backlog[0]
            if record.payload is None:
                self.fetch(self._backlog)
                return
            self._backlog.popleft()
            document = record.document(*member.form)
            self.release_payload(record)
            self._take_turn(member)
            member.send(record, document)

    def _lost(self, record: Record) -> None:
        self._backlog.remove(record)
        self.release_payload(record)
        self._count_down(record)
