"""Makes calls about one queue at SQS, by its name and URL there."""

from collections.abc import Collection, Mapping
from typing import Any

from ...engine import RemoteError
from .client import CallError, SqsClient
from .queue_names import name_at_sqs

_GONE = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
_THERE = frozenset({"QueueNameExists", "QueueAlreadyExists"})
_MAY_NOT = frozenset({"AccessDenied", "AccessDeniedException"})
_DELETED = frozenset({"QueueDeletedRecently"})


class QueueCalls:
    """Several threads may use it. Methods raise RemoteError."""

    def __init__(self, client: SqsClient, qid: str, prefix: str) -> None:
        """prefix: of all names at SQS. BadQueueNameError."""
        self.client = client
        self._qid = qid
        self._name = name_at_sqs(qid, prefix)
        self._url: str | None = None

    def make(self, window: int, attributes: Mapping[str, str]) -> None:
        """Makes the queue, or takes up an existing one. window: seconds, for a new one; attributes: others, in SQS's
        words."""
        wanted = {"VisibilityTimeout": str(window), **attributes}
        try:
            self._url = self._url_in(self.client.call("create_queue", QueueName=self._name, Attributes=wanted))
        except CallError as error:
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
            self.set_attributes(attributes)

    def attributes(self, names: Collection[str]) -> dict[str, str]:
        """Attributes that are not set are missing."""
        answer = self.call("get_queue_attributes", AttributeNames=[*names])
        found: dict[str, str] = answer.get("Attributes", {})
        return found

    def set_attributes(self, attributes: Mapping[str, str]) -> None:
        """An empty value removes an attribute."""
        if attributes:
            self.call("set_queue_attributes", Attributes=dict(attributes))

    def remove(self) -> None:
        """A missing queue is no error."""
        try:
            self.client.call("delete_queue", QueueUrl=self._url or self._find())
        except CallError as error:
            if not error.codes & _GONE:
                raise

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Does an operation of boto3. CallError."""
        try:
            return self.client.call(operation, QueueUrl=self._url or self._find(), **parameters)
        except CallError as error:
            if not error.codes & _GONE:
                raise
            self._url = None
            raise CallError(
                f"there is no queue {self._name!r} at SQS ({self.client.endpoint}), where {self._qid!r} keeps its "
                f"messages: make it there, or remove {self._qid!r} here, and make it again",
                error.codes,
            ) from None

    def _find(self) -> str:
        url = self._url = self._url_in(self.client.call("get_queue_url", QueueName=self._name))
        return url

    def _url_in(self, answer: dict[str, Any]) -> str:
        url = answer.get("QueueUrl")
        if not isinstance(url, str):
            raise self.not_sqs("no QueueUrl")
        return url

    def not_sqs(self, why: object) -> RemoteError:
        """Returns the error for an answer that is not SQS's."""
        where = self.client.endpoint
        return RemoteError(f"what is at {where} does not answer as SQS does ({why}): check the endpoint")
