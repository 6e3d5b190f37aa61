"""One queue at SQS: what can be done with its messages, but for receiving them."""

import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from ...engine import SECOND, Clock, Draft, Message, Options, Receipt, RemoteError, State, Stats, UnsupportedError
from ..counters import Counters
from .api import LONGEST_DELAY, LONGEST_WINDOW, PurgingError, SqsApi, seconds, window_in_seconds
from .messages import batches, encode
from .receipts import Receipts

_SAME_PURGE = 5.0
"""Seconds within which a purge that SQS refuses for coming too soon is part of the one before: a purge is asked for in
slices, until nothing is left."""


class SqsQueue:
    """A queue; see Queue. Several threads may use it. Methods also raise RemoteError."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None

    def __init__(  # noqa: PLR0917
        self, qid: str, options: Options, api: SqsApi, receipts: Receipts, clock: Clock, given: int = -1
    ) -> None:
        """given: the greatest id that a queue of this name has given before; none is given twice."""
        self.qid = qid
        self.options = options
        self.counters = Counters()
        self.given = given
        self.last_mid = -1
        """The greatest id that was given or seen here since the start."""
        self._api = api
        self._receipts = receipts
        self._clock = clock
        self._numbering = threading.Lock()
        self._purged = -_SAME_PURGE
        """When the queue was purged last, as of time.monotonic."""

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Stores messages, but not all or none: what SQS has taken of more than one call, or before an error, stays. A
        message is stored twice when the answer to a call is lost. UnsupportedError for a key or a long delay."""
        if not drafts:
            return []
        if any(draft.key is not None for draft in drafts):
            raise UnsupportedError("the storage 'sqs' keeps no keys: 'key' is for queues of the storage 'journal'")
        delays = [seconds(draft.delay, LONGEST_DELAY, "a delay") for draft in drafts]
        mids = self._give_mids(len(drafts))
        entries = [encode(draft.payload, mid, delay) for draft, mid, delay in zip(drafts, mids, delays, strict=True)]
        for batch in batches(entries):
            try:
                self._api.send(self.qid, batch)
            except RemoteError as error:
                which = f"some of the {len(drafts)} messages" if len(drafts) > 1 else "the message"
                raise RemoteError(f"{error}; {which} may have been stored") from None
            self.counters.add("pushed", len(batch))
        return mids

    def _give_mids(self, count: int) -> list[int]:
        """Returns increasing ids, greater than all that were given before, but not than all that were seen: another
        program may have sent any number."""
        with self._numbering:
            first = max(self._clock(), self.given + 1)
            self.given = first + count - 1
            self.last_mid = max(self.given, self.last_mid)
        return list(range(first, first + count))

    def note_seen(self, mid: int) -> None:
        """Takes in the id of a message that was received."""
        with self._numbering:
            self.last_mid = max(mid, self.last_mid)

    def window(self, visibility: int | None) -> int:
        """Returns the seconds for which a received message is hidden. UnsupportedError."""
        return window_in_seconds(self.options.visibility if visibility is None else visibility)

    # -- messages in flight, which were received here

    def delete(self, receipt: Receipt) -> None:
        held = self._receipts.find(self.qid, receipt)
        self._api.delete(self.qid, held.handle)
        self._receipts.drop(self.qid, receipt.mid, held)
        self.counters.add("deleted")

    def release(self, receipt: Receipt, delay: int) -> int | None:
        """UnsupportedError for a long delay."""
        held = self._receipts.find(self.qid, receipt)
        hidden = seconds(delay, LONGEST_WINDOW, "a delay of what was received")
        now = self._clock()
        self._api.hide(self.qid, held.handle, hidden)
        self._receipts.drop(self.qid, receipt.mid, held)
        return now + hidden * SECOND if hidden else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """12 hours after the receive is the latest end of a window. UnsupportedError."""
        held = self._receipts.find(self.qid, receipt)
        window = self.window(visibility)
        until = self._clock() + window * SECOND
        self._api.hide(self.qid, held.handle, window)
        held.until = until
        return until

    def purge(self, upto: int, count: int) -> int:
        """Removes all messages, whatever upto and count are: SQS cannot do less. Returns about how many there were.
        RemoteError when SQS did it within the last minute."""
        held = sum(self._api.counts(self.qid))
        try:
            self._api.purge(self.qid)
        except PurgingError:
            if time.monotonic() - self._purged < _SAME_PURGE:
                return 0
            raise
        self._purged = time.monotonic()
        self._receipts.forget(self.qid)
        self.counters.add("deleted", held)
        return held

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
        return False

    def stats(self) -> Stats:
        """Counts messages as SQS does, which is about right a minute later. new: those that are not in flight, because
        SQS does not say which were never retrieved. bytes and oldest: not known."""
        found = self._api.counts(self.qid)
        return Stats(
            new=found.ready + found.delayed,
            **found._asdict(),
            **self.counters.counts(),
            expired=self._receipts.expired(self.qid),
            storage=self.options.storage,
        )
