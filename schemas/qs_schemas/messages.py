"""The messages of the protocol: one class for each operation and its answer, and the error.

A request and its answer are the same class; `type` tells them apart, as bucker's clients know it: what `recv()` returns
after `send(ListQueues())` is a `ListQueues`. A class has the fields of both. Every field can be set; None, False and
empty lists are not written.

Durations are seconds, times are microseconds since the Epoch, payloads are bytes (a str is stored as UTF-8). A field of
text takes a str, or bytes in UTF-8, which it decodes; anything else raises a TypeError at once: see `checked`. `parse`
and `serialize` check everything else. They are built on these classes, so this module imports neither: the package
hands the functions over with `set_codec`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from .checked import checked


class Receipt(NamedTuple):
    """Names a message by its id and the count of receives that the consumer saw. A delete with a receipt fails if the
    message has been received again since."""

    mid: int
    receives: int


@checked
class Draft:
    """Describes a message to store: an entry of a list-form push."""

    payload: bytes | str
    delay: float | None = None
    """Seconds until the message becomes visible."""
    key: str | None = None
    """The idempotency key: for 5 minutes, another push with the same key stores nothing."""
    unique: bool = False
    """True if the key counts for as long as the message is in the queue, and no longer."""
    priority: int | None = None
    """0 (None means the same) to 9: a message of a higher priority is handed out first."""
    expires: float | None = None
    """Seconds after the push from which the message is not handed out any more."""
    group: str | None = None
    """The name of what must not overtake itself, at most 128 characters."""
    headers: dict[str, str] = field(default_factory=dict)
    """Text beside the payload, by name, see `headers.py`."""


class ClientState:
    """Holds the state that a client keeps with a message that it has received. `lease` is not a field: it does not
    travel, is not compared, and has no value until it is set."""

    __slots__ = ("lease", "settled")

    if TYPE_CHECKING:  # an annotation would be a field
        lease: object
        """The lease under which the client has the message in flight."""
        settled: bool
        """True after the client has deleted, released or rejected the message."""


@dataclass(slots=True)
class Delivery(ClientState):
    """Holds a message that was delivered or peeked at: an entry of a list-form answer. `GetMessage` documents the
    fields that both classes have."""

    mid: int
    payload: bytes
    qid: str | None = None
    """The queue of the message, in an answer about several queues."""
    receives: int | None = None
    pushed_at: int | None = None
    visible_at: int | None = None
    dead_from: str | None = None
    dead_mid: int | None = None
    dead_receives: int | None = None
    dead_at: int | None = None
    dead_reason: str | None = None
    status: str | None = None
    """None unless the message was peeked at."""
    reason: str | None = None
    priority: int | None = None
    group: str | None = None
    expires_at: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The payload decoded as UTF-8. Raises UnicodeDecodeError if the payload is not UTF-8."""
        return self.payload.decode()


@checked
class QueueOptions:
    """Holds the options of a queue, in `new-queue`, `set-queue` and the answer of `get-queue`. An option that a request
    does not name is None."""

    storage: str | None = None
    visibility: float | None = None
    """Seconds of the visibility window of a receive that names none."""
    capacity: int | None = None
    """The greatest number of messages."""
    retention: float | None = None
    """Seconds after its push in which a message is kept. One in flight is removed when its window ends."""
    dead_letter: str | None = None
    """The queue to which dead letters are moved."""
    max_receives: int | None = None
    """The receives after which a message becomes a dead letter, 1 to 1000."""
    backoff: float | None = None
    """Seconds until a message is visible again after a receive in vain. Each further one doubles them."""
    backoff_max: float | None = None
    """The most seconds that `backoff` grows to."""
    group_in_flight: int | None = None
    """The most messages of a group that are out at a time. 1, the default, is strict order within each group."""
    fair: bool | None = None
    """True if groups are served in turn, and not by age."""
    max_in_flight: int | None = None
    """The most messages of the queue that are out at a time."""
    rate: float | None = None
    """The most messages that are handed out a second, more than 0."""
    schema: str | None = None
    """The schema that the payloads have to obey: a file in the server's directory of schemas, without its suffix."""
    where: str | None = None
    """The condition of a bus's durable name, on the queue that the bus has made for the name."""
    removed: frozenset[str] = frozenset()
    """The fields whose options a `set-queue` removes. They are written with an empty value, as a missing attribute
    leaves the option alone. A field that has a value is not removed."""


