"""What is asked of SQS about one queue, as it is at SQS: names, bounds, and answers made into ours."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ...engine import SECOND, Clock, StaleReceiptError, StorageError, UnsupportedError
from ..engine import RemoteError
from .bodies import ENCODING, MID, MOST_ENTRIES, Entry, payload_of
from .connection import Connection
from .errors import CallError
from .mids import mid_of
from .names import name_at_sqs
from .patience import Patience

_logger = logging.getLogger(__name__)

LONGEST_WINDOW = 43_200
"""Seconds that a message may be invisible: 12 hours (ReceiveMessage, VisibilityTimeout)."""
LONGEST_DELAY = 900
"""Seconds that a new message may be delayed (SendMessage, DelaySeconds)."""
GONE = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
_THERE = frozenset({"QueueNameExists", "QueueAlreadyExists"})
_MAY_NOT = frozenset({"AccessDenied", "AccessDeniedException"})
_DELETED = frozenset({"QueueDeletedRecently"})
_STALE = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight"})
_PURGING = frozenset({"PurgeQueueInProgress"})
_BAD_VALUE = frozenset({"InvalidParameterValue"})
_COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


class Received(NamedTuple):
    """A message as it came. message: SQS's id; until: the end of its window."""

    qid: str
    message: str
    handle: str
    mid: int
    receives: int
    pushed_at: int
    payload: bytes
    until: int


class Counts(NamedTuple):
    """Messages, about."""

    ready: int
    in_flight: int
    delayed: int


class PurgingError(RemoteError):
    """SQS has purged the queue within the last minute, and does not yet again."""


