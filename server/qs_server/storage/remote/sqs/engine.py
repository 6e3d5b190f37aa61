"""The storage `sqs`: queues whose messages an SQS endpoint keeps.

What that means for ids, order, windows and what cannot be done is in docs/sqs.md.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...disk import Disk
from ...engine import (
    SECOND,
    Clock,
    Draft,
    Feature,
    Message,
    Options,
    QueueNotEmptyError,
    Receipt,
    State,
    Stats,
    StorageError,
    UnsupportedError,
)
from ...lifecycle import Lifecycle
from ..engine import RemoteEngine, RemoteError
from .bodies import MOST_ENTRIES, batches, entry
from .connection import Connection
from .mids import Mids
from .names import check_prefix
from .patience import Patience
from .polls import Polls
from .queues import LONGEST_DELAY, LONGEST_WINDOW, PurgingError, QueuesAtSqs, Received, seconds
from .receipts import Held, Receipts

_SAME_PURGE = 5.0
"""Seconds within which a purge that SQS refuses for coming too soon is part of the one before: a purge is asked for in
slices, until nothing is left."""


@dataclass(slots=True)
class _Counts:
    """Of a queue, since the start."""

    pushed: int = 0
    delivered: int = 0
    deleted: int = 0


class SqsEngine(RemoteEngine):
    """For several threads, but for `close`. Nothing is recorded of messages' lives: a record is for one thread."""

    name: ClassVar[str] = "sqs"
    cannot: ClassVar[frozenset[Feature]] = RemoteEngine.cannot | {
        Feature.WHOLE,
        Feature.ORDER,
        Feature.EXACT,
        Feature.KEY,
        Feature.CAPACITY,
        Feature.GET,
        Feature.LIST,
        Feature.COPY,
        Feature.ANY,
        Feature.PART,
        Feature.FIGURES,
    }

    def __init__(
        self,
        root: str,
        *,
        clock: Clock,
        endpoint: str | None = None,
        region: str | None = None,
        disk: Disk | None = None,
        lifecycle: Lifecycle | None = None,
        prefix: str = "",
        patience: Patience | None = None,
    ) -> None:
        """clock: has to go with the time, as SQS's does. endpoint: a URL, None for Amazon's; region: None for that of
        the environment. prefix: of all names at SQS. Nothing is asked of SQS before the first call. StorageError."""
        check_prefix(prefix)
        patience = patience or Patience()
        self._connection = Connection(endpoint, region, patience)
        super().__init__(root, clock=clock, disk=disk, lifecycle=lifecycle)
        self._sqs = QueuesAtSqs(self._connection, prefix, clock, patience)
        self._polls = Polls(self._sqs.receive, self._sqs.give_back, patience)
        self._mids = Mids(clock)
        self._receipts = Receipts(clock)
        self._counting = threading.Lock()
        self._counts: dict[str, _Counts] = {}
        self._purged: dict[str, float] = {}

    # -- queues

    def _make(self, qid: str, options: Options) -> None:
        if options.capacity is not None:
            raise UnsupportedError("the storage 'sqs' has no capacity: SQS takes messages without a bound")
        if options.timestamps != "us":
            raise UnsupportedError("the storage 'sqs' has ids in microseconds only (timestamps)")
        self._sqs.make(qid, seconds(options.visibility, LONGEST_WINDOW, "a visibility window"))

    def _unmake(self, qid: str, *, force: bool) -> None:
        if not force and (held := sum(self._sqs.counts(qid))):
            raise QueueNotEmptyError(f"queue {qid!r} holds about {held} messages at SQS")
        self._sqs.remove(qid)
        self._receipts.forget(qid)
        self._mids.forget(qid)
        self._counts.pop(qid, None)
        self._purged.pop(qid, None)

    # -- messages that come

    def push(self, qid: str, drafts: Sequence[Draft]) -> list[int]:
        """As Engine says, but not all or none: what SQS has taken of more than one call, or before an error, stays. A
        message is stored twice when the answer to a call is lost. UnsupportedError for a key or a long delay."""
        self.options(qid)
        if not drafts:
            return []
        if any(draft.key is not None for draft in drafts):
            raise UnsupportedError("the storage 'sqs' keeps no keys: 'key' is for queues of the storage 'journal'")
        delays = [seconds(draft.delay, LONGEST_DELAY, "a delay") for draft in drafts]
        mids = self._mids.give(qid, len(drafts))
        entries = [entry(draft.payload, mid, delay) for draft, mid, delay in zip(drafts, mids, delays, strict=True)]
        for batch in batches(entries):
            try:
                self._sqs.send(qid, batch)
            except RemoteError as error:
                which = f"some of the {len(drafts)} messages" if len(drafts) > 1 else "the message"
                raise RemoteError(f"{error}; {which} may have been stored") from None
            self._count(qid, pushed=len(batch))
        return mids

    # -- messages that go

    def receive(
        self, qids: Sequence[str], count: int, visibility: int | None, max_bytes: int, *, held: bool = False
    ) -> list[Message]:
        """As Engine says, but in no promised order. held: makes no difference, SQS waits for the end of the window."""
        windows = self._windows(qids, visibility)
        if count <= 0:
            return []
        count = min(count, self._receipts.room())
        return self._hand_out(self._collect(windows, count, max_bytes), count, max_bytes)

    def receive_within(
        self,
        qids: Sequence[str],
        count: int,
        visibility: int | None,
        max_bytes: int,
        *,
        wait: float,
        stop: threading.Event,
    ) -> list[Message]:
        deadline = time.monotonic() + wait
        windows = self._windows(qids, visibility)
        # One queue is asked with the long poll itself, which finds what an immediate answer may miss.
        if len(windows) > 1 or wait <= 0 or count <= 0:
            found = self.receive(qids, count, visibility, max_bytes)
            if found or wait <= 0 or count <= 0:
                return found
        count = min(count, self._receipts.room())
        asked = min(count, MOST_ENTRIES)
        received = self._polls.wait(windows, asked, deadline, stop)
        if len(received) >= asked:
            received = self._collect(windows, count, max_bytes, received)
        return self._hand_out(received, count, max_bytes)

    def _windows(self, qids: Iterable[str], visibility: int | None) -> dict[str, int]:
        """Seconds for each queue."""
        windows = {}
        for qid in qids:
            micros = self.options(qid).visibility if visibility is None else visibility
            windows[qid] = seconds(micros, LONGEST_WINDOW, "a visibility window")
        return windows

    def _collect(
        self, windows: dict[str, int], count: int, max_bytes: int, first: Iterable[Received] = ()
    ) -> list[Received]:
        """What the queues have, ten by ten in turn, until none has any, or it is enough. first: was received before,
        and is part of it. When SQS fails on the way, what there is by then; RemoteError when that is nothing."""
        found = {(each.qid, each.message): each for each in first}
        room = max_bytes - sum(len(each.payload) for each in found.values())
        queues = list(windows)
        while queues and len(found) < count and room >= 0:
            qid = queues.pop(0)
            try:
                batch = self._sqs.receive(qid, windows[qid], count - len(found), 0)
            except StorageError:
                if not found:
                    raise
                break
            new = [each for each in batch if (each.qid, each.message) not in found]
            found |= {(each.qid, each.message): each for each in batch}
            room -= sum(len(each.payload) for each in new)
            if new and windows[qid]:  # without a window the same ones would come again
                queues.append(qid)
        return list(found.values())

    def _hand_out(self, received: list[Received], count: int, max_bytes: int) -> list[Message]:
        """The first of them, as many as are wanted and fit; the others are given back."""
        received.sort(key=lambda each: each.mid)
        fitting, room = 0, max_bytes
        for each in received[:count]:
            room -= len(each.payload)
            if room < 0 and fitting:
                break
            fitting += 1
        self._sqs.give_back(received[fitting:])
        messages = [self._handed_out(each) for each in received[:fitting]]
        messages.sort(key=lambda message: message.mid)
        return messages

    def _handed_out(self, received: Received) -> Message:
        qid = received.qid
        held = Held(received.message, received.handle, received.receives, received.until)
        mid = self._receipts.add(qid, received.mid, held)
        self._mids.saw(qid, mid)
        self._count(qid, delivered=1)
        return Message(qid, mid, "delivered", held.receives, received.pushed_at, held.until, received.payload)

    # -- messages in flight

    def delete(self, qid: str, receipt: Receipt) -> None:
        """As Engine says, of a message in flight that was received here."""
        held = self._held(qid, receipt)
        self._sqs.delete(qid, held.handle)
        self._receipts.drop(qid, receipt.mid, held)
        self._count(qid, deleted=1)

    def release(self, qid: str, receipt: Receipt, delay: int) -> int | None:
        """As Engine says, of a message in flight that was received here. UnsupportedError for a long delay."""
        held = self._held(qid, receipt)
        hidden = seconds(delay, LONGEST_WINDOW, "a delay of what was received")
        now = self._clock()
        self._sqs.hide(qid, held.handle, hidden)
        self._receipts.drop(qid, receipt.mid, held)
        return now + hidden * SECOND if hidden else None

    def extend(self, qid: str, receipt: Receipt, visibility: int | None) -> int:
        """As Engine says, of what was received here; 12 hours after the receive is the latest. UnsupportedError."""
        held = self._held(qid, receipt)
        window = self._windows([qid], visibility)[qid]
        until = self._clock() + window * SECOND
        self._sqs.hide(qid, held.handle, window)
        self._receipts.extend(qid, receipt.mid, held, until)
        return until

    def _held(self, qid: str, receipt: Receipt) -> Held:
        self.options(qid)
        return self._receipts.find(qid, receipt)

    def purge(self, qid: str, upto: int, count: int) -> int:
        """Removes all messages, whatever upto and count are: SQS cannot do less. About how many there were. RemoteError
        when SQS did it within the last minute."""
        self.options(qid)
        held = sum(self._sqs.counts(qid))
        try:
            self._sqs.purge(qid)
        except PurgingError:
            if time.monotonic() - self._purged.get(qid, -_SAME_PURGE) < _SAME_PURGE:
                return 0
            raise
        self._purged[qid] = time.monotonic()
        self._receipts.forget(qid)
        self._count(qid, deleted=held)
        return held

    def last_mid(self, qid: str) -> int:
        """The greatest id that was given or seen here since the start, -1 when none."""
        self.options(qid)
        return self._mids.last(qid)

    # -- what SQS cannot do

    def get(self, qid: str, mid: int, *, peek: bool, visibility: int | None) -> Message:
        raise self._cannot(qid, "finds no message by its id: receive what is there")

    def list_mids(self, qid: str, state: State, count: int, after: int) -> list[int]:
        raise self._cannot(qid, "does not list messages: queue-stats says about how many there are")

    def read(self, qid: str, receipt: Receipt) -> Message:
        raise self._cannot(qid, "gives a payload with the receive only")

    def copy(self, qid: str, mid: int, into: Sequence[str]) -> None:
        raise self._cannot(qid, "does not copy messages: push the payload to the other queues")

    def _cannot(self, qid: str, what: str) -> UnsupportedError:
        self.options(qid)
        return UnsupportedError(f"queue {qid!r} has the storage 'sqs', and SQS {what}")

    # -- figures

    def prepare_stats(self, qid: str) -> bool:
        self.options(qid)
        return False

    def stats(self, qid: str) -> Stats:
        """Messages by state as SQS counts them, which is about right a minute later. new: those that are not in flight,
        because SQS does not say which were never retrieved. bytes and oldest: not known."""
        self.options(qid)
        counts = self._sqs.counts(qid)
        own = self._counts.get(qid) or _Counts()
        return Stats(
            new=counts.ready + counts.delayed,
            ready=counts.ready,
            in_flight=counts.in_flight,
            delayed=counts.delayed,
            pushed=own.pushed,
            delivered=own.delivered,
            expired=self._receipts.expired(qid),
            deleted=own.deleted,
            storage=self.name,
        )

    def _count(self, qid: str, *, pushed: int = 0, delivered: int = 0, deleted: int = 0) -> None:
        with self._counting:
            counts = self._counts.setdefault(qid, _Counts())
            counts.pushed += pushed
            counts.delivered += delivered
            counts.deleted += deleted

    def close(self) -> None:
        self._connection.close()
        self._polls.close()
        self._connection.disconnect()
