"""The messages of the protocol: one class for each operation and its answer, and the error.

A request and its answer are the same class; `type` tells them apart, as bucker's clients know it: what `recv()` returns
after `send(ListQueues())` is a `ListQueues`. Every field can be set; None, False and empty lists are not written.
Durations are seconds, times are microseconds since the Epoch, payloads are bytes (a str is stored as UTF-8). A field of
text takes a str, or bytes in UTF-8, which it decodes; anything else raises a TypeError at once: see `checked`. `parse`
and `serialize` check everything else. They are built on these classes, so this module imports neither: the package
hands them over with `set_codec`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from .checked import checked


class Receipt(NamedTuple):
    """A message id with the count of receives that its holder saw. A delete with a receipt fails when the message has
    been received again since."""

    mid: int
    receives: int


@checked
class Draft:
    """An entry of a list-form push: a message to store. delay: seconds until it becomes visible."""

    payload: bytes | str
    delay: float | None = None
    key: str | None = None


class Local:
    """Notes of a program at a message, beside the fields, which are what is on the wire. A note is not compared, and
    has no value until it is set. lease: how the client that received the message holds it; settled: True when it has
    deleted, released or rejected the message."""

    __slots__ = ("lease", "settled")

    if TYPE_CHECKING:  # an annotation would be a field
        lease: object
        settled: bool


@dataclass(slots=True)
class Delivery(Local):
    """An entry of a list-form answer: a message handed out, or peeked at. Times in microseconds since the Epoch.
    status: only of a peek; reason, dead_from, dead_mid, dead_receives, dead_at, dead_reason: see `GetMessage`."""

    mid: int
    payload: bytes
    qid: str | None = None
    receives: int | None = None
    pushed_at: int | None = None
    visible_at: int | None = None
    dead_from: str | None = None
    dead_mid: int | None = None
    dead_receives: int | None = None
    dead_at: int | None = None
    dead_reason: str | None = None
    status: str | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """The payload decoded as UTF-8. Raises UnicodeDecodeError when it is not UTF-8."""
        return self.payload.decode()


@checked
class QueueOptions:
    """Options of a queue: of `new-queue`, `set-queue` and the answer of `get-queue`; None for those that it does not
    name. visibility, retention, backoff, backoff_max: seconds; capacity: messages; dead_letter: a queue; max_receives:
    1 to 1000.

    removed: the fields whose options a `set-queue` removes. It writes them with an empty value. A field that has a
    value is not removed.
    """

    storage: str | None = None
    visibility: float | None = None
    capacity: int | None = None
    retention: float | None = None
    dead_letter: str | None = None
    max_receives: int | None = None
    backoff: float | None = None
    backoff_max: float | None = None
    removed: frozenset[str] = frozenset()


@dataclass(slots=True)
class QueueInfo:
    """An entry of a `queue-stats` answer. oldest: seconds; pushed, delivered, expired, deleted, dead, retired: since
    the start; waiting: receives that wait; dead_letter: the queue of its dead letters."""

    qid: str
    new: int | None = None
    ready: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    bytes: int | None = None
    oldest: float | None = None
    pushed: int | None = None
    delivered: int | None = None
    expired: int | None = None
    deleted: int | None = None
    storage: str | None = None
    dead: int | None = None
    retired: int | None = None
    paused: bool | None = None
    subscribers: int | None = None
    waiting: int | None = None
    dead_letter: str | None = None


@dataclass(slots=True)
class Claim:
    """The messages that a consumer claimed in one transaction. count: 0 when there was nothing to claim, and then the
    server keeps no claim; checksum: of the ids; since: when it was made, in microseconds since the Epoch; owner: the
    principal that the consumer belongs to, empty for clients without one, None for the client's own."""

    seq: int
    count: int
    bytes: int
    first: int | None = None
    last: int | None = None
    checksum: str | None = None
    consumer: str | None = None
    since: int | None = None
    owner: str | None = None


@dataclass(slots=True)
class Part:
    """A staged part to publish, and the attempt that won."""

    number: int
    attempt: int


