"""One queue at SQS, and the messages in flight from all queues."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine import (
    SECOND,
    Clock,
    Draft,
    Message,
    NoSuchMessageError,
    NoSuchQueueError,
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
from ..policy import PLAIN, refuse_attributes
from ..remote_engine import RemoteQueue
from .sqs_calls import (
    LONGEST_WINDOW,
    MOST_ENTRIES,
    SOURCE,
    CallError,
    Entry,
    Received,
    SqsClient,
    batches,
    decode,
    encode,
    name_at_sqs,
    whole_seconds,
)

_logger = logging.getLogger(__name__)

LONGEST_DELAY = 900
"""Seconds that a new message may be delayed (SendMessage, DelaySeconds)."""
_SAME_PURGE = 5.0
"""Seconds within which SQS's refusal to purge again is part of the same purge, which is asked for in slices."""
_STALE = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight"})
_GONE = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
_THERE = frozenset({"QueueNameExists", "QueueAlreadyExists"})
_MAY_NOT = frozenset({"AccessDenied", "AccessDeniedException"})
_DELETED = frozenset({"QueueDeletedRecently"})
_PURGING = frozenset({"PurgeQueueInProgress"})
_BAD_VALUE = frozenset({"InvalidParameterValue", "InvalidAttributeValue"})
_COUNTS = {
    "ready": "ApproximateNumberOfMessages",
    "in_flight": "ApproximateNumberOfMessagesNotVisible",
    "delayed": "ApproximateNumberOfMessagesDelayed",
}
MOST_IN_FLIGHT = 120_000
"""Messages kept, over all queues: as many as SQS lets be in flight in one. Some 800 bytes each."""
_KEPT = 50 * SECOND
"""How long an ended window is remembered."""
_SWEEP_INTERVAL = 10 * SECOND


@dataclass(slots=True)
class InFlight:
    """A message in flight through this server. handle: SQS's receipt handle; until: the end of the window."""

    message: str
    handle: str
    receives: int
    until: int


class Receipts:
    """The receipt handles of messages in flight, by queue and id. Only the receiver of a message gets its handle, and
    SQS does nothing with a message without one. Several threads may use one object."""

    def __init__(self, clock: Clock, most: int = MOST_IN_FLIGHT) -> None:
        self._clock = clock
        self._most = most
        self._held: dict[tuple[str, int], InFlight] = {}
        self._mids: dict[tuple[str, str], int] = {}  # queue and SQS's id -> id
        self._expired: Counter[str] = Counter()
        self._next_sweep = 0
        self._lock = threading.Lock()

    def room(self) -> int:
        """Returns how many more messages may be received. RemoteError if none may."""
        with self._lock:
            self._sweep()
            room = self._most - len(self._held)
        if room <= 0:
            raise RemoteError(
                f"{self._most} messages of SQS are in flight through this server, which is as many as it remembers: "
                "delete or release some, or use shorter windows"
            )
        return room

    def _sweep(self) -> None:
        """Forgets the receipt handles of messages whose windows ended long ago. Does so at intervals, and when no more
        handles can be remembered."""
        now = self._clock()
        if now < self._next_sweep and len(self._held) < self._most:
            return
        self._next_sweep = now + _SWEEP_INTERVAL
        for qid, mid in [key for key, held in self._held.items() if held.until <= now - _KEPT]:
            self._remove(qid, mid)
            self._expired[qid] += 1

    def add(self, qid: str, mid: int, held: InFlight) -> int:
        """Adds a received message. Returns the message's id: mid, or the next id that is free in the queue. A message
        that is in flight already keeps its id, and its receives grow, which SQS does not promise."""
        with self._lock:
            known = self._mids.get((qid, held.message))
            if known is not None:
                mid = known
                before = self._held[qid, mid]
                # Else an old receipt of the same message would be taken for the new one.
                held.receives = max(held.receives, before.receives + 1)
                self._expired[qid] += before.until <= self._clock()
            # Ids of other programs' messages are made from times, so two can be the same.
            while known is None and (qid, mid) in self._held:
                mid += 1
            self._held[qid, mid] = held
            self._mids[qid, held.message] = mid
            return mid

    def find(self, qid: str, receipt: Receipt) -> InFlight:
        """Returns the message in flight that a receipt names. NoSuchMessageError; StaleReceiptError, also if the window
        has ended."""
        held = self._held.get((qid, receipt.mid))
        if held is None:
            raise NoSuchMessageError(
                f"message {receipt.mid} of queue {qid!r} is not in flight through this server, and SQS does nothing to "
                "others: receive it here first"
            )
        if receipt.receives is not None and receipt.receives != held.receives:
            raise StaleReceiptError(f"message {receipt.mid} has been received {held.receives} times by now")
        if held.until <= self._clock():
            raise StaleReceiptError(f"the window of message {receipt.mid} has ended: SQS may have given it to another")
        return held

    def drop(self, qid: str, mid: int, held: InFlight) -> bool:
        """Forgets a message. Returns False if the message was forgotten already, or received again."""
        with self._lock:
            if self._held.get((qid, mid)) is not held:
                return False
            self._remove(qid, mid)
            return True

    def expired(self, qid: str) -> int:
        """Returns the number of windows that have ended. Some are counted a minute late."""
        return self._expired[qid]

    def forget(self, qid: str) -> None:
        with self._lock:
            for queue, mid in [key for key in self._held if key[0] == qid]:
                self._remove(queue, mid)

    def _remove(self, qid: str, mid: int) -> None:
        held = self._held.pop((qid, mid))
        del self._mids[qid, held.message]


