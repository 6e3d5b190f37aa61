"""What each method of a client asks the server and makes of the answer, written once for every client.

A call is a generator: it yields an `Exchange`, is sent the answer (an `Error` too), and returns the method's value. It
does no I/O and knows no connection; a client drives it in a few lines, sync or async. Trouble on the way is thrown into
it, so that a call of several exchanges can say how far it came.

Every call raises a `ServerError` when the server answers with an error (NotFound for a queue or message that does not
exist), `ServerUnavailable` when the connection fails, `NoAnswer` (also a TimeoutError) when no answer comes in time,
ValueError when a name holds characters that XML cannot carry or is bytes that are not UTF-8, and TypeError at once when
it is no text; its docstring adds what is particular to it.
"""

from collections.abc import Generator, Iterable
from typing import TypeAlias, TypeVar

from qs_schemas import (
    CopyMessage,
    DeleteMessage,
    DeleteQueue,
    Delivery,
    Draft,
    ExtendMessage,
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
    ReleaseMessage,
    Subscribe,
)
from qs_schemas.checked import text

from .asking import TEXT, Call, ask, queue_names, required
from .batches import MOST, draft, drafts_in_batches, in_batches
from .bounds import seconds, whole
from .errors import Conflict, NotFound, ServerError, ServerUnavailable

T = TypeVar("T")
M = TypeVar("M", bound=Message)


Pages: TypeAlias = Generator[Call[list[T]], list[T], None]
"""Yields calls that fetch one page each, is sent the page, ends after the last. Its method is an iterator."""

Received: TypeAlias = Delivery | GetMessage
"""A message as `receive` or `get` gave it: it knows its queue, its id and how often it had been received."""


def _message_key(message: str | Received, mid: int | Receipt | None) -> tuple[str, int, int | None]:
    """Queue, id and count of receives of a message that is given by (qid, mid) or as it was received."""
    if not isinstance(message, Delivery | GetMessage):
        qid = text("qid", message)
        if mid is None:
            raise TypeError("the message's id is missing: give (qid, mid), or what receive() returned")
        return qid, _number(mid), mid.receives if isinstance(mid, Receipt) else None
    if mid is not None:
        raise TypeError("a received message has its id: give either it, or (qid, mid)")
    # A message that was only peeked at is in nobody's hands, so there is nothing to be stale.
    receives = message.receives if isinstance(message, Delivery) or message.status == "delivered" else None
    return required(message.qid, "qid"), required(message.mid, "mid"), receives


def _number(entry: int | Receipt) -> int:
    """The id. ValueError or TypeError when it cannot be one."""
    return required(whole(entry.mid if isinstance(entry, Receipt) else entry, "mid"), "mid")


# -- queues -----------------------------------------------------------------------------------------------------------


def queues() -> Call[list[str]]:
    """The names of all queues, sorted."""
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
) -> Call[bool]:
    """Creates a queue; True when it did, False when the queue was there and exist_ok.

    qid: 1 to 200 characters, no control characters. storage: the name of an engine of the server; visibility: seconds
    that a received message stays hidden; capacity: messages, more are refused with Full; retention: seconds that a
    message is kept; dead_letter: the queue to which a message goes that was received max_receives times in vain.
    None leaves an option to the server. Raises Conflict when the queue exists (unless exist_ok), NotImplementedByServer
    when the storage cannot honour an option.
    """
    options = QueueOptions(
        storage,
        seconds(visibility, "visibility"),
        whole(capacity, "capacity", 1),
        seconds(retention, "retention"),
        dead_letter,
        whole(max_receives, "max_receives", 1),
    )
    try:
        yield from ask(NewQueue(qid, None if options == QueueOptions() else options))
    except Conflict:
        if not exist_ok:
            raise
        return False
    return True