@dataclass(slots=True)
class Figure:
    """One figure of a `server-stats` answer. name and labels: as in Prometheus, but that the name has no prefix; labels
    tell apart the figures of one name. docs/protocol.md lists them."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@checked(kw_only=True)
class Message(Local):
    """The envelope. type: `request`, `response` or `error`; req: the client's correlation id, at most 128 characters;
    resp: the server's, unique to each answer."""

    op: ClassVar[str] = ""
    required: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """The fields that a request must carry: at least one of each group."""
    may_be_empty: ClassVar[tuple[str, ...]] = ()
    """Those of them that are lists, and may be empty in a request."""
    selects: ClassVar[tuple[str, ...]] = ()
    """Further fields that name the messages of a request, where they are optional. Without this, the parser ignores ids
    in a request that does not need any."""

    type: str = "request"
    req: str | None = None
    resp: str | None = None

    _codec: ClassVar["_Codec"]

    if TYPE_CHECKING:  # `checked` adds these
        _type: ClassVar[str]
        _req: ClassVar[str | None]
        _resp: ClassVar[str | None]

    @property
    def request_id(self) -> str | None:
        """The correlation id under bucker's name: `req`."""
        return self.req

    @request_id.setter
    def request_id(self, req: str | None) -> None:
        self.req = req

    def answers(self, resp: str, req: str | None = None) -> None:
        """Turns the message into a response. resp: the id of the response; req: of the request, if it had one."""
        self._type, self._resp, self._req = "response", resp, req  # type: ignore[misc]

    @staticmethod
    def parse(xml: str | bytes) -> "Message":
        """Reads the message in a document. Raises ProtocolError when the text is not exactly one valid document.
        (bucker's `Message.parse`)"""
        return Message._codec.read(xml.encode() if isinstance(xml, str) else xml)

    def xml(self) -> str:
        """Writes the message as a document, without the line end that a stream adds. Raises ValueError and TypeError as
        `serialize` does. (bucker's `Message.xml`)"""
        return Message._codec.write(self).decode().rstrip("\r\n")


class _Codec(NamedTuple):
    """The two conversions that `Message.parse` and `Message.xml` offer."""

    read: Callable[[bytes], Message]
    write: Callable[[Message], bytes]


def set_codec(read: Callable[[bytes], Message], write: Callable[[Message], bytes]) -> None:
    """Gives `Message.parse` and `Message.xml` their conversions. The package calls it once, when it is imported.

    read: returns the message in the bytes of one document, and raises ProtocolError when there is not exactly one;
    write: returns the bytes of the document, with its line end.
    """
    Message._codec = _Codec(read, write)


@checked
class Error(Message):
    """An answer that says what went wrong. code and kind: a row of the error table; text: for people."""

    code: int = 500
    kind: str = "internal"
    text: str = ""
    type: str = field(default="error", kw_only=True)


@checked
class ListQueues(Message):
    """Lists all queues, sorted by name."""

    op: ClassVar[str] = "list-queues"
    queues: list[str] = field(default_factory=list)


@checked
class NewQueue(Message):
    """Creates a queue. exist_ok: one that exists is no conflict if it has the options that are named."""

    op: ClassVar[str] = "new-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    options: QueueOptions | None = None
    exist_ok: bool = False

    @property
    def dead_letter(self) -> str | None:
        """The dead-letter queue that the options name."""
        return None if self.options is None else self.options.dead_letter


@checked
class SetQueue(Message):
    """Changes options of a queue. Those that `options` does not name stay."""

    op: ClassVar[str] = "set-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("options",))
    qid: str | None = None
    options: QueueOptions | None = None

    @property
    def dead_letter(self) -> str | None:
        """The dead-letter queue that the options name."""
        return None if self.options is None else self.options.dead_letter


@checked
class GetQueue(Message):
    """The options of a queue."""

    op: ClassVar[str] = "get-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    options: QueueOptions | None = None


@checked
class DeleteQueue(Message):
    """Deletes a queue; with force also one that is not empty."""

    op: ClassVar[str] = "delete-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    force: bool = False


@checked
class ListMessages(Message):
    """Ids of messages, oldest first. state: new (default), ready, in-flight, delayed, all; after: only newer ids.
    early: the list travels in an `m` element, as the first clients of bucker send and expect it."""

    op: ClassVar[str] = "list-messages"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    state: str | None = None
    max: int | None = None
    after: int | None = None
    mids: list[int] = field(default_factory=list)
    early: bool = False


@checked
class PushMessage(Message):
    """Stores a message, or (list form) several, all or none. The answer carries mid or mids."""

    op: ClassVar[str] = "push-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("payload", "messages"))
    qid: str | None = None
    payload: bytes | str | None = None
    delay: float | None = None
    key: str | None = None
    messages: list[Draft] = field(default_factory=list)
    mid: int | None = None
    mids: list[int] = field(default_factory=list)

    if TYPE_CHECKING:
        _qid: ClassVar[str | None]
        _key: ClassVar[str | None]