@dataclass(slots=True)
class QueueInfo:
    """Holds the figures of one queue: an entry of a `queue-stats` answer. A figure that the queue's storage does not
    know is None.

    `pushed`, `delivered`, `expired`, `deleted`, `dead` and `retired` count since the start of the server.
    """

    qid: str
    new: int | None = None
    """Messages that were never received."""
    ready: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    bytes: int | None = None
    oldest: float | None = None
    """Seconds since the oldest message was pushed, None if there is none."""
    pushed: int | None = None
    delivered: int | None = None
    expired: int | None = None
    """Visibility windows that ended before the message was deleted."""
    deleted: int | None = None
    storage: str | None = None
    dead: int | None = None
    """Messages that became dead letters."""
    retired: int | None = None
    """Messages that were removed by retention."""
    paused: bool | None = None
    subscribers: int | None = None
    waiting: int | None = None
    """Receives that wait for a message."""
    dead_letter: str | None = None
    """The queue of its dead letters."""
    limited: str | None = None
    """The option that keeps all visible messages back now: `max-in-flight`, `rate` or `group-in-flight`."""
    schema: str | None = None
    """The schema that the payloads have to obey."""
    refused: int | None = None
    """Requests, and files of its directory, that the schema refused since the start of the server."""


@dataclass(slots=True)
class Claim:
    """Describes the messages that a consumer claimed in one transaction."""

    seq: int
    """The number that the consumer has given to the claim."""
    count: int
    """The number of messages. 0 if there was nothing to claim: then the server keeps no claim."""
    bytes: int
    first: int | None = None
    last: int | None = None
    """The ids of the first and the last message."""
    checksum: str | None = None
    """The checksum of the ids: two claims have the same one if and only if they have the same messages."""
    consumer: str | None = None
    since: int | None = None
    """The time at which the claim was made, in microseconds since the Epoch."""
    owner: str | None = None
    """The principal that the consumer belongs to, empty for clients without one, None for the client's own."""


@dataclass(slots=True)
class Part:
    """Names a staged part to publish, and which attempt of the part: the part's other attempts are dropped."""

    number: int
    attempt: int


@dataclass(slots=True)
class Figure:
    """Holds one figure of a `server-stats` answer. Name and labels are as in Prometheus, without the prefix of the
    name. docs/protocol.md lists them."""

    name: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)


@checked(kw_only=True)
class Message(ClientState):
    """Holds the envelope that all messages have."""

    op: ClassVar[str] = ""
    required: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """The fields that a request must carry: at least one of each group."""
    may_be_empty: ClassVar[tuple[str, ...]] = ()
    """The required fields that are lists and may be empty in a request."""
    selects: ClassVar[tuple[str, ...]] = ()
    """Further fields that name the messages of a request, where they are optional. Without this, the parser ignores ids
    in a request that does not need any."""

    type: str = "request"
    """`request`, `response` or `error`."""
    req: str | None = None
    """The correlation id of the client, at most 128 characters. The answer has it too."""
    resp: str | None = None
    """The id of the answer, which the server makes. No two answers have the same."""

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
        """Turns the message into a response. resp: the id of the response; req: the id of the request, if it had
        one."""
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
    """Holds the two conversions that `Message.parse` and `Message.xml` offer."""

    read: Callable[[bytes], Message]
    write: Callable[[Message], bytes]


def set_codec(read: Callable[[bytes], Message], write: Callable[[Message], bytes]) -> None:
    """Gives `Message.parse` and `Message.xml` their conversions. The package calls it once, when it is imported.

    read: returns the message in the bytes of one document, and raises ProtocolError if the bytes are not exactly one
    document; write: returns the bytes of a message's document, with the line end.
    """
    Message._codec = _Codec(read, write)


@checked
class Error(Message):
    """Says what went wrong. code and kind: a row of the error table; text: words for people."""

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
    """Creates a queue. exist_ok: True to accept a queue that exists, if it has the options that the request names."""

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
    """Changes options of a queue. Options that `options` does not name stay as they are."""

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
    """Asks for the options of a queue."""

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
    """Lists ids of messages, oldest first."""

    op: ClassVar[str] = "list-messages"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    state: str | None = None
    """new (the default), ready, in-flight, delayed or all."""
    max: int | None = None
    after: int | None = None
    """Only greater ids, which are newer."""
    mids: list[int] = field(default_factory=list)
    early: bool = False
    """The list travels in an `m` element, as the first clients of bucker send and expect it."""


