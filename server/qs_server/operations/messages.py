"""Implements the operations on messages. Each is a function from a request to its answer, or a generator if it may take
long.

`table.py` lists all operations, and `service.py` has the parts that they share.
"""

from collections.abc import Generator, Iterable, Sequence
from functools import partial

import qs_schemas as wire
from qs_schemas import Message
from qs_schemas.limits import COPIES
from qs_storage.engine import (
    SECOND,
    Draft,
    NoSuchMessageError,
    Queue,
    Receipt,
    RemoteError,
    StaleReceiptError,
    State,
)
from qs_storage.engine import Message as Stored

from ..broker.jobs import Pause
from ..broker.subscriber import bytes_of, delivery_of, entry_of, with_origin
from .service import Answer, BadRequestError, Service, duration, in_room, microseconds, mid_of, qid_of

_IDS = 2
"""Ids of messages that an answer takes for one unit of work: see `Service.spent`."""
_CHUNK = 10
"""Messages of a list that are deleted before the handler looks again if the time slice is over."""
_PEEK = 4
"""Units of work for a message that is peeked at: its payload may have to be read from the disk."""
_new = tuple.__new__
"""`_new(Draft, …)` takes half the time of `Draft(…)`, which is a function in Python."""


def _bytes(payload: bytes | str | None) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload or b""


def list_messages(service: Service, request: wire.ListMessages) -> Message:
    mids = service.storage.queue(qid_of(request)).list_mids(
        State(request.state or "new"),
        service.list_length if request.max is None else min(request.max, service.list_length),
        -1 if request.after is None else request.after,
    )
    service.spent += len(mids) // _IDS
    return wire.ListMessages(request.qid, mids=mids, early=request.early)


def push_message(service: Service, request: wire.PushMessage) -> Message | Answer:
    drafts, queue = drafts_of(service, request), service.storage.queue(request.qid or "")
    return _push_checked(service, request, drafts) if queue.options.schema else _pushed(request, queue.push(drafts))


def _pushed(request: wire.PushMessage, mids: list[int]) -> Message:
    return wire.PushMessage(request.qid, mids=mids) if request.messages else wire.PushMessage(request.qid, mid=mids[0])


def _push_checked(service: Service, request: wire.PushMessage, drafts: list[Draft]) -> Answer:
    qid = request.qid or ""
    options = partial(service.storage.options, qid)
    yield from service.door.checked(qid, options, [draft.payload for draft in drafts])
    # The check is not made again because a step lacks room.
    return _pushed(request, (yield from in_room(lambda: service.storage.queue(qid).push(drafts))))


def drafts_of(service: Service, request: wire.PushMessage) -> list[Draft]:
    """Returns the messages of a push. BadRequestError, NotAllowedError."""
    if request.messages:
        if request.payload is not None:
            raise BadRequestError("push-message takes either 'payload' or 'messages', and this one has both")
        _refuse_beside_list(request)
    delay = 0 if request.delay is None else round(request.delay * SECOND)  # for drafts without their own
    drafts: list[Draft] = []
    for given in request.messages or (request,):
        payload, key, expires = given.payload, given.key, given.expires
        if given.unique and key is None:
            raise BadRequestError("unique='yes' needs a 'key': it says which messages are the same")
        drafts.append(
            _new(
                Draft,
                (
                    payload if isinstance(payload, bytes) else _bytes(payload),
                    delay if given.delay is None else round(given.delay * SECOND),
                    None if key is None else service.owned(key),
                    given.unique,
                    given.priority or 0,
                    None if expires is None else duration(expires),
                    given.group or "",
                    tuple(given.headers.items()),
                ),
            )
        )
    return drafts


def _refuse_beside_list(request: wire.PushMessage) -> None:
    """Refuses what a push in list form says of all its messages, except for a delay. BadRequestError."""
    for name in ("key", "unique", "priority", "expires", "group"):
        if (value := getattr(request, name)) is not None and value is not False:
            raise BadRequestError(f"a list has a '{name}' for each 'message', and none on 'op'")
    if request.headers:
        raise BadRequestError("a list has 'headers' inside of each 'message', and none beside 'messages'")


def get_message(service: Service, request: wire.GetMessage) -> Message | Answer:
    if request.mids:
        return _peek_list(service, request)
    # A subscriber that asks for a message that it holds gets it again, without another receive.
    found = _read_own(service, qid_of(request), mid_of(request))
    if found is None:
        visibility = microseconds(request.visibility)
        found = service.storage.queue(qid_of(request)).get(mid_of(request), peek=request.peek, visibility=visibility)
    return delivery_of(found)


