"""One queue at SQS: translates our operations into SQS's, and its answers into ours."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ...dead_letter_policy import refuse_reason, refuse_reject, refuse_uncounted
from ...engine import (
    SECOND,
    Clock,
    Draft,
    Message,
    NoKeysError,
    Options,
    QueueNotEmptyError,
    Receipt,
    RemoteError,
    StaleReceiptError,
    State,
    Stats,
    StorageError,
    UnsupportedError,
)
from ..registry import Counters
from .client import CallError
from .kept_options import LONGEST_WINDOW, whole_seconds
from .messages import ENCODING, MID, MOST_ENTRIES, SOURCE, Entry, Received, batches, decode, encode
from .queue_calls import QueueCalls
from .receipts import Receipts

_logger = logging.getLogger(__name__)

LONGEST_DELAY = 900
"""Seconds that a new message may be delayed (SendMessage, DelaySeconds)."""
_SAME_PURGE = 5.0
"""Seconds within which SQS's refusal to purge again is part of the same purge, which is asked for in slices."""
_STALE = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight"})
_PURGING = frozenset({"PurgeQueueInProgress"})
_BAD_VALUE = frozenset({"InvalidParameterValue", "InvalidAttributeValue"})
_COUNTS = {
    "ready": "ApproximateNumberOfMessages",
    "in_flight": "ApproximateNumberOfMessagesNotVisible",
    "delayed": "ApproximateNumberOfMessagesDelayed",
}