@checked
class PushMessage(Message):
    """Stores a message, or in the list form several messages: either all or none. The answer carries mid or mids.
    `Draft` documents the fields that both classes have."""

    op: ClassVar[str] = "push-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("payload", "messages"))
    qid: str | None = None
    payload: bytes | str | None = None
    delay: float | None = None
    key: str | None = None
    messages: list[Draft] = field(default_factory=list)
    mid: int | None = None
    mids: list[int] = field(default_factory=list)
    unique: bool = False
    priority: int | None = None
    expires: float | None = None
    group: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    if TYPE_CHECKING:
        _qid: ClassVar[str | None]
        _key: ClassVar[str | None]
        _group: ClassVar[str | None]
        _headers: ClassVar[dict[str, str]]


@checked
class GetMessage(Message):
    """Receives or peeks at one message by its id, or in the list form peeks at those messages of `mids` that exist."""

    op: ClassVar[str] = "get-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid", "mids"))
    qid: str | None = None
    mid: int | None = None
    peek: bool = False
    visibility: float | None = None
    payload: bytes | str | None = None
    """The payload. None in an answer about a message in flight or delayed, except in the list form."""
    status: str | None = None
    """The state in an answer: ready (peeked), delivered, in-flight or delayed."""
    receives: int | None = None
    pushed_at: int | None = None
    visible_at: int | None = None
    """Times are microseconds since the Epoch."""
    dead_from: str | None = None
    """The queue in which a dead letter was before."""
    dead_mid: int | None = None
    """The id of a dead letter in the queue before."""
    dead_receives: int | None = None
    """How often a dead letter was received in the queue before."""
    dead_at: int | None = None
    """The time at which a dead letter was moved."""
    dead_reason: str | None = None
    """Why a message became a dead letter: `receives` or `rejected`."""
    reason: str | None = None
    """The reason that a consumer gave when it released or rejected the message last."""
    mids: list[int | Receipt] = field(default_factory=list)
    messages: list[Delivery] = field(default_factory=list)
    more: bool = False
    """True if the other messages did not fit into the document."""
    priority: int | None = None
    """The priority of the message, None for 0."""
    group: str | None = None
    """The group of the message, None if it has none."""
    expires_at: int | None = None
    """The time from which the message is not handed out any more, None for never."""
    headers: dict[str, str] = field(default_factory=dict)
    """The text beside the payload, by name. Empty where the answer has no payload."""

    if TYPE_CHECKING:
        _dead_from: ClassVar[str | None]
        _dead_reason: ClassVar[str | None]
        _reason: ClassVar[str | None]
        _group: ClassVar[str | None]
        _headers: ClassVar[dict[str, str]]

    @property
    def text(self) -> str:
        """The payload decoded as UTF-8; "" when there is none. Raises UnicodeDecodeError when it is not UTF-8."""
        return self.payload if isinstance(self.payload, str) else (self.payload or b"").decode()


@checked
class ReceiveMessage(Message):
    """Receives the next messages of one queue or several: of a higher priority first, within one priority the oldest.
    wait: seconds to wait for the first."""

    op: ClassVar[str] = "receive-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid", "queues"),)
    qid: str | None = None
    queues: list[str] = field(default_factory=list)
    max: int | None = None
    wait: float | None = None
    visibility: float | None = None
    messages: list[Delivery] = field(default_factory=list)
    order: str | None = None
    """oldest (the default), or given to empty the first queue named before the second is looked at."""


@checked
class DeleteMessage(Message):
    """Acknowledges: removes one message, or in the list form those messages of `mids` that exist. receives: the count
    of receives that the consumer saw; a message that has been received again since belongs to another consumer, and
    stays."""

    op: ClassVar[str] = "delete-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid", "mids"))
    qid: str | None = None
    mid: int | None = None
    receives: int | None = None
    mids: list[int | Receipt] = field(default_factory=list)


@checked
class ReleaseMessage(Message):
    """Gives a message back: the message is visible again now, or after `delay` seconds, or as the queue's back-off
    says."""

    op: ClassVar[str] = "release-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid",))
    qid: str | None = None
    mid: int | None = None
    receives: int | None = None
    delay: float | None = None
    visible_at: int | None = None
    uncounted: bool = False
    """True if the receive does not count, as if the message had not been received (`op/@count="no"`)."""
    reason: str | None = None
    """Text that is kept with the message, at most 1 KiB."""

    if TYPE_CHECKING:
        _reason: ClassVar[str | None]


