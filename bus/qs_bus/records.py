"""A message while it is in the bus's hands, and what the two sides that share it know of each other.

A record comes from a `Source`, which is a feed, and goes to one or more `Member`s, which are subscriptions. Feeds and
subscriptions are written against these protocols, so that neither imports the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from qs_schemas import GetMessage, serialize


class Source(Protocol):
    """The feed of a record, as its members use it. They tell the feed what becomes of each record."""

    @property
    def label(self) -> str:
        """The queue that subscribers know the record's queue by."""

    def handled(self, record: Record) -> None:
        """A member has handled the record."""

    def let_go(self, record: Record) -> None:
        """A member has gone without handling the record, or will not handle it."""

    def doubt(self, record: Record) -> None:
        """A member may have got the record by mistake."""

    def resend(self, record: Record, member: Member) -> None:
        """A member has released the record, and is ready to get it again."""

    def count_delayed(self, more: int) -> None:
        """So many records more, or less, were released with a delay that has not passed yet."""

    def on_room(self, member: Member) -> None:
        """A member has room for another record, or has left some to others."""

    def unkeep(self, record: Record) -> None:
        """A member needs the record's payload no longer."""

    def fetch(self, waiting: Iterable[Record]) -> None:
        """Asks the server again for the payloads of the first of these records, which may be of other feeds too."""

    def fetch_payload(self, record: Record) -> None:
        """Asks the server again for the payload of one record of this feed."""

    def leave(self, member: Member) -> None:
        """A member gets no more records."""


class Member(Protocol):
    """A subscription, as the feeds use it."""

    @property
    def feeds(self) -> list[Source]:
        """The feeds that it is a member of. A feed adds itself when the member joins."""

    @property
    def ack(self) -> bool:
        """Whether the client acknowledges what it has handled."""

    @property
    def prefetch(self) -> int:
        """How many messages a client that acknowledges may have unacknowledged."""

    @property
    def form(self) -> tuple[str | None, bool]:
        """What its documents differ in from those for other members: the arguments of `Record.document`."""

    @property
    def has_room(self) -> bool:
        """Whether a record can be sent now."""

    @property
    def blocked(self) -> bool:
        """Whether records wait for room."""

    def offer(self, record: Record, document: bytes) -> None:
        """Sends a record, or holds it until there is room."""

    def send(self, record: Record, document: bytes) -> None:
        """Sends a record."""

    def hold(self, record: Record) -> None:
        """Holds a record until there is room."""

    def drop_held(self, record: Record) -> bool:
        """Drops a record that waits for room. Returns whether it did wait."""

    def pump(self) -> None:
        """Sends the records that wait, as far as there is room."""


@dataclass(slots=True, eq=False)
class Record:
    """A message that the server has delivered to the bus and that is not deleted or given back yet.

    payload: None when it is not in memory; size: bytes of the payload; waiting: how many members have not handled the
    message yet; handled: whether a member has; keepers: how many members wait for room, and need the payload for that;
    done: whether no member is waited for any more; fetching: whether the server has been asked for the payload again;
    doubtful: how many of those waited for may have got the message by mistake.
    """

    feed: Source
    mid: int
    receives: int | None
    pushed_at: int | None
    payload: bytes | None
    size: int
    waiting: int = 0
    handled: bool = False
    keepers: int = 0
    done: bool = False
    fetching: bool = False
    doubtful: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """The queue and the id that a subscriber knows the message by."""
        return self.feed.label, self.mid

    def document(self, req: str | None, early: bool) -> bytes:
        """Returns the document that delivers the message. The payload has to be in memory. req: of the subscription;
        early: whether the client's documents end with an empty line, see `serialize`."""
        return serialize(
            GetMessage(
                self.feed.label,
                self.mid,
                payload=self.payload,
                status="delivered",
                receives=self.receives,
                pushed_at=self.pushed_at,
                req=req,
                type="response",
            ),
            early,
        )
