"""One page of a queue's messages. They are peeked at and not received, with two requests however many they are."""

from collections.abc import Iterable
from dataclasses import dataclass

from qs_client import AsyncQueueClient, Delivery, Forbidden, NotImplementedByServer, QueueInfo

from .history import depth_of
from .payloads import preview

MESSAGES = 25
"""Messages on one page."""
_LOOKED_AT = 1 << 20
"""Bytes of payloads that one page asks for: by the mean size of the queue's messages, this bounds their number. A page
that gets more, because its messages are larger than the mean, is asked for less often."""
STATES = ("all", "new", "ready", "in-flight", "delayed")


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in the table."""

    mid: int
    message: Delivery | None = None
    """None if a claim holds the message, if it has gone meanwhile, or if it was not asked for because these messages
    are large."""
    text: str = ""
    """The beginning of its payload."""
    reason: str = ""
    """The beginning of the reason that a consumer gave last."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of messages."""

    entries: list[Entry]
    next_after: int | None = None
    """The id after which the next page begins, None on the last page."""
    refused: str = ""
    """The reason why the queue server shows no messages, "" if it shows them."""

    @property
    def is_heavy(self) -> bool:
        """Tells whether the payloads on the page are megabytes."""
        return sum(len(entry.message.payload) for entry in self.entries if entry.message) > _LOOKED_AT

    def has(self, status: str) -> bool:
        """Tells whether a message on the page has this status."""
        return any(entry.message is not None and entry.message.status == status for entry in self.entries)

    @property
    def has_dead(self) -> bool:
        """Tells whether a message on the page is a dead letter."""
        return any(entry.message is not None and entry.message.dead_from for entry in self.entries)

    @property
    def has_reasons(self) -> bool:
        """Tells whether a message on the page has a reason to show."""
        return self.has_dead or any(entry.reason for entry in self.entries)


async def list_page(client: AsyncQueueClient, queue: QueueInfo, state: str, after: int | None) -> Listing:
    """Returns a page of the messages of a queue in a state, oldest first. queue: the figures of the queue; after: only
    messages with greater ids."""
    most = max(_LOOKED_AT * depth_of(queue) // max(queue.bytes or 0, 1), 1)
    try:
        mids = await list_ids(client, queue.qid, state, after, MESSAGES + 1)  # one more, to know of a next page
        more = len(mids) > MESSAGES
        mids = mids[:MESSAGES]
        # One request: the messages that do not fit into its answer are shown without their payloads.
        found = await client.peek_many(queue.qid, mids[:most], once=True) if mids else []
    except (Forbidden, NotImplementedByServer) as error:  # may see only figures, or the storage cannot
        return Listing([], refused=error.text)
    return Listing(list(_entries(mids, found)), mids[-1] if more else None)


async def list_ids(client: AsyncQueueClient, qid: str, state: str, after: int | None, most: int) -> list[int]:
    """Returns at most so many ids of a queue's messages in a state, oldest first. after: only greater ids."""
    found: list[int] = []
    async for mid in client.list_messages(qid, state=state, after=after):
        found.append(mid)
        if len(found) == most:
            break
    return found


def _entries(mids: Iterable[int], found: Iterable[Delivery]) -> Iterable[Entry]:
    messages = {message.mid: message for message in found}
    for mid in mids:
        message = messages.get(mid)
        if message is None:
            yield Entry(mid)
        else:
            yield Entry(mid, message, preview(message.payload), preview((message.reason or "").encode()))