@checked
class RejectMessage(Message):
    """Makes a message a dead letter now, whatever its count of receives. reason: text that is kept with the message, at
    most 1 KiB."""

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
    """Stores one message, or in the list form those messages of `mids` that exist, also in other queues, under the same
    ids."""

    op: ClassVar[str] = "copy-message"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("mid", "mids"), ("queues",))
    qid: str | None = None
    mid: int | None = None
    mids: list[int | Receipt] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)


@checked
class PurgeQueue(Message):
    """Removes every message of a queue, also those in flight. The answer's `count` is the number of removed
    messages."""

    op: ClassVar[str] = "purge-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    count: int | None = None


@checked
class PauseQueue(Message):
    """Pauses a queue: the queue delivers nothing until it is resumed, but still takes pushes."""

    op: ClassVar[str] = "pause-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None


@checked
class ResumeQueue(Message):
    """Resumes a paused queue, which then delivers messages again."""

    op: ClassVar[str] = "resume-queue"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None


@checked
class RedriveMessages(Message):
    """Moves dead letters back into the queues that they came from, or into one queue."""

    op: ClassVar[str] = "redrive-messages"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    selects: ClassVar[tuple[str, ...]] = ("mids",)
    qid: str | None = None
    mids: list[int | Receipt] = field(default_factory=list)
    """The ids to move, empty for all; in the answer, the new ids."""
    queues: list[str] = field(default_factory=list)
    """The one destination; empty to move each message to its `dead_from`."""
    max: int | None = None
    """The greatest number of messages to move."""
    count: int | None = None
    """The number of messages that were moved, in the answer."""


@checked
class QueueStats(Message):
    """Asks for the figures of one queue, or of all."""

    op: ClassVar[str] = "queue-stats"
    qid: str | None = None
    queues: list[QueueInfo] = field(default_factory=list)


@checked
class ServerStats(Message):
    """Asks for the figures of the server, or of the bus. connections: True to ask for the figures of each connection
    too."""

    op: ClassVar[str] = "server-stats"
    figures: list[Figure] = field(default_factory=list)
    connections: bool = False


@checked
class Subscribe(Message):
    """Subscribes to queues: the server sends messages as they become visible, without a request for each."""

    op: ClassVar[str] = "subscribe"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid", "queues"),)
    qid: str | None = None
    queues: list[str] = field(default_factory=list)
    prefetch: int | None = None
    """The most messages that are unacknowledged at a time."""
    visibility: float | None = None
    ack: str | None = None
    name: str | None = None
    """The acknowledgement and the durable name of a subscription to the bus."""
    where: str | None = None
    """The condition that messages have to match, see `bus/qs_bus/conditions`. Of the bus only."""
    match: str | None = None
    """`pattern` if the names of the queues are patterns, None if they are names. Of the bus only."""


@checked
class Unsubscribe(Message):
    """Ends the subscription whose subscribe request had this req."""

    op: ClassVar[str] = "unsubscribe"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("subscription",),)
    subscription: str | None = None


@checked
class Authenticate(Message):
    """Says who the client is. The answer names the principal, and not the token. The token is not in the repr, which
    logs and tracebacks show."""

    op: ClassVar[str] = "authenticate"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("token",),)
    token: str | None = field(default=None, repr=False)
    principal: str | None = None


@checked
class Ping(Message):
    """Asks for an answer, which names the program that answers. name: `qs-server` or `qs-bus`; None in a request, and
    in the answer of a server of an earlier version."""

    op: ClassVar[str] = "ping"
    name: str | None = None


@checked
class ClaimMessages(Message):
    """Claims the oldest visible messages in one transaction, as the consumer's claim `seq`. A repeated request with the
    same `seq` gets the same claim."""

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
    """Asks for a slice of the messages of a claim. The slice is the same each time."""

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
    """Makes the messages of a claim visible again, for operators. owner: the principal that the consumer belongs to;
    empty for clients without a principal, None for the client that asks."""

    op: ClassVar[str] = "release-claim"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",), ("consumer",), ("seq",))
    qid: str | None = None
    consumer: str | None = None
    seq: int | None = None
    owner: str | None = None
    count: int | None = None


@checked
class ListClaims(Message):
    """Lists the claims on a queue that are neither acknowledged nor released."""

    op: ClassVar[str] = "list-claims"
    required: ClassVar[tuple[tuple[str, ...], ...]] = (("qid",),)
    qid: str | None = None
    claims: list[Claim] = field(default_factory=list)


@checked
class StageMessages(Message):
    """Stores messages durably and invisibly, until their batch is published. Several attempts may stage the same part;
    one of them is published."""

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
    """Publishes staged parts: their messages become visible, in order of the parts, in one transaction."""

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
