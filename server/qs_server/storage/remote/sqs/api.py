"""What is asked of SQS about one queue: our names and numbers made into SQS's, and answers made into ours."""

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ...engine import SECOND, Clock, RemoteError, StaleReceiptError, StorageError, UnsupportedError
from .call_policy import CallPolicy
from .client import CallError, SqsClient
from .messages import ENCODING, MID, MOST_ENTRIES, Entry, Received, decode
from .names import name_at_sqs

_logger = logging.getLogger(__name__)

LONGEST_WINDOW = 43_200
"""Seconds that a message may be invisible: 12 hours (ReceiveMessage, VisibilityTimeout)."""
LONGEST_DELAY = 900
"""Seconds that a new message may be delayed (SendMessage, DelaySeconds)."""
_GONE = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
_THERE = frozenset({"QueueNameExists", "QueueAlreadyExists"})
_MAY_NOT = frozenset({"AccessDenied", "AccessDeniedException"})
_DELETED = frozenset({"QueueDeletedRecently"})
_STALE = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight"})
_PURGING = frozenset({"PurgeQueueInProgress"})
_BAD_VALUE = frozenset({"InvalidParameterValue"})
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")


class MessageCounts(NamedTuple):
    """Messages by state, about."""

    ready: int
    in_flight: int
    delayed: int


class PurgingError(RemoteError):
    """SQS has purged the queue within the last minute, and does not yet again."""


def seconds(micros: int, most: int, what: str) -> int:
    """Returns whole seconds, rounded up. UnsupportedError when there are more than SQS allows."""
    whole = -(-micros // SECOND)
    if whole > most:
        raise UnsupportedError(f"SQS allows {what} of at most {most} seconds; {whole} were asked for")
    return whole


def window_in_seconds(micros: int) -> int:
    """Returns the seconds of a visibility window. UnsupportedError when it is longer than SQS allows."""
    return seconds(micros, LONGEST_WINDOW, "a visibility window")


class SqsApi:
    """Asks SQS. Several threads may use it. Methods raise RemoteError."""

    def __init__(self, client: SqsClient, prefix: str, clock: Clock, policy: CallPolicy) -> None:
        """prefix: of all names at SQS."""
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._policy = policy
        self._attempt = int((policy.connect_timeout + policy.read_timeout) * SECOND)
        self._urls: dict[str, str] = {}

    # -- queues

    def make(self, qid: str, window: int) -> None:
        """Makes a queue, or takes up the one that is there. window: seconds. BadQueueNameError."""
        name = name_at_sqs(qid, self._prefix)
        try:
            answer = self._client.call("create_queue", QueueName=name, Attributes={"VisibilityTimeout": str(window)})
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
        """Removes a queue. One that is not there is no error."""
        try:
            self._client.call("delete_queue", QueueUrl=self._url(qid))
        except CallError as error:
            if not error.codes & _GONE:
                raise
        self._urls.pop(qid, None)

    def counts(self, qid: str) -> MessageCounts:
        answer = self._call(qid, "get_queue_attributes", AttributeNames=list(_COUNTS))
        found = answer.get("Attributes", {})
        try:
            return MessageCounts(*(int(found[name]) for name in _COUNTS))
        except (LookupError, ValueError) as error:
            raise self._no_sqs(error) from None

    def purge(self, qid: str) -> None:
        """Removes all messages. PurgingError when that was done just now."""
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
        """Sends what one call can carry, and again what SQS did not take of it. RemoteError: some may be stored."""
        left = {str(number): entry for number, entry in enumerate(batch)}
        why = "it did not say why"
        for attempt in range(self._policy.attempts):
            if attempt:
                time.sleep(min(self._policy.pause * 2 ** (attempt - 1), self._policy.longest_pause))
            entries = [
                {
                    "Id": key,
                    "MessageBody": entry.body,
                    "DelaySeconds": entry.delay,
                    "MessageAttributes": entry.attributes,
                }
                for key, entry in left.items()
            ]
            answer = self._call(qid, "send_message_batch", Entries=entries)
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

    def receive(self, qid: str, window: int, count: int, wait: int) -> list[Received]:
        """Receives at most count, at most 10, messages in no promised order; they are invisible for `window` seconds.
        When there is none, SQS waits for one for `wait` seconds."""
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
            return [decode(qid, message, until) for message in answer.get("Messages", ())]
        except (LookupError, ValueError) as error:
            raise self._no_sqs(error) from None

    def delete(self, qid: str, handle: str) -> None:
        """Deletes a message that was received. StaleReceiptError."""
        self._with_handle(qid, "delete_message", handle)

    def hide(self, qid: str, handle: str, window: int) -> None:
        """Makes a message that was received invisible for `window` seconds from now. StaleReceiptError,
        UnsupportedError."""
        self._with_handle(qid, "change_message_visibility", handle, VisibilityTimeout=window)

    def give_back(self, messages: Iterable[Received]) -> None:
        """Makes visible what nobody is to get. What that fails for is visible when its window is over."""
        by_queue: dict[str, list[Received]] = {}
        for message in messages:
            by_queue.setdefault(message.qid, []).append(message)
        for qid, found in by_queue.items():
            for start in range(0, len(found), MOST_ENTRIES):
                batch = found[start : start + MOST_ENTRIES]
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
            return self._client.call(operation, QueueUrl=self._url(qid), **parameters)
        except CallError as error:
            if not error.codes & _GONE:
                raise
            self._urls.pop(qid, None)
            raise CallError(
                f"there is no queue {name_at_sqs(qid, self._prefix)!r} at SQS ({self._client.endpoint}), where "
                f"{qid!r} keeps its messages: make it there, or remove {qid!r} here, and make it again",
                error.codes,
            ) from None

    def _url(self, qid: str) -> str:
        return self._urls.get(qid) or self._find(qid)

    def _find(self, qid: str) -> str:
        answer = self._client.call("get_queue_url", QueueName=name_at_sqs(qid, self._prefix))
        url = self._urls[qid] = self._url_in(answer)
        return url

    def _url_in(self, answer: dict[str, Any]) -> str:
        url = answer.get("QueueUrl")
        if not isinstance(url, str):
            raise self._no_sqs("no QueueUrl")
        return url

    def _no_sqs(self, why: object) -> RemoteError:
        where = self._client.endpoint
        return RemoteError(f"what is at {where} does not answer as SQS does ({why}): check the endpoint")