@checked
class GetMessage(Message):
    """One message by its id, or (list form, only to peek) those of mids that exist. The answer's status: ready
    (peeked), delivered, in-flight or delayed: these two without payload, except in the list form. more: the document
    had no room for the other messages.

    reason: what the consumer wrote that released or rejected the message last. Of a dead letter, dead_from, dead_mid
    and dead_receives: the queue in which it was, its id there, and how often it was received there; dead_at: when it
    was moved, in microseconds since the Epoch; dead_reason: why, `receives` or `rejected`.
    """

    op: ClassVar[str] = "get-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid", "mids"))
    qid: str | None = None
    mid: int | None = None
    peek: bool = False
    visibility: float | None = None
    payload: bytes | str | None = None
    status: str | None = None
    receives: int | None = None
    pushed_at: int | None = None
    visible_at: int | None = None
    dead_from: str | None = None
    dead_mid: int | None = None
    dead_receives: int | None = None
    dead_at: int | None = None
    dead_reason: str | None = None
    reason: str | None = None
    mids: list[int | Receipt] = field(default_factory=list)
    messages: list[Delivery] = field(default_factory=list)
    more: bool = False

    if TYPE_CHECKING:
        _dead_from: ClassVar[str | None]
        _dead_reason: ClassVar[str | None]
        _reason: ClassVar[str | None]

    @property
    def text(self) -> str:
        """The payload decoded as UTF-8; "" when there is none. Raises UnicodeDecodeError when it is not UTF-8."""
        return self.payload if isinstance(self.payload, str) else (self.payload or b"").decode()


@checked
class ReceiveMessage(Message):
    """The oldest visible messages of one queue or several. wait: seconds to wait for the first."""

    op: ClassVar[str] = "receive-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid", "queues"),)
    qid: str | None = None
    queues: list[str] = field(default_factory=list)
    max: int | None = None
    wait: float | None = None
    visibility: float | None = None
    messages: list[Delivery] = field(default_factory=list)


@checked
class DeleteMessage(Message):
    """Acknowledges: removes one message, or (list form) those of mids that exist.
    receives: only if it has not been received again."""

    op: ClassVar[str] = "delete-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid", "mids"))
    qid: str | None = None
    mid: int | None = None
    receives: int | None = None
    mids: list[int | Receipt] = field(default_factory=list)


@checked
class ReleaseMessage(Message):
    """Gives a message back: visible again now, or after delay seconds, or as the queue's backoff says. reason: kept
    with the message, at most 1 KiB. uncounted: the receive does not count, as if the message had not been received
    (`op/@count="no"`)."""

    op: ClassVar[str] = "release-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid",))
    qid: str | None = None
    mid: int | None = None
    receives: int | None = None
    delay: float | None = None
    visible_at: int | None = None
    uncounted: bool = False
    reason: str | None = None

    if TYPE_CHECKING:
        _reason: ClassVar[str | None]


@checked
class RejectMessage(Message):
    """Makes a message a dead letter now, whatever its count of receives. reason: kept with it, at most 1 KiB."""

    op: ClassVar[str] = "reject-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid",))
    qid: str | None = None
    mid: int | None = None
    receives: int | None = None
    reason: str | None = None


@checked
class ExtendMessage(Message):
    """Moves the end of a message's visibility window to `visibility` seconds from now."""

    op: ClassVar[str] = "extend-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid",))
    qid: str | None = None
    mid: int | None = None
    receives: int | None = None
    visibility: float | None = None
    visible_at: int | None = None


@checked
class CopyMessage(Message):
    """Stores one message, or (list form) those of mids that exist, in other queues too, under the same ids."""

    op: ClassVar[str] = "copy-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid", "mids"), ("queues",))
    qid: str | None = None
    mid: int | None = None
    mids: list[int | Receipt] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)


@checked
class PurgeQueue(Message):
    """Removes every message of a queue, those in flight too. The answer's count: how many."""

    op: ClassVar[str] = "purge-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    count: int | None = None


@checked
class PauseQueue(Message):
    """Lets a queue give nothing out until it is resumed. It takes pushes all the while."""

    op: ClassVar[str] = "pause-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None


@checked
class ResumeQueue(Message):
    """Lets a paused queue give messages out again."""

    op: ClassVar[str] = "resume-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None


@checked
class RedriveMessages(Message):
    """Moves dead letters back into the queues that they came from, or into one queue. mids: those to move, none for
    all, in the answer their new ids; queues: the one destination, none for each letter's `dead_from`; max: how many at
    most. The answer's count: how many were moved."""

    op: ClassVar[str] = "redrive-messages"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    selects: ClassVar[tuple[str, ...]] = ("mids",)
    qid: str | None = None
    mids: list[int | Receipt] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    max: int | None = None
    count: int | None = None