class SqsQueue:
    """See Queue. Several threads may use it. Methods also raise RemoteError."""

    merges_pushes: ClassVar[bool] = False
    claims: None = None
    batches: None = None

    def __init__(  # noqa: PLR0917
        self,
        qid: str,
        options: Options,
        calls: QueueCalls,
        receipts: Receipts,
        clock: Clock,
        given: int,
        note_visible: Callable[[str], None],
    ) -> None:
        """given: the greatest id of earlier queues of the name, -1: none; note_visible: called before a message is."""
        self.qid = qid
        self.options = options
        self.counters = Counters()
        self.given = given
        self.last_mid = -1
        self.calls = calls
        self._receipts = receipts
        self._clock = clock
        self._note_visible = note_visible
        self._numbering = threading.Lock()
        self._purged = -_SAME_PURGE
        """When, by time.monotonic."""

    # -- the queue itself

    def make(self, attributes: Mapping[str, str] | None = None) -> None:
        """attributes: beside its window; see QueueCalls.make."""
        self.calls.make(self.window(None), attributes or {})

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Raises UnsupportedError for what SQS does not allow."""
        try:
            self.calls.set_attributes(attributes)
        except CallError as error:
            if error.codes & _BAD_VALUE:
                raise UnsupportedError(str(error)) from None
            raise

    def unmake(self, *, force: bool) -> None:
        if not force and (held := sum(self._count().values())):
            raise QueueNotEmptyError(f"queue {self.qid!r} holds about {held} messages at SQS")
        self.calls.remove()
        self._receipts.forget(self.qid)

    def _count(self) -> dict[str, int]:
        """Returns approximate counts by state."""
        found = self.calls.attributes(_COUNTS.values())
        try:
            return {state: int(found[name]) for state, name in _COUNTS.items()}
        except (LookupError, ValueError) as error:
            raise self.calls.not_sqs(error) from None

    def window(self, visibility: int | None) -> int:
        """Returns seconds. UnsupportedError."""
        return whole_seconds(
            self.options.visibility if visibility is None else visibility, LONGEST_WINDOW, "a visibility window"
        )

    # -- pushing

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Not all or none: what SQS took before an error stays. A message is stored twice when an answer is lost.
        UnsupportedError for a key or a long delay."""
        if not drafts:
            return []
        if any(draft.key is not None for draft in drafts):
            raise NoKeysError("sqs")
        delays = [whole_seconds(draft.delay, LONGEST_DELAY, "a delay") for draft in drafts]
        mids = self._give_mids(len(drafts))
        entries = [encode(draft.payload, mid, delay) for draft, mid, delay in zip(drafts, mids, delays, strict=True)]
        for batch in batches(entries):
            try:
                self._send(batch)
            except RemoteError as error:
                which = f"some of the {len(drafts)} messages" if len(drafts) > 1 else "the message"
                raise RemoteError(f"{error}; {which} may have been stored") from None
            self.counters.add("pushed", len(batch))
        return mids

    def _give_mids(self, count: int) -> list[int]:
        """Returns increasing ids, greater than all given before, though other programs may have sent greater ones."""
        with self._numbering:
            first = max(self._clock(), self.given + 1)
            self.given = first + count - 1
            self.last_mid = max(self.given, self.last_mid)
        return list(range(first, first + count))

    def _send(self, batch: Sequence[Entry]) -> None:
        """Sends a batch, and again what SQS did not take."""
        left = {str(number): {"Id": str(number), **entry.parameters} for number, entry in enumerate(batch)}
        policy, why = self.calls.client.policy, "it did not say why"
        for attempt in range(policy.attempts):
            if attempt:
                time.sleep(min(policy.pause * 2 ** (attempt - 1), policy.longest_pause))
            answer = self.calls.call("send_message_batch", Entries=[*left.values()])
            for taken in answer.get("Successful", ()):
                left.pop(taken.get("Id"), None)
            if not left:
                return
            failed = [entry for entry in answer.get("Failed", ()) if entry.get("Id") in left]
            if failed:
                why = f"{failed[0].get('Code')}: {failed[0].get('Message', '')}"[:500]
            if any(entry.get("SenderFault") for entry in failed):
                break
        raise RemoteError(f"SQS at {self.calls.client.endpoint} did not take {len(left)} messages ({why})")

    # -- receiving, as SqsEngine does

    def receive(self, window: int, count: int, wait: int) -> list[Received]:
        """Receives at most 10 messages in no promised order. window, wait: seconds."""
        asked = self._clock()
        answer = self.calls.call(
            "receive_message",
            MaxNumberOfMessages=min(count, MOST_ENTRIES),
            VisibilityTimeout=window,
            WaitTimeSeconds=wait,
            MessageSystemAttributeNames=["SentTimestamp", "ApproximateReceiveCount", SOURCE],
            MessageAttributeNames=[MID, ENCODING],
        )
        # The window began at some moment of the last attempt: the earliest is safe, unless SQS has waited.
        now, policy = self._clock(), self.calls.client.policy
        attempt = int((policy.connect_timeout + policy.read_timeout) * SECOND)
        until = (now if wait else max(asked, now - attempt)) + window * SECOND
        try:
            return [decode(self.qid, message, until) for message in answer.get("Messages", ())]
        except (LookupError, ValueError) as error:
            raise self.calls.not_sqs(error) from None

    def note_received(self, mid: int) -> None:
        self.counters.add("delivered")
        with self._numbering:
            self.last_mid = max(mid, self.last_mid)

    def give_back(self, messages: Sequence[Received]) -> None:
        """Makes messages visible that nobody gets. After a failure they are visible when their windows end."""
        for start in range(0, len(messages), MOST_ENTRIES):
            entries = [
                {"Id": str(number), "ReceiptHandle": message.handle, "VisibilityTimeout": 0}
                for number, message in enumerate(messages[start : start + MOST_ENTRIES])
            ]
            self._note_visible(self.qid)
            try:
                self.calls.call("change_message_visibility_batch", Entries=entries)
            except StorageError as error:
                _logger.warning(
                    "%d messages of queue %r are not given back before their time: %s", len(entries), self.qid, error
                )

    # -- messages in flight, which were received here

    def delete(self, receipt: Receipt) -> None:
        held = self._receipts.find(self.qid, receipt)
        self._with_handle("delete_message", held.handle)
        self._receipts.drop(self.qid, receipt.mid, held)
        self.counters.add("deleted")

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        """Raises UnsupportedError for a long delay, in whole seconds."""
        refuse_uncounted("sqs", count=count)
        refuse_reason("sqs", reason)
        held = self._receipts.find(self.qid, receipt)
        hidden = whole_seconds(delay or 0, LONGEST_WINDOW, "a delay of what was received")
        now = self._clock()
        if not hidden:
            self._note_visible(self.qid)
        self._with_handle("change_message_visibility", held.handle, VisibilityTimeout=hidden)
        self._receipts.drop(self.qid, receipt.mid, held)
        return now + hidden * SECOND if hidden else None

    def reject(self, receipt: Receipt, reason: str | None) -> None:
        raise refuse_reject("sqs")

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Until 12 hours after the receive at most. UnsupportedError."""
        held = self._receipts.find(self.qid, receipt)
        window = self.window(visibility)
        until = self._clock() + window * SECOND
        self._with_handle("change_message_visibility", held.handle, VisibilityTimeout=window)
        held.until = until
        return until

    def _with_handle(self, operation: str, handle: str, **parameters: Any) -> None:
        """Raises StaleReceiptError, UnsupportedError."""
        try:
            self.calls.call(operation, ReceiptHandle=handle, **parameters)
        except CallError as error:
            # An old handle is a bad value to Amazon's; so is a time that goes too far.
            if error.codes & _STALE or (error.codes & _BAD_VALUE and "ReceiptHandle" in str(error)):
                raise StaleReceiptError(f"SQS does not take the receipt of the message any more: {error}") from None
            if error.codes & _BAD_VALUE:
                raise UnsupportedError(str(error)) from None
            raise

    def purge(self, upto: int, count: int) -> int:
        """Removes all messages: SQS cannot do less. Returns about how many. RemoteError within a minute of another."""
        held = sum(self._count().values())
        try:
            self.calls.call("purge_queue")
        except CallError as error:
            if not error.codes & _PURGING:
                raise
            if time.monotonic() - self._purged < _SAME_PURGE:
                return 0
            raise RemoteError(
                f"SQS purges a queue once a minute, and has done so with {self.qid!r}: try again in a minute"
            ) from None
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

    @property
    def redrive(self) -> None:
        raise self._cannot(
            "moves dead letters back only as a task of its own, not as one transaction: start it in the console of SQS "
            "(Start DLQ redrive) or with `aws sqs start-message-move-task`"
        )

    def _cannot(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"queue {self.qid!r} has the storage 'sqs', and SQS {what}")

    # -- figures

    def prepare_stats(self) -> bool:
        return False

    def stats(self) -> Stats:
        """Approximate: right about a minute later. new: those not in flight; bytes, oldest: unknown at SQS."""
        states, own = self._count(), self.counters.counts()
        stats = Stats(**states, **own, expired=self._receipts.expired(self.qid), storage=self.options.storage)
        stats.new = stats.ready + stats.delayed
        return stats