def _peek_list(service: Service, request: wire.GetMessage) -> Answer:
    """Answers with the messages that exist, in the order asked, up to the first one that does not fit into the answer
    any more."""
    if request.mid is not None:
        raise BadRequestError("get-message takes either 'mid' or 'messages', and this one has both")
    if not request.peek:
        raise BadRequestError("the list form of get-message only peeks: say peek='yes' on 'op', or use receive-message")
    answer = wire.GetMessage(request.qid)
    room = service.document
    for entry in request.mids:
        if service.turn_is_over:
            yield Pause()
        service.spent += _PEEK
        found = _peek(service.storage.queue(qid_of(request)), entry.mid if isinstance(entry, wire.Receipt) else entry)
        if found is None:
            continue
        room -= len(found.payload or b"") + len(found.reason or "") + bytes_of(found.headers)
        if room < 0 and answer.messages:
            answer.more = True
            break
        answer.messages.append(entry_of(found, found.status))
    return answer


def _peek(queue: Queue, mid: int) -> Stored | None:
    """Returns a message with its payload, whatever its state. Returns None if there is no such message, or if a claim
    holds the message."""
    try:
        found = queue.get(mid, peek=True, visibility=None)
        if found.payload is None:
            hidden = queue.read(Receipt(mid))
            found.payload, found.headers = hidden.payload, hidden.headers
    except (NoSuchMessageError, StaleReceiptError):
        return None
    return found


def _read_own(service: Service, qid: str, mid: int) -> Stored | None:
    """Returns a message if this client holds the message by a subscription, else None."""
    subscriber = service.subscriber
    receipt = None if subscriber is None else service.subscriptions.receipt(subscriber, qid, mid)
    if receipt is None:
        return None
    try:
        found = service.storage.queue(qid).read(receipt)
    except (NoSuchMessageError, StaleReceiptError):
        return None  # another process has taken it
    return found if found.visible_at is not None else None


def receive_message(service: Service, request: wire.ReceiveMessage) -> Message | Answer:
    qids, most, visibility = what_to_receive(service, request)
    given = request.order == "given"
    found = service.storage.receive(qids, most, visibility, service.document, given=given)
    if len(qids) > 1:
        service.spent += len(qids)  # each queue is looked at
    if found or not request.wait:
        return received(found)
    return _wait_to_receive(service, request, qids, most, visibility)


def _wait_to_receive(
    service: Service, request: wire.ReceiveMessage, qids: tuple[str, ...], most: int, visibility: int | None
) -> Answer:
    """Waits until a queue has a message that may be handed out and receives, or answers without messages when the time
    is over."""
    pause = Pause(qids, request.wait or 0)  # always the same, to keep the position among the waiting works
    given = request.order == "given"
    while True:
        over = bool((yield pause))
        # If one queue was deleted meanwhile, messages of the others are still received.
        known = service.storage.queues()
        qids = tuple(filter(known.__contains__, qids)) or qids
        found = service.storage.receive(qids, most, visibility, service.document, given=given)
        if found or over:
            return received(found)


def what_to_receive(service: Service, request: wire.ReceiveMessage) -> tuple[tuple[str, ...], int, int | None]:
    """Returns (queues, the most messages, visibility in microseconds or None). Raises BadRequestError if the request
    names queues in both ways."""
    if request.qid is not None and request.queues:
        raise BadRequestError("receive-message takes either 'qid' or 'queues', and this one has both")
    qids = tuple(dict.fromkeys(request.queues)) if request.queues else (request.qid or "",)
    most = 1 if request.max is None else min(request.max, service.list_length)
    return qids, most, None if request.visibility is None else round(request.visibility * SECOND)


def received(found: Sequence[Stored]) -> Message:
    """Returns the answer to a receive."""
    deliveries: list[wire.Delivery] = []
    for m in found:
        delivery = wire.Delivery(
            m.mid,
            m.payload or b"",
            m.qid,
            m.receives,
            m.pushed_at,
            m.visible_at,
            reason=m.reason,
            priority=m.priority or None,
            group=m.group or None,
            expires_at=m.expires_at,
            headers=dict(m.headers),
        )
        deliveries.append(delivery if m.origin is None else with_origin(delivery, m.origin))
    return wire.ReceiveMessage(messages=deliveries)


def delete_message(service: Service, request: wire.DeleteMessage) -> Message | Answer:
    qid, receipts = request.qid or "", receipts_of(request)
    if request.mid is None:
        return _delete_list(service, qid, receipts)
    _delete(service, qid, receipts[0])
    return wire.DeleteMessage(qid, request.mid)


def receipts_of(request: wire.DeleteMessage) -> list[Receipt]:
    """Returns the messages that a request deletes. BadRequestError."""
    if request.mid is None:
        return [Receipt(*entry) if isinstance(entry, wire.Receipt) else Receipt(entry) for entry in request.mids]
    if request.mids:
        raise BadRequestError("delete-message takes either 'mid' or 'messages', and this one has both")
    return [_new(Receipt, (request.mid, request.receives))]


