"""The logic of each method of a client, written once for all clients: its requests and the value of their answers.

A call is a generator that yields an `Exchange`, is sent the answer (an `Error` too), and returns the method's value. It
does no I/O; a client drives it. Errors of the connection are thrown into it, so that a call of several exchanges can
say how far it came.

Every call raises `ServerError` when the server answers with an error (NotFound for a missing queue or message),
`ServerUnavailable` when the connection fails, `NoAnswer` (also a TimeoutError) when no answer comes in time, ValueError
when XML cannot carry a name or its bytes are not UTF-8, and TypeError when a name is not text. The docstrings name
further errors only.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

from qs_schemas import (
    CopyMessage,
    DeleteMessage,
    DeleteQueue,
    Delivery,
    Draft,
    ExtendMessage,
    Figure,
    GetMessage,
    ListMessages,
    ListQueues,
    Message,
    NewQueue,
    Ping,
    PurgeQueue,
    PushMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    Receipt,
    ReceiveMessage,
    RejectMessage,
    ReleaseMessage,
    ServerStats,
    Subscribe,
)
from qs_schemas.checked import text
from qs_schemas.limits import COPIES, EARLY_LIST

from .acknowledgements import MOST as MOST_OPEN
from .acknowledgements import Acknowledgements
from .asking import TEXT, Call, ask, ask_until_answered, checked_reason, queue_names, required
from .backoff import Outages
from .batches import MOST, checked_payload, drafts_in_batches, in_batches
from .bounds import check_attributes, checked_options, seconds, whole
from .errors import BadRequest, Conflict, NotFound, ServerError, ServerUnavailable, Stale, log
from .waiting import Lease

T = TypeVar("T")
M = TypeVar("M", bound=Message)

Pages: TypeAlias = Generator[Call[list[T]], list[T], None]
"""Yields calls that fetch one page each, is sent the page, ends after the last. Its method is an iterator."""

Received: TypeAlias = Delivery | GetMessage
"""A message that `receive` or `get` returned: it knows its queue, its id and its count of receives."""


def message_key(message: str | Received, mid: int | Receipt | None) -> tuple[str, int, int | None]:
    """Returns queue, id and count of receives of a message that is given as (qid, mid) or as a received message."""
    if not isinstance(message, Delivery | GetMessage):
        qid = text("qid", message)
        if mid is None:
            raise TypeError("the message's id is missing: give (qid, mid), or what receive() returned")
        return qid, _number(mid), mid.receives if isinstance(mid, Receipt) else None
    if mid is not None:
        raise TypeError("a received message has its id: give either the message or (qid, mid), not both")
    # A message that was only peeked at is not in flight, so it cannot be stale.
    receives = message.receives if isinstance(message, Delivery) or message.status == "delivered" else None
    return required(message.qid, "qid"), required(message.mid, "mid"), receives


def _number(entry: int | Receipt) -> int:
    """Returns the id. Raises ValueError or TypeError for a value that cannot be an id."""
    return required(whole(entry.mid if isinstance(entry, Receipt) else entry, "mid"), "mid")


# -- queues -----------------------------------------------------------------------------------------------------------


def queues() -> Call[list[str]]:
    """Returns the names of all queues, sorted."""
    return (yield from ask(ListQueues())).queues


def new_queue(
    qid: str,
    *,
    exist_ok: bool = False,
    storage: str | None = None,
    visibility: float | None = None,
    capacity: int | None = None,
    retention: float | None = None,
    dead_letter: str | None = None,
    max_receives: int | None = None,
    backoff: float | None = None,
    backoff_max: float | None = None,
    group_in_flight: int | None = None,
    fair: bool | None = None,
    max_in_flight: int | None = None,
    rate: float | None = None,
    schema: str | None = None,
    where: str | None = None,
) -> Call[bool]:
    """Creates a queue. Returns True, or False when it existed, exist_ok is set, and it has the options that are given.

    qid: 1 to 200 characters, no control characters. storage: the name of an engine of the server; visibility: seconds
    that a received message stays hidden; capacity: messages, more are refused with Full; retention: seconds, more than
    0, that a message is kept; dead_letter: the queue for messages that were received max_receives times (1 to 1000) in
    vain; backoff: seconds, more than 0, after which a message that was received in vain is visible again, twice as many
    each further time, up to backoff_max (3600); group_in_flight: messages of a group that are out at a time, 1 unless
    it is given, which is strict order; fair: True to serve groups in turn, not by age; max_in_flight: messages of the
    queue that are out at a time; rate: messages that are handed out a second, may be fractional; schema: the name of a
    file in the server's directory of schemas, which payloads have to obey; where: of a bus. None leaves an option to
    the server. Raises Conflict when the queue exists (with exist_ok: and one of the given options is another one
    there), or dead-letter queues would form a cycle, NotImplementedByServer when the storage lacks an option.
    """
    options = checked_options(
        QueueOptions(
            storage=storage,
            visibility=visibility,
            capacity=capacity,
            retention=retention,
            dead_letter=dead_letter,
            max_receives=max_receives,
            backoff=backoff,
            backoff_max=backoff_max,
            group_in_flight=group_in_flight,
            fair=fair,
            max_in_flight=max_in_flight,
            rate=rate,
            schema=schema,
            where=where,
        )
    )
    named = None if options == QueueOptions() else options  # what is not named is left to the server, and not compared
    try:
        yield from ask(NewQueue(qid, named))
    except Conflict:
        if not exist_ok:
            raise
        try:
            yield from ask(NewQueue(qid, named, exist_ok=True))  # compares them; alone it would not tell what it did
        except BadRequest as error:
            if "exist-ok" not in error.text:  # otherwise it is a server of an earlier version, which cannot compare
                raise
        return False
    return True


def delete_queue(qid: str, *, force: bool = False, missing_ok: bool = False) -> Call[bool]:
    """Deletes a queue. Returns True, or False when there was none and missing_ok is set.

    force: also delete its messages. Raises NotEmpty when it holds messages, without force.
    """
    try:
        yield from ask(DeleteQueue(qid, force))
    except NotFound:
        if not missing_ok:
            raise
        return False
    return True


def purge(qid: str) -> Call[int]:
    """Removes every message of a queue, those in flight too. Returns how many there were."""
    return required((yield from ask(PurgeQueue(qid))).count, "count")


def stats(qid: str | None = None) -> Call[list[QueueInfo]]:
    """Returns the figures of one queue, or of all, sorted by name.

    Each has: new, ready, in_flight, delayed (messages now), bytes, oldest (seconds that the oldest has waited), pushed,
    delivered, expired, deleted, dead (moved to a dead-letter queue), retired (removed by retention; all since the
    server's start), storage, paused, subscribers, waiting (receives), dead_letter (the queue of its dead letters, if
    there is one), limited (the option that keeps all visible messages back now: max-in-flight, rate or
    group-in-flight), schema (its name, if there is one) and refused (requests and files that it refused, since then).
    A figure that the storage cannot tell is None.
    """
    return (yield from ask(QueueStats(qid))).queues


def server_stats(*, connections: bool = False) -> Call[list[Figure]]:
    """Returns the figures of the server, or of the bus: each has a name, a value and labels, as Prometheus has them.

    docs/protocol.md lists the figures. Counters begin at 0 when the server starts. connections: also figures of each
    connection, at most 1,000: since when it is there, and its subscriptions, with the client's address and principal as
    labels. Raises Forbidden without the right to monitor the server.
    """
    return (yield from ask(ServerStats(connections=connections))).figures


def ping() -> Call[None]:
    """Checks that the server answers."""
    yield from ask(Ping())


# -- messages in ------------------------------------------------------------------------------------------------------


def push(
    qid: str,
    payload: bytes | str,
    *,
    delay: float | None = None,
    key: str | None = None,
    unique: bool = False,
    priority: int | None = None,
    expires: float | None = None,
    group: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Call[int]:
    """Stores a message and returns its id (mid). When this returns, the server has stored it.

    payload: bytes, or a str that is stored as UTF-8. delay: seconds until it becomes visible. key: makes the push safe
    to repeat: a second push with the same key within 5 minutes stores nothing and returns the first one's id. So with a
    key the push repeats itself after ServerUnavailable, for some 20 seconds of waiting; without one it never does.
    unique: True if the key counts for as long as the first one's message is in the queue, and no longer; then the push
    does not repeat itself either, as the message may have been handled meanwhile. priority: 0 (the default) to 9, a
    greater one is handed out first; expires: seconds, more than 0, after which the message is not handed out any more;
    group: 1 to 128 characters, names what must not overtake itself; headers: names and texts that come with the message
    wherever it goes, at most 32 and 8 KiB. Raises Invalid when the queue's schema does not allow the payload, Full,
    TooLarge, and NotImplementedByServer when the storage lacks one of these.
    """
    if type(payload) is not bytes and type(payload) is not str:
        checked_payload(payload)
    request = PushMessage(qid, payload, None if delay is None else seconds(delay, "delay"), key)
    # Most pushes say none of these, and cost no call more for them.
    if unique or headers or priority is not None or expires is not None or group is not None:
        request.unique, request.priority, request.expires, request.group = unique, priority, expires, group
        if headers:
            request.headers = headers  # type: ignore[assignment] # any mapping will do: the message makes a dict of it
        check_attributes(request)
    answer = yield from (ask(request) if key is None or unique else ask_until_answered(request))
    return answer.mid if answer.mid is not None else required(answer.mid, "mid")


def push_many(qid: str, payloads: Iterable[bytes | str | Draft]) -> Call[list[int]]:
    """Stores messages and returns their ids, in order.

    payloads: any number, read lazily; a `Draft(payload, delay=…, key=…)` for one that has more than a payload: it takes
    what `push` takes. They are sent in lists of at most 1000 messages and 4 MiB, each stored whole or not at all. When
    a list after the first fails, a note of the exception says how many messages are stored. The text of Invalid says
    which message of its list the queue's schema does not allow.
    """
    mids: list[int] = []
    for batch in drafts_in_batches(payloads):
        try:
            answer = yield from ask(PushMessage(qid, messages=batch))
        except (ServerError, ServerUnavailable) as error:
            if mids:
                error.add_note(f"the first {len(mids)} messages are stored")
            raise
        mids += answer.mids
    return mids


# -- messages out -----------------------------------------------------------------------------------------------------


Order: TypeAlias = Literal["oldest", "given"]
"""The order of a receive from several queues, see `receive`."""


def receive(
    queues: str | Iterable[str],
    max: int = 1,  # noqa: A002 - named as the protocol names it
    wait: float = 0,
    visibility: float | None = None,
    order: Order = "oldest",
) -> Call[list[Delivery]]:
    """Returns the visible messages of one queue or several that come first: up to max, those of a higher priority
    before others, then by id. Returns none once wait has passed.

    Each is hidden from others for its visibility window; delete it before that ends, or it is delivered again. max: 1
    to 1000; wait: seconds to wait for the first message, 0 for not at all; visibility: seconds, None for the queue's
    own; order: of several queues, "oldest" for all their messages as if they were one queue's, "given" to empty the
    first queue before the second is looked at.
    """
    whole(max, "max", 1)
    seconds(wait, "wait")
    seconds(visibility, "visibility")
    if isinstance(queues, TEXT):
        request = ReceiveMessage(queues, max=max, wait=wait, visibility=visibility)
    else:
        request = ReceiveMessage(queues=queue_names(queues), max=max, wait=wait, visibility=visibility)
    if order != "oldest":
        if order not in get_args(Order):
            raise ValueError(f"order is {order!r}: give 'oldest' or 'given'")
        request.order = order
    deliveries = (yield from ask(request, patience=wait or 0)).messages
    # Without one the length of the window is the queue's, which the answer does not tell: `handling` then computes it.
    lease = None if visibility is None else Lease(visibility)
    for delivery in deliveries:
        delivery.lease = lease  # type: ignore[misc] # mypy leaves out the slots of a base class
        if delivery.qid is None:  # servers may leave out the queue of the request
            delivery.qid = request.qid
    return deliveries


def receive_one(
    queues: str | Iterable[str], wait: float = 0, visibility: float | None = None, order: Order = "oldest"
) -> Call[Delivery | None]:
    """Returns the visible message of one queue or several that comes first, or None once wait has passed. Otherwise
    like `receive`."""
    deliveries = yield from receive(queues, 1, wait, visibility, order)
    return deliveries[0] if deliveries else None


def get(qid: str, mid: int, *, visibility: float | None = None) -> Call[GetMessage]:
    """Receives one message by its id: its visibility window starts, and it is no longer new.

    visibility: seconds, None for the queue's own. In the result, status is `delivered`, or `in-flight` or `delayed`:
    then payload is None and visible_at (microseconds) is the time when it can be received.
    """
    answer = yield from ask(GetMessage(qid, whole(mid, "mid"), visibility=seconds(visibility, "visibility")))
    if visibility is not None:
        answer.lease = Lease(visibility)
    return answer


def peek(qid: str, mid: int) -> Call[GetMessage]:
    """Returns one message by its id and leaves it unchanged. status and payload are as in `get`."""
    return (yield from ask(GetMessage(qid, whole(mid, "mid"), peek=True)))


def peek_many(qid: str, mids: Iterable[int], *, once: bool = False) -> Call[list[Delivery]]:
    """Returns the messages of these ids, in this order, without those that do not exist, and leaves them unchanged.

    mids: any number; they are asked for in lists of at most 1000, and again for what did not fit in an answer. once:
    asks once alone, for the first 1000 ids, and returns as many of them as fit in an answer. status: ready, in-flight
    or delayed; in contrast to `peek`, the payload comes with it whatever the status. Raises NotImplementedByServer when
    the storage gives no message by its id.
    """
    found: list[Delivery] = []
    for batch in in_batches(mids):
        wanted: list[int | Receipt] = [_number(mid) for mid in batch]
        while wanted:
            answer = yield from ask(GetMessage(qid, peek=True, mids=wanted))
            for message in answer.messages:
                message.qid = message.qid or qid
            found += answer.messages
            if once:
                return found
            if not (answer.more and answer.messages):
                break
            # The answer was full. What it lacks before its last message does not exist: only the rest is asked for.
            wanted = wanted[wanted.index(answer.messages[-1].mid) + 1 :]
    return found


def _page(qid: str, state: str, after: int | None) -> Call[list[int]]:
    return (yield from ask(ListMessages(qid, state, MOST, whole(after, "after")))).mids


def _pages(qid: str, state: str, after: int | None) -> Pages[int]:
    mids = yield _page(qid, state, after)
    while len(mids) >= EARLY_LIST:  # less than that is the last page, also of a port for early clients
        mids = yield _page(qid, state, mids[-1])


def list_messages(qid: str, *, state: str = "new", after: int | None = None) -> Pages[int]:
    """Iterates over the ids of a queue's messages, oldest first. Fetches 1000 at a time, as needed.

    state: new (never received yet), ready (visible now), in-flight, delayed, all. after: only ids greater than this.
    """
    return _pages(text("qid", qid), text("state", state), after)


Ack: TypeAlias = Literal["wait", "behind"]
"""How the messages of a subscription are acknowledged, see `subscribe`."""

_PREFETCH = 100
"""The server's prefetch for a subscription that names none."""


