"""Makes calls about one queue at SQS, by its name and URL there.

Names at SQS are 1 to 80 of A-Z, a-z, 0-9, hyphen and underscore (CreateQueue, QueueName).
Every other byte, in UTF-8, is `_xHH`, in capitals: `a/b` is `a_x2Fb`. The underscore of such a group in a name is
`_x5F`: `a_x2Fb` is `a_x5Fx2Fb`. So no two names become the same.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from ...engine import BadQueueNameError, RemoteError, StorageError
from .client import CallError, SqsClient

MOST = 80
_PREFIX = re.compile("[A-Za-z0-9_-]{0,79}")
_QID = re.compile("[^\x00-\x1f\x7f-\x9f]+")
_GROUP = re.compile(rb"_x([0-9A-F]{2})")
_ESCAPED = re.compile("_(?=x[0-9A-F]{2})|[^A-Za-z0-9_-]")
_GONE = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
_THERE = frozenset({"QueueNameExists", "QueueAlreadyExists"})
_MAY_NOT = frozenset({"AccessDenied", "AccessDeniedException"})
_DELETED = frozenset({"QueueDeletedRecently"})


def check_prefix(prefix: str) -> None:
    """Raises StorageError unless names at SQS can begin like that."""
    if not _PREFIX.fullmatch(prefix):
        raise StorageError(
            f"the prefix of names at SQS is at most {MOST - 1} of A-Z, a-z, 0-9, '-' and '_'; this one is {prefix!r}"
        )


def name_at_sqs(qid: str, prefix: str) -> str:
    """Raises BadQueueNameError for a name that would be too long."""
    name = prefix + _ESCAPED.sub(_escape, qid)
    if len(name) > MOST:
        raise BadQueueNameError(
            f"at SQS, queue {qid!r} would need the name {name!r} of {len(name)} characters; {MOST} is the most: "
            "shorten its name, or use fewer characters other than A-Z, a-z, 0-9, '-' and '_'"
        )
    return name


def qid_of(name: str, prefix: str) -> str | None:
    """Returns None for a name that no queue of this prefix has."""
    if not name.startswith(prefix):
        return None
    raw = _GROUP.sub(lambda match: bytes.fromhex(match[1].decode()), name[len(prefix) :].encode())
    try:
        qid = raw.decode()
        return qid if _QID.fullmatch(qid) and name_at_sqs(qid, prefix) == name else None
    except (UnicodeDecodeError, BadQueueNameError):
        return None


def _escape(match: re.Match[str]) -> str:
    return "".join(f"_x{byte:02X}" for byte in match.group().encode())


class QueueCalls:
    """Several threads may use it. Methods raise RemoteError."""

    def __init__(self, client: SqsClient, qid: str, prefix: str) -> None:
        """prefix: of all names at SQS. BadQueueNameError."""
        self.client = client
        self._qid = qid
        self._name = name_at_sqs(qid, prefix)
        self._url: str | None = None

    def make(self, window: int, attributes: Mapping[str, str]) -> None:
        """Makes the queue, or takes up an existing one. window: seconds, for a new one; attributes: in SQS's words."""
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
