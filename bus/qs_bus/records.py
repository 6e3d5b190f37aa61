"""A message that the bus holds, and the protocols between feeds and subscriptions.

A record comes from a `Source`, a feed, and goes to one or more `Member`s, subscriptions. Neither imports the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qs_schemas import GetMessage, serialize


class Origin(NamedTuple):
    """Says what a dead letter was. The fields are those of `GetMessage`."""

    dead_from: str
    dead_mid: int | None
    dead_receives: int | None
    dead_at: int | None
    dead_reason: str | None


def origin_of(message: GetMessage) -> Origin | None:
    """Returns what a message was if it is a dead letter, None for any other."""
    if message.dead_from is None:
        return None
    return Origin(message.dead_from, message.dead_mid, message.dead_receives, message.dead_at, message.dead_reason)


class Release(NamedTuple):
    """A message to release on the server. receives: as the server sent it; delay: seconds; counts: False if no client
    has got it, or the client says that it did not try; awaited: a subscriber waits for the message to come again;
    reason: of the client that released it, or the one that came with the message."""

    mid: int
    receives: int | None
    delay: float | None = None
    counts: bool = True
    awaited: bool = False
    reason: str | None = None


class Source(Protocol):
    """The feed of a record, as its members use it. They report what becomes of each record."""

    @property
    def label(self) -> str:
        """The queue that subscribers asked for."""

    def handled(self, record: Record) -> None:
        """Reports that a member has handled the record."""

    def let_go(self, record: Record) -> None:
        """Reports that a member has gone without handling the record, or will not handle it."""

    def doubt(self, record: Record) -> None:
        """Reports that a member may have got the record by mistake."""

    def resend(self, record: Record, member: Member) -> None:
        """Reports that a member has released the record and can get it again."""

    def nack(self, record: Record, member: Member, delay: float | None, *, counts: bool) -> bool:
        """Reports that a member has released the record, to have the server count that. Returns False, and does
        nothing, if the server counts no receives of the queue. delay: seconds until the server sends the message again;
        counts: False if the receive is not to count."""

    def count_delayed(self, more: int) -> None:
        """Adds to the number of records that were released with a delay that has not passed yet. more: may be
        negative."""

    def on_room(self, member: Member) -> None:
        """Reports that a member has room for another record, or has left some to others."""

    def release_payload(self, record: Record) -> None:
        """Reports that a member no longer needs the record's payload."""

    def fetch(self, waiting: Iterable[Record]) -> None:
        """Fetches the payloads of the first of these records from the server again. They may belong to other feeds
        too."""

    def fetch_payload(self, record: Record) -> None:
        """Fetches the payload of one record of this feed again."""

    def leave(self, member: Member) -> None:
        """Reports that a member gets no more records."""


class Member(Protocol):
    """A subscription, as the feeds use it."""

    @property
    def feeds(self) -> list[Source]:
        """The feeds that it is a member of. A feed adds itself when the member joins."""

    @property
    def ack(self) -> bool:
        """Tells whether the client acknowledges."""

    @property
    def prefetch(self) -> int:
        """The bound of unacknowledged messages of an acknowledging client."""

    @property
    def form(self) -> tuple[str | None, bool]:
        """The arguments of `Record.document` by which its documents differ from those for other members."""

    @property
    def has_room(self) -> bool:
        """Tells whether a record can be sent now."""

    @property
    def blocked(self) -> bool:
        """Tells whether records wait for room."""

    def offer(self, record: Record, document: bytes) -> None:
        """Sends a record, or holds it until there is room."""

    def send(self, record: Record, document: bytes) -> None:
        """Sends a record."""

    def hold(self, record: Record) -> None:
        """Holds a record until there is room."""

    def drop_held(self, record: Record) -> bool:
        """Drops a record that waits for room. Returns False if it did not wait."""

    def pump(self) -> None:
        """Sends the held records, as far as there is room."""


@dataclass(slots=True, eq=False)
class Record:
    """A message that the server has delivered to the bus, until it is deleted or released.

    payload: None when it is not in memory; size: bytes of the payload; waiting: how many members have not handled it
    yet; handled: a member has handled it; keepers: how many members wait for room and need the payload; done: no member
    is waited for; fetching: the payload is being fetched again; doubtful: how many of the members waited for may have
    got it by mistake; handed_out: a member has got it that asked for it, or is being sent it; origin: of a dead letter;
    reason: of the last release that gave one, whether the server or a member says so.
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
    handed_out: bool = False
    origin: Origin | None = None
    reason: str | None = None

    @property
    def key(self) -> tuple[str, int]:
        """The queue and the id under which a subscriber knows the message."""
        return self.feed.label, self.mid

    def document(self, req: str | None, early: bool) -> bytes:
        """Returns the document that delivers the message; the payload must be in memory. req: of the subscription;
        early: end the document with an empty line, see `serialize`."""
        message = GetMessage(
            self.feed.label,
            self.mid,
            payload=self.payload,
            status="delivered",
            receives=self.receives,
            pushed_at=self.pushed_at,
            reason=self.reason,
            req=req,
            type="response",
        )
        if self.origin is not None:
            for name, value in self.origin._asdict().items():
                setattr(message, name, value)
        return serialize(message, early)