def _delete_list(service: Service, qid: str, receipts: Sequence[Receipt]) -> Answer:
    deleted: list[int | wire.Receipt] = []
    for at in range(0, len(receipts), _CHUNK):
        if service.turn_is_over:
            yield Pause()
        chunk = receipts[at : at + _CHUNK]
        service.spent += len(chunk)
        for receipt in chunk:
            try:
                _delete(service, qid, receipt)
            except (NoSuchMessageError, StaleReceiptError):
                continue  # the answer lists the deleted ids, so the client sees the others
            except (OSError, RemoteError):
                if not deleted:
                    raise
                return wire.DeleteMessage(qid, mids=deleted)  # the messages deleted before
            deleted.append(receipt.mid)
    return wire.DeleteMessage(qid, mids=deleted)


def _delete(service: Service, qid: str, receipt: Receipt) -> None:
    try:
        service.storage.queue(qid).delete(receipt)
    except NoSuchMessageError:
        service.subscriptions.settled(qid, receipt.mid)  # another process has deleted it
        raise
    if service.subscriptions.busy:  # else there are no leases, and most requests are about messages without one
        service.subscriptions.settled(qid, receipt.mid)


def release_message(service: Service, request: wire.ReleaseMessage) -> Message:
    qid, receipt = request.qid or "", _new(Receipt, (request.mid or 0, request.receives))
    delay = None if request.delay is None else round(request.delay * SECOND)
    queue = service.storage.queue(qid)
    visible_at = queue.release(receipt, delay, count=not request.uncounted, reason=request.reason or None)
    if service.subscriptions.busy:
        service.subscriptions.settled(qid, receipt.mid)
    return wire.ReleaseMessage(qid, receipt.mid, visible_at=visible_at)


def reject_message(service: Service, request: wire.RejectMessage) -> Message:
    receipt = Receipt(mid_of(request), request.receives)
    service.storage.queue(qid_of(request)).reject(receipt, request.reason or None)
    service.subscriptions.settled(qid_of(request), receipt.mid)
    return wire.RejectMessage(request.qid, request.mid)


def extend_message(service: Service, request: wire.ExtendMessage) -> Message:
    receipt = Receipt(mid_of(request), request.receives)
    visible_at = service.storage.queue(qid_of(request)).extend(receipt, microseconds(request.visibility))
    service.subscriptions.extended(qid_of(request), receipt.mid, visible_at)
    return wire.ExtendMessage(request.qid, request.mid, visible_at=visible_at)


def copy_message(service: Service, request: wire.CopyMessage) -> Message | Answer:
    qid, mids, queues = qid_of(request), request.mids, request.queues
    if request.mid is not None and mids:
        raise BadRequestError("copy-message takes either 'mid' or 'messages', and this one has both")
    if (asked := max(len(mids), 1) * len(queues)) > COPIES:
        raise BadRequestError(
            f"{max(len(mids), 1)} ids into {len(queues)} queues are {asked} copies, and one copy-message makes at most "
            f"{COPIES}: send several, each with fewer ids or fewer queues"
        )
    if request.mid is None:
        return _copy_list(service, qid, mids, queues)
    if any(service.storage.queue(target).options.schema for target in queues):
        return _copy_checked(service, qid, request.mid, queues)
    service.spent += 2 * len(queues)  # a copy is a look into one queue and a push into another
    # One step, however many queues: one frame has all copies, so that a crash leaves all or none.
    service.storage.copy(qid, request.mid, queues)
    return wire.CopyMessage(qid, request.mid)


def _copy_checked(service: Service, qid: str, mid: int, queues: Sequence[str]) -> Answer:
    yield from check_stored(service, qid, mid, queues)
    yield from in_room(partial(service.storage.copy, qid, mid, queues))
    return wire.CopyMessage(qid, mid)


def check_stored(service: Service, qid: str, mid: int, into: Iterable[str]) -> Generator[Pause, object, None]:
    """Checks that a message may come into other queues, by their schemas. NoSuchMessageError, also for a message that a
    claim holds; InvalidPayloadError."""
    for target in into:
        if service.storage.options(target).schema:
            service.spent += _PEEK
            found = _peek(service.storage.queue(qid), mid)
            if found is None:
                raise NoSuchMessageError(
                    f"queue {qid!r} has no message {mid} that can be read: it is not there, or a claim holds it"
                )
            yield from service.door.checked(target, partial(service.storage.options, target), [found.payload or b""])


def _copy_list(service: Service, qid: str, mids: Iterable[int | wire.Receipt], queues: Sequence[str]) -> Answer:
    """Copies each message in one step, to all queues or to none. Pauses between messages when the time slice is
    over."""
    copied: list[int | wire.Receipt] = []
    for entry in mids:
        if service.turn_is_over:
            yield Pause()
        service.spent += 2 * len(queues)
        mid = entry.mid if isinstance(entry, wire.Receipt) else entry
        try:
            yield from check_stored(service, qid, mid, queues)
            yield from in_room(partial(service.storage.copy, qid, mid, queues))
        except NoSuchMessageError:
            continue
        copied.append(mid)  # any other error is the answer, so a message that the answer does not list does not exist
    return wire.CopyMessage(qid, mids=copied)