class Subscribing(NamedTuple):
    """A subscription: its request, the rules for a connection that is lost, and the acknowledgements that are open."""

    request: Subscribe
    outages: Outages
    acknowledgements: Acknowledgements


def subscribe(
    queues: str | Iterable[str],
    *,
    prefetch: int | None = 100,
    visibility: float | None = None,
    reconnect: bool | float = True,
    ack: Ack = "wait",
) -> Subscribing:
    """Iterates endlessly over the messages of one queue or several as they come: the server sends each at once.

    delete() acknowledges a message, release() gives it back; both may be called on the same client inside the loop.
    prefetch: how many unacknowledged messages the server sends ahead, at least 1; visibility: seconds that each is
    hidden from others, None for the queue's own. Nothing is sent before the first message is asked for. Leaving the
    loop, or close(), ends the subscription: messages that were sent ahead are released, those handed out stay in flight
    until their window or the connection ends. Raises NotFound also later, when the queues have been deleted; ValueError
    at once when queues is empty.

    reconnect: after a lost connection, subscribe again: True for ever, a number for that many seconds of an outage,
    False to raise ServerUnavailable at once. The first attempt always raises it. The server has taken back the messages
    of the lost connection, and delivers them again, so a `delete` or `release` that comes too late for one of them is
    no error.

    ack: "wait": delete() of a delivery and the end of `handling` wait until the server has deleted the message;
    "behind": they write the request and return, and its answer is read with the next messages. At most as many are open
    as the prefetch, and 256. If the program is killed, messages that it has handled may come again; none is lost. The
    end of the iteration, close() and disconnect() wait until all are confirmed. A message that was taken away meanwhile
    is logged, and counted in `taken_away` of the iterator; any other error of an acknowledgement is raised when the
    next message is asked for.
    """
    if ack not in get_args(Ack):
        raise ValueError(f"ack is {ack!r}: give 'wait' or 'behind'")
    whole(prefetch, "prefetch", 1)
    seconds(visibility, "visibility")
    if not isinstance(reconnect, bool) and seconds(reconnect, "reconnect") is None:
        raise TypeError("reconnect is True, False or a number of seconds, not None")
    names = [text("a queue's name", queues)] if isinstance(queues, TEXT) else queue_names(queues)
    if not names:
        raise ValueError("the queues to subscribe to are missing: name at least one")
    request = Subscribe(prefetch=prefetch, visibility=visibility)
    if isinstance(queues, TEXT):
        request.qid = names[0]
    else:
        request.queues = names
    behind = 0 if ack == "wait" else min(prefetch or _PREFETCH, MOST_OPEN)
    return Subscribing(request, Outages(", ".join(map(repr, names)), reconnect), Acknowledgements(behind))