@checked
class QueueStats(Message):
    """Figures of one queue, or of all."""

    op: ClassVar[str] = "queue-stats"
    qid: str | None = None
    queues: list[QueueInfo] = field(default_factory=list)


@checked
class ServerStats(Message):
    """Figures of the server, or of the bus. connections: asks for figures of each connection too."""

    op: ClassVar[str] = "server-stats"
    figures: list[Figure] = field(default_factory=list)
    connections: bool = False


@checked
class Subscribe(Message):
    """Deliveries by push. prefetch: unacknowledged at a time; ack and name: of the bus."""

    op: ClassVar[str] = "subscribe"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid", "queues"),)
    qid: str | None = None
    queues: list[str] = field(default_factory=list)
    prefetch: int | None = None
    visibility: float | None = None
    ack: str | None = None
    name: str | None = None


@checked
class Unsubscribe(Message):
    """Ends the subscription whose subscribe request had this req."""

    op: ClassVar[str] = "unsubscribe"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("subscription",),)
    subscription: str | None = None


@checked
class Authenticate(Message):
    """Says who the client is. The answer names the principal, and not the token. The token is not in the repr."""

    op: ClassVar[str] = "authenticate"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("token",),)
    token: str | None = field(default=None, repr=False)
    principal: str | None = None


@checked
class Ping(Message):
    """Asks for an answer, which names the program that answers. name: `qs-server` or `qs-bus`; None in a request, and
    from a server of an earlier version."""

    op: ClassVar[str] = "ping"
    name: str | None = None


@checked
class ClaimMessages(Message):
    """The oldest visible messages become claim `seq` of the consumer, in one transaction."""

    op: ClassVar[str] = "claim-messages"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("consumer",), ("seq",))
    qid: str | None = None
    consumer: str | None = None
    seq: int | None = None
    max: int | None = None
    max_bytes: int | None = None
    upto: int | None = None
    claim: Claim | None = None


@checked
class GetClaim(Message):
    """A slice of a claim, the same each time."""

    op: ClassVar[str] = "get-claim"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("consumer",), ("seq",))
    qid: str | None = None
    consumer: str | None = None
    seq: int | None = None
    part: int | None = None
    parts: int | None = None
    messages: list[Delivery] = field(default_factory=list)


@checked
class AckClaim(Message):
    """Deletes the messages of every claim up to and including seq."""

    op: ClassVar[str] = "ack-claim"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("consumer",), ("seq",))
    qid: str | None = None
    consumer: str | None = None
    seq: int | None = None


@checked
class ReleaseClaim(Message):
    """Makes the messages of a claim visible again. For operators. owner: the principal that the consumer belongs to,
    empty for clients without one; None for the client itself."""

    op: ClassVar[str] = "release-claim"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("consumer",), ("seq",))
    qid: str | None = None
    consumer: str | None = None
    seq: int | None = None
    owner: str | None = None
    count: int | None = None


@checked
class ListClaims(Message):
    """The claims on a queue that are neither acknowledged nor released: who holds what, since when."""

    op: ClassVar[str] = "list-claims"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    claims: list[Claim] = field(default_factory=list)


@checked
class StageMessages(Message):
    """Stores messages durably and invisibly, until their batch is published."""

    op: ClassVar[str] = "stage-messages"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("qid",),
        ("producer",),
        ("batch",),
        ("part",),
        ("attempt",),
        ("messages",),
    )
    may_be_empty: ClassVar[tuple[str, ...]] = ("messages",)
    qid: str | None = None
    producer: str | None = None
    batch: int | None = None
    part: int | None = None
    attempt: int | None = None
    count: int | None = None
    messages: list[Draft] = field(default_factory=list)


@checked
class PublishStaged(Message):
    """The staged messages named become visible, in order of part, in one transaction."""

    op: ClassVar[str] = "publish-staged"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("producer",), ("batch",))
    qid: str | None = None
    producer: str | None = None
    batch: int | None = None
    chosen: list[Part] = field(default_factory=list)


OPERATIONS: dict[str, type[Message]] = {
    cls.op: cls
    for cls in (
        ListQueues, NewQueue, SetQueue, GetQueue, DeleteQueue, ListMessages, PushMessage, GetMessage, ReceiveMessage,
        DeleteMessage, ReleaseMessage, RejectMessage, ExtendMessage, CopyMessage, PurgeQueue, PauseQueue, ResumeQueue,
        RedriveMessages, QueueStats, ServerStats, Subscribe, Unsubscribe, Authenticate, Ping, ClaimMessages, GetClaim,
        AckClaim, ReleaseClaim, ListClaims, StageMessages, PublishStaged,
    )
}  # fmt: skip
"""The class of each operation's messages, by the name that stands in `op`."""