def delete_queue(qid: str, *, force: bool = False, missing_ok: bool = False) -> Call[bool]:
    """Deletes a queue; True when it did, False when there was none and missing_ok.

    force: also when it holds messages, which are lost. Raises NotEmpty when it holds messages, without force.
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
    """Figures of one queue, or of all, sorted by name.

    In each: new, ready, in_flight, delayed (messages now), bytes, oldest (seconds that the oldest has waited), pushed,
    delivered, expired, deleted (since the server's start), storage. What the storage cannot tell is None.
    """
    return (yield from ask(QueueStats(qid))).queues


def ping() -> Call[None]:
    """Asks for an answer, to see that the server works."""
    yield from ask(Ping())


# -- messages in ------------------------------------------------------------------------------------------------------


def push(qid: str, payload: bytes | str, *, delay: float | None = None, key: str | None = None) -> Call[int]:
    """Stores a message and returns its id (mid): once this returns, the server has it.

    payload: bytes, or a str that is stored as UTF-8. delay: seconds until it becomes visible. key: makes the push safe
    to repeat after a lost answer: a second one with the same key within 5 minutes stores nothing and returns the
    first's id. Raises Full, TooLarge, and NotImplementedByServer when the server knows no keys.
    """
    entry = draft(payload)
    answer = yield from ask(PushMessage(qid, entry.payload, seconds(delay, "delay"), key))
    return required(answer.mid, "mid")


def push_many(qid: str, payloads: Iterable[bytes | str | Draft]) -> Call[list[int]]:
    """Stores messages and returns their ids, in order.

    payloads: any number, taken as they are needed; a `Draft(payload, delay, key)` where one has a delay or key. They
    travel in lists of at most 1000 messages and 4 MiB, each list stored whole or not at all. When a list after the
    first fails, the exception has a note that says how many messages are stored.
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


def receive(
    queues: str | Iterable[str],
    max: int = 1,  # noqa: A002 - named as the protocol names it
    wait: float = 0,
    visibility: float | None = None,
) -> Call[list[Delivery]]:
    """The oldest visible messages of a queue, or of several: up to max, ordered by id; none once wait has passed.

    Each is hidden from others for its visibility window; delete it before that ends, or it is handed out again.
    max: 1 to 1000; wait: seconds to wait for the first message, 0 for not at all; visibility: seconds, None for the
    queue's own.
    """
    whole(max, "max", 1)
    seconds(wait, "wait")
    seconds(visibility, "visibility")
    if isinstance(queues, TEXT):
        request = ReceiveMessage(queues, max=max, wait=wait, visibility=visibility)
    else:
        request = ReceiveMessage(queues=queue_names(queues), max=max, wait=wait, visibility=visibility)
    deliveries = (yield from ask(request, patience=wait or 0)).messages
    for delivery in deliveries:
        if delivery.qid is None:  # a server may leave out what was named in the request
            delivery.qid = request.qid
    return deliveries


def receive_one(queues: str | Iterable[str], wait: float = 0, visibility: float | None = None) -> Call[Delivery | None]:
    """The oldest visible message of a queue, or of several; None once wait has passed. As `receive` otherwise."""
    deliveries = yield from receive(queues, 1, wait, visibility)
    return deliveries[0] if deliveries else None


def get(qid: str, mid: int, *, visibility: float | None = None) -> Call[GetMessage]:
    """One message by its id. It leaves the list of new messages and its visibility window starts.

    visibility: seconds, None for the queue's own. In what is returned, status is `delivered`, or `in-flight` (inside
    another's window) or `delayed`: then payload is None and visible_at (microseconds) says until when.
    """
    return (yield from ask(GetMessage(qid, whole(mid, "mid"), visibility=seconds(visibility, "visibility"))))


def peek(qid: str, mid: int) -> Call[GetMessage]:
    """One message by its id, which is left as it is: still new, still visible. status and payload as `get` says."""
    return (yield from ask(GetMessage(qid, whole(mid, "mid"), peek=True)))


def _page(qid: str, state: str, after: int | None) -> Call[list[int]]:
    return (yield from ask(ListMessages(qid, state, MOST, whole(after, "after")))).mids


def _pages(qid: str, state: str, after: int | None) -> Pages[int]:
    mids = yield _page(qid, state, after)
    while len(mids) >= MOST:
        mids = yield _page(qid, state, mids[-1])


def list_messages(qid: str, *, state: str = "new", after: int | None = None) -> Pages[int]:
    """Iterates over the ids of a queue's messages, oldest first. Asks for 1000 at a time, as they are needed.

    state: new (never received yet), ready (visible now), in-flight, delayed, all. after: only ids greater than this.
    """
    return _pages(text("qid", qid), text("state", state), after)


def subscribe(queues: str | Iterable[str], *, prefetch: int | None = 100, visibility: float | None = None) -> Subscribe:
    """Iterates over the messages of a queue, or of several, as they come, for ever: the server sends each at once.

    delete() acknowledges a message, release() gives it back; both may be called on the same client inside the loop.
    prefetch: how many unacknowledged ones the server sends ahead, at least 1; visibility: seconds that each is hidden
    from others, None for the queue's own. Nothing is asked before the first message is. Leaving the loop, or close(),
    ends the subscription: what was sent ahead is given back, what was taken and not deleted stays with its taker until
    its window or the connection ends. Raises NotFound also later, when the queues have been deleted; ValueError at once
    when there are no names in queues.
    """
    whole(prefetch, "prefetch", 1)
    seconds(visibility, "visibility")
    if isinstance(queues, TEXT):
        return Subscribe(queues, prefetch=prefetch, visibility=visibility)
    wanted = queue_names(queues)
    if not wanted:
        raise ValueError("the queues to subscribe to are missing")
    return Subscribe(queues=wanted, prefetch=prefetch, visibility=visibility)


def copy(
    message: str | Received,
    mids: int | Receipt | Iterable[int | Receipt] | None = None,
    queues: str | Iterable[str] = (),
) -> Call[list[int]]:
    """Stores a message in other queues too, under the same id: `copy(delivery, queues=…)`, `copy(qid, mid, queues)` or
    `copy(qid, mids, queues)`, the latter in lists of 1000. It stays where it is, and a queue that holds the id already
    is left alone, so a copy can be repeated.

    queues: one name or several. Returns the ids of those that exist. Raises NotFound when one of the queues does not
    exist, or the one message named alone; Conflict when one of them holds another message of the id.
    """
    targets = queue_names(queues)
    if not targets:
        raise TypeError("the queues to copy to are missing")
    if mids is None or isinstance(mids, int | Receipt):
        qid, mid, _ = _message_key(message, mids)
        yield from ask(CopyMessage(qid, mid, queues=targets))
        return [mid]
    if isinstance(message, Delivery | GetMessage):
        raise TypeError("a received message has its id: give either it, or (qid, mids)")
    copied: list[int] = []
    for batch in in_batches(mids):
        answer = yield from ask(CopyMessage(message, mids=[_number(entry) for entry in batch], queues=targets))
        copied += map(_number, answer.mids)
    return copied


# -- messages done with -----------------------------------------------------------------------------------------------


def delete(message: str | Received, mid: int | Receipt | None = None) -> Call[None]:
    """Acknowledges: removes a message for good. `delete(delivery)`, or `delete(qid, mid)`.

    With a delivery (or a Receipt as mid), only if it has not been received again since: else Stale.
    """
    qid, number, receives = _message_key(message, mid)
    yield from ask(DeleteMessage(qid, number, receives))


def delete_many(messages: str | Iterable[Received], mids: Iterable[int | Receipt] = ()) -> Call[list[int]]:
    """Acknowledges many: `delete_many(deliveries)`, of any queues, or `delete_many(qid, mids)`. In lists of 1000.

    Returns the ids of those that were deleted. One that is missing there was deleted before, or (deliveries and
    Receipts) has been received again since.
    """
    by_queue: dict[str, list[int | Receipt]] = {}
    if isinstance(messages, TEXT):
        by_queue[text("qid", messages)] = entries = list(mids)
        for entry in entries:
            _number(entry)
    else:
        for qid, number, receives in (_message_key(message, None) for message in messages):
            receipt = number if receives is None else Receipt(number, receives)
            by_queue.setdefault(qid, []).append(receipt)
    deleted: list[int] = []
    for qid, entries in by_queue.items():
        for batch in in_batches(entries):
            answer = yield from ask(DeleteMessage(qid, mids=batch))
            deleted += map(_number, answer.mids)
    return deleted


def release(message: str | Received, mid: int | Receipt | None = None, *, delay: float | None = None) -> Call[None]:
    """Gives a message back: visible again now, or after delay seconds. `release(delivery)`, or `release(qid, mid)`.

    With a delivery, only if it has not been received again since: else Stale.
    """
    qid, number, receives = _message_key(message, mid)
    yield from ask(ReleaseMessage(qid, number, receives, seconds(delay, "delay")))


def extend(message: str | Received, mid: int | Receipt | None = None, *, visibility: float | None = None) -> Call[int]:
    """Keeps a message for longer: its window ends visibility seconds from now (None: the queue's own).

    `extend(delivery)`, or `extend(qid, mid)`. Returns the new end, microseconds since the Epoch. With a delivery, only
    if it has not been received again since: else Stale.
    """
    qid, number, receives = _message_key(message, mid)
    answer = yield from ask(ExtendMessage(qid, number, receives, seconds(visibility, "visibility")))
    return required(answer.visible_at, "visible-at")