def copy(
    message: str | Received,
    mids: int | Receipt | Iterable[int | Receipt] | None = None,
    queues: str | Iterable[str] = (),
) -> Call[list[int]]:
    """Stores a message in other queues too, under the same id: `copy(delivery, queues=…)`, `copy(qid, mid, queues)` or
    `copy(qid, mids, queues)`, the last in lists of at most 1000 ids and 3000 copies. The original stays. A queue that
    has the id already is left unchanged, so a copy can be repeated.

    queues: one name or several. Returns the ids of the messages that exist. Raises NotFound when one of the queues does
    not exist, or the single message; Conflict when one of them has another message of this id.
    """
    targets = queue_names(queues)
    if not targets:
        raise TypeError("the queues to copy to are missing: name at least one")
    if mids is None or isinstance(mids, int | Receipt):
        qid, mid, _ = message_key(message, mids)
        yield from ask(CopyMessage(qid, mid, queues=targets))
        return [mid]
    if isinstance(message, Delivery | GetMessage):
        raise TypeError("a received message has its id: give either the message or (qid, mids), not both")
    copied: list[int] = []
    # At most as many copies at once as a server makes in one request.
    for batch in in_batches(mids, min(MOST, max(COPIES // len(targets), 1))):
        answer = yield from ask(CopyMessage(message, mids=[_number(entry) for entry in batch], queues=targets))
        copied += map(_number, answer.mids)
    return copied


# -- messages done with -----------------------------------------------------------------------------------------------


def lease_of(message: str | Received) -> Lease | None:
    """Returns how a message was received, None for one that did not come by a subscription."""
    lease = getattr(message, "lease", None)
    return lease if isinstance(lease, Lease) else None


def delete(message: str | Received, mid: int | Receipt | None = None) -> Call[None]:
    """Acknowledges: removes a message. `delete(delivery)`, or `delete(qid, mid)`.

    If the message came by a subscription with ack="behind", this waits for no answer, and raises none of its errors.
    Raises Stale when a delivery (or a Receipt as mid) has been received again since. If the server took the message
    back because the subscription's connection was lost, the message comes again, and that is logged instead.
    """
    qid, number, receives = message_key(message, mid)
    yield from _settled(message, DeleteMessage(qid, number, receives))


def _settled(message: str | Received, request: DeleteMessage | ReleaseMessage | RejectMessage) -> Call[None]:
    """Sends the request that ends a receive. If the connection by which the program held the message was lost, an
    answer that another client has the message now is not an error of this program."""
    lease = lease_of(message)
    try:
        yield from ask(request, lease=lease if isinstance(request, DeleteMessage) else None)
    except (Stale, NotFound) as error:
        if lease is None or not lease.lost:
            raise
        log("info", f"message {request.mid} of {request.qid!r} had gone back when its connection was lost ({error})")
    if isinstance(message, Delivery | GetMessage):
        message.settled = True  # `handling` leaves it alone then


def delete_many(messages: str | Iterable[Received], mids: Iterable[int | Receipt] = ()) -> Call[list[int]]:
    """Acknowledges many messages, in lists of 1000: `delete_many(deliveries)`, of any queues, or `delete_many(qid,
    mids)`.

    Returns the ids of the deleted messages. A message whose id is missing was deleted before, or (deliveries and
    Receipts) has been received again since.
    """
    by_queue: dict[str, list[int | Receipt]] = {}
    if isinstance(messages, TEXT):
        by_queue[text("qid", messages)] = entries = list(mids)
        for entry in entries:  # all, before the first list is sent: a wrong one leaves nothing half done
            _number(entry)
    else:
        for qid, number, receives in (message_key(message, None) for message in messages):
            receipt = number if receives is None else Receipt(number, receives)
            by_queue.setdefault(qid, []).append(receipt)
    deleted: list[int] = []
    for qid, entries in by_queue.items():
        for batch in in_batches(entries):
            answer = yield from ask(DeleteMessage(qid, mids=batch))
            deleted += map(_number, answer.mids)
    return deleted


def release(
    message: str | Received,
    mid: int | Receipt | None = None,
    *,
    delay: float | None = None,
    count: bool = True,
    reason: str | None = None,
) -> Call[None]:
    """Releases a message: it is visible again after delay seconds; without one after the queue's backoff, or now.
    `release(delivery)`, or `release(qid, mid)`.

    count: False takes this receive back, for a consumer that did not try: the message comes no closer to a dead-letter
    queue. reason: why, at most 1 KiB of UTF-8; kept with the message in place of an earlier one. Raises Stale as
    `delete` does, and when nobody holds the message; NotImplementedByServer when the storage keeps no reasons.
    """
    qid, number, receives = message_key(message, mid)
    delay = seconds(delay, "delay")
    request = ReleaseMessage(qid, number, receives, delay, uncounted=not count, reason=checked_reason(reason))
    yield from _settled(message, request)


def reject(message: str | Received, mid: int | Receipt | None = None, *, reason: str | None = None) -> Call[None]:
    """Makes a message a dead letter now, as no further attempt would help. `reject(delivery)`, or `reject(qid, mid)`.

    reason: as in `release`. Raises Conflict when the queue names no dead-letter queue, Stale as `delete` does,
    NotImplementedByServer when the storage has no dead letters.
    """
    qid, number, receives = message_key(message, mid)
    yield from _settled(message, RejectMessage(qid, number, receives, checked_reason(reason)))


def extend(message: str | Received, mid: int | Receipt | None = None, *, visibility: float | None = None) -> Call[int]:
    """Extends a message's window to visibility seconds from now (None: the queue's own).

    `extend(delivery)`, or `extend(qid, mid)`. Returns the new end, in microseconds since the Epoch. Raises Stale when a
    delivery has been received again since.
    """
    qid, number, receives = message_key(message, mid)
    answer = yield from ask(ExtendMessage(qid, number, receives, seconds(visibility, "visibility")))
    return required(answer.visible_at, "visible-at")