def seconds(micros: int, most: int, what: str) -> int:
    """Whole seconds, rounded up. UnsupportedError when there are more than SQS allows."""
    whole = -(-micros // SECOND)
    if whole > most:
        raise UnsupportedError(f"SQS allows {what} of at most {most} seconds; {whole} were asked for")
    return whole


class QueuesAtSqs:
    """For several threads. Methods raise RemoteError."""

    def __init__(self, connection: Connection, prefix: str, clock: Clock, patience: Patience) -> None:
        self._connection = connection
        self._prefix = prefix
        self._clock = clock
        self._patience = patience
        self._attempt = int((patience.connect_timeout + patience.read_timeout) * SECOND)
        self._urls: dict[str, str] = {}

    # -- queues

    def make(self, qid: str, window: int) -> None:
        """Makes a queue, or takes up the one that is there. window: seconds. BadQueueNameError."""
        name = name_at_sqs(qid, self._prefix)
        try:
            answer = self._connection.call(
                "create_queue", QueueName=name, Attributes={"VisibilityTimeout": str(window)}
            )
            self._urls[qid] = self._url_in(answer)
        except CallError as error:
            if error.codes & _DELETED:
                raise RemoteError(
                    f"SQS deleted a queue {name!r} less than a minute ago, and makes no other of that name so soon: "
                    "try again in a minute"
                ) from None
            # With other attributes it is there; one that may not make queues may use those that others made.
            if not error.codes & (_THERE | _MAY_NOT):
                raise
            try:
                self._find(qid)
            except RemoteError:
                raise error from None

    def remove(self, qid: str) -> None:
        """One that is not there is no error."""
        try:
            self._connection.call("delete_queue", QueueUrl=self._url(qid))
        except CallError as error:
            if not error.codes & GONE:
                raise
        self.forget(qid)

    def forget(self, qid: str) -> None:
        """Where it was may be wrong."""
        self._urls.pop(qid, None)

    def counts(self, qid: str) -> Counts:
        answer = self._call(qid, "get_queue_attributes", AttributeNames=list(_COUNTS))
        found = answer.get("Attributes", {})
        try:
            return Counts(*(int(found[name]) for name in _COUNTS))
        except (LookupError, ValueError) as error:
            raise self._no_sqs(error) from None

    def purge(self, qid: str) -> None:
        """PurgingError when it was purged just now."""
        try:
            self._call(qid, "purge_queue")
        except CallError as error:
            if error.codes & _PURGING:
                raise PurgingError(
                    f"SQS purges a queue once a minute, and has done so with {qid!r}: try again in a minute"
                ) from None
            raise

    # -- messages

    def send(self, qid: str, batch: Sequence[Entry]) -> None:
        """Sends what one call can carry. What SQS did not take of it is sent again. RemoteError: some may be there."""
        left = {str(number): entry for number, entry in enumerate(batch)}
        why = "it did not say why"
        for attempt in range(self._patience.attempts):
            if attempt:
                time.sleep(min(self._patience.pause * 2 ** (attempt - 1), self._patience.longest_pause))
            answer = self._call(qid, "send_message_batch", Entries=[_sent(key, entry) for key, entry in left.items()])
            for taken in answer.get("Successful", ()):
                left.pop(taken.get("Id"), None)
            if not left:
                return
            failed = [entry for entry in answer.get("Failed", ()) if entry.get("Id") in left]
            if failed:
                why = f"{failed[0].get('Code')}: {failed[0].get('Message', '')}"[:500]
            if any(entry.get("SenderFault") for entry in failed):
                break
        raise RemoteError(f"SQS at {self._connection.endpoint} did not take {len(left)} messages ({why})")

    def receive(self, qid: str, window: int, count: int, wait: int) -> list[Received]:
        """At most count, at most 10, messages in no promised order, invisible for so many seconds; when there is none,
        SQS waits for one for so many seconds."""
        asked = self._clock()
        answer = self._call(
            qid,
            "receive_message",
            MaxNumberOfMessages=min(count, MOST_ENTRIES),
            VisibilityTimeout=window,
            WaitTimeSeconds=wait,
            MessageSystemAttributeNames=["SentTimestamp", "ApproximateReceiveCount"],
            MessageAttributeNames=[MID, ENCODING],
        )
        # The window began at some moment of the last attempt: the earliest is safe, unless SQS has waited.
        now = self._clock()
        until = (now if wait else max(asked, now - self._attempt)) + window * SECOND
        try:
            return [_received(qid, message, until) for message in answer.get("Messages", ())]
        except (LookupError, ValueError) as error:
            raise self._no_sqs(error) from None

    def delete(self, qid: str, handle: str) -> None:
        """StaleReceiptError."""
        self._with_handle(qid, "delete_message", handle)

    def hide(self, qid: str, handle: str, window: int) -> None:
        """Lets it be invisible for so many seconds from now. StaleReceiptError, UnsupportedError."""
        self._with_handle(qid, "change_message_visibility", handle, VisibilityTimeout=window)

    def give_back(self, messages: Iterable[Received]) -> None:
        """Makes visible what nobody is to get. What that fails for is visible when its window is over."""
        for qid, batch in _by_queue(messages):
            entries = [
                {"Id": str(number), "ReceiptHandle": message.handle, "VisibilityTimeout": 0}
                for number, message in enumerate(batch)
            ]
            try:
                self._call(qid, "change_message_visibility_batch", Entries=entries)
            except StorageError as error:
                _logger.warning(
                    "%d messages of queue %r are not given back before their time: %s", len(batch), qid, error
                )

    # -- calls

    def _with_handle(self, qid: str, operation: str, handle: str, **parameters: Any) -> None:
        try:
            self._call(qid, operation, ReceiptHandle=handle, **parameters)
        except CallError as error:
            # An old handle is a bad value to Amazon's; so is a time that goes too far.
            if error.codes & _STALE or (error.codes & _BAD_VALUE and "ReceiptHandle" in str(error)):
                raise StaleReceiptError(f"SQS does not take the receipt of the message any more: {error}") from None
            if error.codes & _BAD_VALUE:
                raise UnsupportedError(str(error)) from None
            raise

    def _call(self, qid: str, operation: str, **parameters: Any) -> dict[str, Any]:
        try:
            return self._connection.call(operation, QueueUrl=self._url(qid), **parameters)
        except CallError as error:
            if not error.codes & GONE:
                raise
            self.forget(qid)
            raise CallError(
                f"there is no queue {name_at_sqs(qid, self._prefix)!r} at SQS ({self._connection.endpoint}), where "
                f"{qid!r} keeps its messages: make it there, or remove {qid!r} here, and make it again",
                error.codes,
            ) from None

    def _url(self, qid: str) -> str:
        return self._urls.get(qid) or self._find(qid)

    def _find(self, qid: str) -> str:
        answer = self._connection.call("get_queue_url", QueueName=name_at_sqs(qid, self._prefix))
        url = self._urls[qid] = self._url_in(answer)
        return url

    def _url_in(self, answer: dict[str, Any]) -> str:
        url = answer.get("QueueUrl")
        if not isinstance(url, str):
            raise self._no_sqs("no QueueUrl")
        return url

    def _no_sqs(self, why: object) -> RemoteError:
        where = self._connection.endpoint
        return RemoteError(f"what is at {where} does not answer as SQS does ({why}): check the endpoint")


def _sent(key: str, entry: Entry) -> dict[str, Any]:
    return {
        "Id": key,
        "MessageBody": entry.body,
        "DelaySeconds": entry.delay,
        "MessageAttributes": entry.attributes,
    }


def _received(qid: str, message: dict[str, Any], until: int) -> Received:
    system, own = message.get("Attributes", {}), message.get("MessageAttributes", {})
    sent = int(system.get("SentTimestamp", 0))
    message_id = message["MessageId"]
    return Received(
        qid=qid,
        message=message_id,
        handle=message["ReceiptHandle"],
        mid=mid_of(own, sent, message_id),
        receives=int(system.get("ApproximateReceiveCount", 1)),
        pushed_at=sent * 1000,
        payload=payload_of(message.get("Body", ""), own),
        until=until,
    )


def _by_queue(messages: Iterable[Received]) -> Iterator[tuple[str, list[Received]]]:
    """In lists that one call can carry."""
    queues: dict[str, list[Received]] = {}
    for message in messages:
        queues.setdefault(message.qid, []).append(message)
    for qid, found in queues.items():
        rest = iter(found)
        while batch := list(islice(rest, MOST_ENTRIES)):
            yield qid, batch