class SqsQueue(RemoteQueue):
    """A queue at SQS.

    Ensures that the ids which this server gives increase. Only the server that has received a message can delete or
    release it, as SQS finds no message by its id. A push is not all or none, as SQS takes ten messages a call."""

    last_mid: int = -1

    def __init__(  # noqa: PLR0917
        self, qid: str, options: Options, client: SqsClient, prefix: str, receipts: Receipts, clock: Clock, given: int
    ) -> None:
        """prefix: the beginning of all names at SQS; given: the greatest id of earlier queues with the name, -1 without
        any. BadQueueNameError."""
        super().__init__(qid, options)
        self.given = given
        self.shown = -math.inf
        """The last time at which a message was made visible, by time.monotonic: SQS may give the message to any long
        poll of the queue."""
        self._client = client
        self._name = name_at_sqs(qid, prefix)
        self._url: str | None = None
        self._removed = False
        self._receipts = receipts
        self._clock = clock
        self._numbering = threading.Lock()
        self._purged = -math.inf
        """The time of the last purge, by time.monotonic."""

    # -- calls about this queue

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Calls an operation of boto3 for this queue. CallError; NoSuchQueueError after `unmake`."""
        if self._removed:
            raise NoSuchQueueError(f"there is no queue {self.qid!r}")
        try:
            return self._client.call(operation, QueueUrl=self._url or self._find(), **parameters)
        except CallError as error:
            if not error.codes & _GONE:
                raise
            self._url = None
            raise CallError(
                f"there is no queue {self._name!r} at SQS ({self._client.endpoint}), where {self.qid!r} keeps its "
                f"messages: make it there, or remove {self.qid!r} here, and make it again",
                error.codes,
            ) from None

    def _find(self) -> str:
        self._url = url = self._url_in(self._client.call("get_queue_url", QueueName=self._name))
        return url

    def _url_in(self, answer: Mapping[str, Any]) -> str:
        url = answer.get("QueueUrl")
        if not isinstance(url, str):
            raise self.not_sqs("no QueueUrl")
        return url

    def not_sqs(self, why: object) -> RemoteError:
        """Returns the error for an answer that is not in SQS's format."""
        where = self._client.endpoint
        return RemoteError(f"what is at {where} does not answer as SQS does ({why}): check the endpoint")

    # -- the queue itself

    def make(self, attributes: Mapping[str, str] | None = None) -> None:
        """Makes the queue at SQS, or takes up an existing one. attributes: in SQS's format. A new queue also gets its
        window as an attribute."""
        wanted = {"VisibilityTimeout": str(self.window(None)), **(attributes or {})}
        try:
            self._url = self._url_in(self._client.call("create_queue", QueueName=self._name, Attributes=wanted))
        except CallError as error:
            # SQS keeps a name for a minute after a delete.
            if error.codes & _DELETED:
                raise RemoteError(
                    f"SQS deleted a queue {self._name!r} less than a minute ago, and makes no other of that name so "
                    "soon: try again in a minute"
                ) from None
            # With other attributes it is there; one that may not make queues may use those that others made.
            if not error.codes & (_THERE | _MAY_NOT):
                raise
            try:
                self._find()
            except RemoteError:
                raise error from None
            self.set_attributes(attributes or {})

    def attributes(self, names: Collection[str]) -> dict[str, str]:
        """Returns the queue's attributes at SQS, without those that are not set."""
        found: dict[str, str] = self.call("get_queue_attributes", AttributeNames=[*names]).get("Attributes", {})
        return found

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """Sets attributes of the queue at SQS. An empty value removes an attribute. UnsupportedError for values that
        SQS does not allow."""
        if not attributes:
            return
        try:
            self.call("set_queue_attributes", Attributes=dict(attributes))
        except CallError as error:
            if error.codes & _BAD_VALUE:
                raise UnsupportedError(str(error)) from None
            raise

    def unmake(self, *, force: bool) -> None:
        """Removes the queue at SQS. Does nothing if SQS does not have the queue."""
        if not force and (held := sum(self._count().values())):
            raise QueueNotEmptyError(f"queue {self.qid!r} holds about {held} messages at SQS")
        try:
            self.call("delete_queue")
        except CallError as error:
            if not error.codes & _GONE:
                raise
        self._removed = True
        self._receipts.forget(self.qid)

    def _count(self) -> dict[str, int]:
        """Returns approximate counts of messages by state."""
        found = self.attributes(_COUNTS.values())
        try:
            return {state: int(found[name]) for state, name in _COUNTS.items()}
        except (LookupError, ValueError) as error:
            raise self.not_sqs(error) from None

    def window(self, visibility: int | None) -> int:
        """Returns the seconds of a visibility window, None for the queue's own. UnsupportedError."""
        return whole_seconds(
            self.options.visibility if visibility is None else visibility, LONGEST_WINDOW, "a visibility window"
        )

    # -- pushing

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Sends messages, ten a call. Messages that SQS took before an error stay, and a message is stored twice when
        an answer is lost. UnsupportedError for a long delay, and for attributes that SQS cannot carry."""
        if not drafts:
            return []
        for draft in drafts:
            if draft[2:] != PLAIN:
                refuse_attributes("sqs", draft)
        delays = [whole_seconds(draft.delay, LONGEST_DELAY, "a delay") for draft in drafts]
        mids = self._give_mids(len(drafts))
        entries = [encode(draft, mid, delay) for draft, mid, delay in zip(drafts, mids, delays, strict=True)]
        for batch in batches(entries):
            try:
                self._send(batch)
            except RemoteError as error:
                which = f"some of the {len(drafts)} messages" if len(drafts) > 1 else "the message"
                raise RemoteError(f"{error}; {which} may have been stored") from None
            self.count("pushed", len(batch))
        return mids

    def _give_mids(self, count: int) -> list[int]:
        """Returns increasing ids, greater than all that this server has given. Other programs may have sent messages
        with greater ids."""
        with self._numbering:
            first = max(self._clock(), self.given + 1)
            # Given at once, also if the call fails: an id is never used twice.
            self.given = first + count - 1
            self.last_mid = max(self.given, self.last_mid)
        return list(range(first, first + count))

    def _send(self, batch: Sequence[Entry]) -> None:
        """Sends a batch. Sends the messages again that SQS did not take."""
        # SQS may take some of ten, and says which.
        left = {str(number): {"Id": str(number), **entry.parameters} for number, entry in enumerate(batch)}
        policy, why = self._client.policy, "it did not say why"
        for attempt in range(policy.attempts):
            if attempt:
                time.sleep(min(policy.pause * 2 ** (attempt - 1), policy.longest_pause))
            answer = self.call("send_message_batch", Entries=[*left.values()])
            for taken in answer.get("Successful", ()):
                left.pop(taken.get("Id"), None)
            if not left:
                return
            failed = [entry for entry in answer.get("Failed", ()) if entry.get("Id") in left]
            if failed:
                why = f"{failed[0].get('Code')}: {failed[0].get('Message', '')}"[:500]
            if any(entry.get("SenderFault") for entry in failed):
                break
        raise RemoteError(f"SQS at {self._client.endpoint} did not take {len(left)} messages ({why})")

    # -- receiving, as SqsEngine does

    def receive(self, window: int, count: int, wait: int) -> list[Received]:
        """Receives at most 10 messages in no promised order. window, wait: seconds."""
        asked = self._clock()
        answer = self.call(
            "receive_message",
            MaxNumberOfMessages=min(count, MOST_ENTRIES),
            VisibilityTimeout=window,
            WaitTimeSeconds=wait,
            MessageSystemAttributeNames=["SentTimestamp", "ApproximateReceiveCount", SOURCE],
            MessageAttributeNames=["All"],
        )
        # The window began at some moment of the last attempt: the earliest is safe, unless SQS has waited.
        now, policy = self._clock(), self._client.policy
        attempt = int((policy.connect_timeout + policy.read_timeout) * SECOND)
        until = (now if wait else max(asked, now - attempt)) + window * SECOND
        try:
            return [decode(self.qid, message, until) for message in answer.get("Messages", ())]
        except (LookupError, ValueError) as error:
            raise self.not_sqs(error) from None

    def note_received(self, mid: int) -> None:
        self.count("delivered")
        with self._numbering:
            self.last_mid = max(mid, self.last_mid)

    def give_back(self, messages: Sequence[Received]) -> None:
        """Makes messages visible that no receiver gets. If that fails, they are visible when their windows end."""
        for start in range(0, len(messages), MOST_ENTRIES):
            entries = [
                {"Id": str(number), "ReceiptHandle": message.handle, "VisibilityTimeout": 0}
                for number, message in enumerate(messages[start : start + MOST_ENTRIES])
            ]
            self.shown = time.monotonic()
            try:
                self.call("change_message_visibility_batch", Entries=entries)
            except NoSuchQueueError:
                return
            except StorageError as error:
                _logger.warning(
                    "%d messages of queue %r are not given back before their time: %s", len(entries), self.qid, error
                )

    # -- messages in flight, which were received here

    def delete(self, receipt: Receipt) -> None:
        held = self._receipts.find(self.qid, receipt)
        self._with_handle("delete_message", held.handle)
        self._receipts.drop(self.qid, receipt.mid, held)
        self.count("deleted")

    def release(
        self, receipt: Receipt, delay: int | None, *, count: bool = True, reason: str | None = None
    ) -> int | None:
        """Makes a message visible now, or after a delay in whole seconds. UnsupportedError for a long delay."""
        self.check_release(count=count, reason=reason)
        held = self._receipts.find(self.qid, receipt)
        hidden = whole_seconds(delay or 0, LONGEST_WINDOW, "a delay of what was received")
        now = self._clock()
        if not hidden:
            self.shown = time.monotonic()
        self._with_handle("change_message_visibility", held.handle, VisibilityTimeout=hidden)
        self._receipts.drop(self.qid, receipt.mid, held)
        return now + hidden * SECOND if hidden else None

    def extend(self, receipt: Receipt, visibility: int | None) -> int:
        """Sets the end of a message's window, at most 12 hours after the receive. UnsupportedError."""
        held = self._receipts.find(self.qid, receipt)
        window = self.window(visibility)
        until = self._clock() + window * SECOND
        self._with_handle("change_message_visibility", held.handle, VisibilityTimeout=window)
        held.until = until
        return until

    def _with_handle(self, operation: str, handle: str, **parameters: Any) -> None:
        """Calls an SQS operation with a receipt handle. StaleReceiptError for an expired handle, UnsupportedError for a
        time that SQS refuses."""
        try:
            self.call(operation, ReceiptHandle=handle, **parameters)
        except CallError as error:
            # An old handle is a bad value to Amazon's; so is a time that goes too far.
            if error.codes & _STALE or (error.codes & _BAD_VALUE and "ReceiptHandle" in str(error)):
                raise StaleReceiptError(f"SQS does not take the receipt of the message any more: {error}") from None
            if error.codes & _BAD_VALUE:
                raise UnsupportedError(str(error)) from None
            raise

    def purge(self, upto: int, count: int) -> int:
        """Removes all messages, as SQS cannot remove fewer. Returns an approximate number. RemoteError within a minute
        of another purge."""
        held = sum(self._count().values())
        try:
            self.call("purge_queue")
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
        self.count("deleted", held)
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

    def stats(self) -> Stats:
        """Returns approximate counts: SQS's own are up to a minute old. new: the messages that are not in flight;
        bytes, oldest: unknown at SQS."""
        states, own = self._count(), self.counts()
        stats = Stats(storage=self.options.storage, expired=self._receipts.expired(self.qid))
        for name, number in (states | own).items():
            setattr(stats, name, number)
        stats.new = stats.ready + stats.delayed
        return stats
