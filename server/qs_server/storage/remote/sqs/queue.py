"""One queue at SQS: what can be done with its messages, but for receiving them."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ...engine import SECOND, Clock, Draft, Message, Options, Receipt, State, Stats, UnsupportedError
from ..engine import RemoteError
from .bodies import batches, entry
from .mids import Mids
from .queues import LONGEST_DELAY, LONGEST_WINDOW, PurgingError, QueuesAtSqs, seconds
from .receipts import Held, Receipts

_SAME_PURGE = 5.0
"""Seconds within which a purge that SQS refuses for coming too soon is part of the one before: a purge is asked for in
slices, until nothing is left."""


@dataclass(slots=True)
class Counts:
    """What has happened to the messages of a queue since the start."""

    pushed: int = 0
    delivered: int = 0
    deleted: int = 0


@dataclass(slots=True)
class SqsState:
    """What the queues of one engine have in common. purged: by queue, when it was purged last, on time.monotonic."""

    at: QueuesAtSqs
    clock: Clock
    mids: Mids
    receipts: Receipts
    counts: dict[str, Counts] = field(default_factory=dict)
    purged: dict[str, float] = field(default_factory=dict)
    counting: threading.Lock = field(default_factory=threading.Lock)

    def forget(self, qid: str) -> None:
        """The queue has been removed."""
        self.receipts.forget(qid)
        self.mids.forget(qid)
        self.counts.pop(qid, None)
        self.purged.pop(qid, None)

    def count(self, qid: str, *, pushed: int = 0, delivered: int = 0, deleted: int = 0) -> None:
        """Counts what has happened."""
        with self.counting:
            counts = self.counts.setdefault(qid, Counts())
            counts.pushed += pushed
            counts.delivered += delivered
            counts.deleted += deleted


class SqsQueue:
    """A queue, for several threads. Nothing is recorded of its messages' lives."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None

    def __init__(self, qid: str, options: Options, state: SqsState) -> None:
        self.qid = qid
        self.options = options
        self._state = state

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """As Engine says, but not all or none: what SQS has taken of more than one call, or before an error, stays. A
        message is stored twice when the answer to a call is lost. UnsupportedError for a key or a long delay."""
        if not drafts:
            return []
        if any(draft.key is not None for draft in drafts):
            raise UnsupportedError("the storage 'sqs' keeps no keys: 'key' is for queues of the storage 'journal'")
        delays = [seconds(draft.delay, LONGEST_DELAY, "a delay") for draft in drafts]
        mids = self._state.mids.give(self.qid, len(drafts))
        entries = [entry(draft.payload, mid, delay) for draft, mid, delay in zip(drafts, mids, delays, strict=True)]
        for batch in batches(entries):
            try:
                self._state.at.send(self.qid, batch)
            except RemoteError as error:
                which = f"some of the {len(drafts)} messages" if len(drafts) > 1 else "the message"
                raise RemoteError(f"{error}; {which} may have been stored") from None
            self._state.count(self.qid, pushed=len(batch))
        return mids

    # -- messages in flight

    def delete(self, receipt: Receipt) -> None:
        """As Engine says, of a message in flight that was received here."""
        held = self._held(receipt)
        self._state.at.delete(self.qid, held.handle)
        self._state.receipts.drop(self.qid, receipt.mid, held)
        self._state.count(self.qid, deleted=1)

    def release(self, receipt: Receipt, delay: int) -> int | None:
        """As Engine says, of a message in flight that was received here. UnsupportedError for a long delay."""
        held = self._held(receipt)
        hidden = seconds(delay, LONGEST_WINDOW, "a delay of what was received")
        now = self._state.clock()
        self._state.at.hide(self.qid, held.handle, hidden)
        self._state.receipts.drop(self.qid, receipt.mid, held)
        return now + hidden * SECOND if hidden else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """As Engine says, of what was received here; 12 hours after the receive is the latest. UnsupportedError."""
        held = self._held(receipt)
        micros = self.options.visibility if visibility is None else visibility
        window = seconds(micros, LONGEST_WINDOW, "a visibility window")
        until = self._state.clock() + window * SECOND
        self._state.at.hide(self.qid, held.handle, window)
        self._state.receipts.extend(self.qid, receipt.mid, held, until)
        return until

    def _held(self, receipt: Receipt) -> Held:
        return self._state.receipts.find(self.qid, receipt)

    def purge(self, upto: int, count: int) -> int:
        """Removes all messages, whatever upto and count are: SQS cannot do less. About how many there were. RemoteError
        when SQS did it within the last minute."""
        held = sum(self._state.at.counts(self.qid))
        try:
            self._state.at.purge(self.qid)
        except PurgingError:
            if time.monotonic() - self._state.purged.get(self.qid, -_SAME_PURGE) < _SAME_PURGE:
                return 0
            raise
        self._state.purged[self.qid] = time.monotonic()
        self._state.receipts.forget(self.qid)
        self._state.count(self.qid, deleted=held)
        return held

    @property
    def last_mid(self) -> int:
        """The greatest id that was given or seen here since the start, -1 when none."""
        return self._state.mids.last(self.qid)

    # -- what SQS cannot do

    def get(self, mid: int, *, peek: bool, visibility: int | None) -> Message:
        raise self._cannot("finds no message by its id: receive what is there")

    def list_mids(self, state: State, count: int, after: int) -> list[int]:
        raise self._cannot("does not list messages: queue-stats says about how many there are")

    def read(self, receipt: Receipt) -> Message:
        raise self._cannot("gives a payload with the receive only")

    def _cannot(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"queue {self.qid!r} has the storage 'sqs', and SQS {what}")

    # -- figures

    def prepare_stats(self) -> bool:
        """Has nothing to prepare."""
        return False

    def stats(self) -> Stats:
        """Messages by state as SQS counts them, which is about right a minute later. new: those that are not in flight,
        because SQS does not say which were never retrieved. bytes and oldest: not known."""
        counts = self._state.at.counts(self.qid)
        own = self._state.counts.get(self.qid) or Counts()
        return Stats(
            new=counts.ready + counts.delayed,
            ready=counts.ready,
            in_flight=counts.in_flight,
            delayed=counts.delayed,
            pushed=own.pushed,
            delivered=own.delivered,
            expired=self._state.receipts.expired(self.qid),
            deleted=own.deleted,
            storage=self.options.storage,
        )
