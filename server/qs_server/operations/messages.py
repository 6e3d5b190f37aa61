"""The operations on queues and messages: each is a function from a request to its answer.

`table.py` lists all operations, and `service.py` has the parts that they share.
"""

from collections.abc import Generator, Iterable, Sequence

import qs_schemas as wire
from qs_schemas import Message
from qs_schemas.limits import COPIES
from qs_schemas.wire import SERVER
from qs_serving.access.caller import Caller
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

from ..broker.delivering import delivery_of, peeked, with_origin
from ..broker.jobs import Pause
from .service import TURN, Answer, BadRequestError, Service, microseconds, mid_of, qid_of

_LONGEST = 999_999_999
"""The greatest age in seconds that the protocol has. A client may choose an id that stands for 1970."""
_NAMES, _IDS = 5, 2
"""Names of queues, and ids of messages, that an answer takes for one unit of work: see `Service.spent`."""
_STATS, _FIGURES = 5, 1000
"""Units of work for the figures of one queue, and of the server."""
_PEEK = 4
"""Units of work for a message that is peeked at."""
_PURGE_SLICE = 200
"""Messages removed before other requests have their turn: some 5 ms."""


def _bytes(payload: bytes | str | None) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload or b""


def list_queues(service: Service, request: wire.ListQueues) -> Message | Answer:
    qids = sorted(service.queues())
    if service.caller is not None:
        return _list_visible(service, service.caller, qids)
    service.spent += len(qids) // _NAMES
    return wire.ListQueues(qids)


def _list_visible(service: Service, caller: Caller, qids: Sequence[str]) -> Answer:
    """Answers with the queues that the caller may see. Each name may have to be compared with the caller's patterns."""
    visible: list[str] = []
    for at in range(0, len(qids), _NAMES):
        if service.spent >= TURN:
            yield Pause()
        service.spent += 1
        visible += filter(caller.may_see, qids[at : at + _NAMES])
    return wire.ListQueues(visible)


def delete_queue(service: Service, request: wire.DeleteQueue) -> Message:
    service.storage.remove(qid_of(request), force=request.force)
    service.subscriptions.gone(qid_of(request))
    return wire.DeleteQueue(request.qid)


def list_messages(service: Service, request: wire.ListMessages) -> Message:
    mids = service.storage.queue(qid_of(request)).list_mids(
        State(request.state or "new"),
        service.list_length if request.max is None else min(request.max, service.list_length),
        -1 if request.after is None else request.after,
    )
    service.spent += len(mids) // _IDS
    return wire.ListMessages(request.qid, mids=mids, early=request.early)


def push_message(service: Service, request: wire.PushMessage) -> Message:
    if request.messages:
        if request.payload is not None:
            raise BadRequestError("push-message takes either 'payload' or 'messages', and this one has both")
        if request.key is not None:
            raise BadRequestError("a list has a 'key' for each 'message', and none on 'op'")
        delay = microseconds(request.delay) or 0  # for drafts without their own
        drafts = [
            Draft(
                _bytes(draft.payload),
                delay if draft.delay is None else round(draft.delay * SECOND),
                None if draft.key is None else service.owned(draft.key),
            )
            for draft in request.messages
        ]
        return wire.PushMessage(request.qid, mids=service.storage.queue(qid_of(request)).push(drafts))
    delay = 0 if request.delay is None else round(request.delay * SECOND)
    payload = request.payload if isinstance(request.payload, bytes) else _bytes(request.payload)
    key = None if request.key is None else service.owned(request.key)
    queue = service.storage.queue(request.qid or "")
    return wire.PushMessage(request.qid, mid=queue.push([Draft(payload, delay, key)])[0])


def get_message(service: Service, request: wire.GetMessage) -> Message | Answer:
    if request.mids:
        return _peek_list(service, request)
    found = _read_own(service, qid_of(request), mid_of(request))
    if found is None:
        visibility = microseconds(request.visibility)
        found = service.storage.queue(qid_of(request)).get(mid_of(request), peek=request.peek, visibility=visibility)
    return delivery_of(found)


def _peek_list(service: Service, request: wire.GetMessage) -> Answer:
    """Answers with the messages that exist, in the order asked, up to the first one for which no room is left."""
    if request.mid is not None:
        raise BadRequestError("get-message takes either 'mid' or 'messages', and this one has both")
    if not request.peek:
        raise BadRequestError("the list form of get-message only peeks: say peek='yes' on 'op', or use receive-message")
    answer = wire.GetMessage(request.qid)
    room = service.document
    for entry in request.mids:
        if service.spent >= TURN:
            yield Pause()
        service.spent += _PEEK
        found = _peek(service.storage.queue(qid_of(request)), entry.mid if isinstance(entry, wire.Receipt) else entry)
        if found is None:
            continue
        room -= len(found.payload or b"") + len(found.reason or "")
        if room < 0 and answer.messages:
            answer.more = True
            break
        answer.messages.append(peeked(found))
    return answer


def _peek(queue: Queue, mid: int) -> Stored | None:
    """Returns a message with its payload, whatever its state. None if there is none, or a claim holds it."""
    try:
        found = queue.get(mid, peek=True, visibility=None)
        if found.payload is None:
            found.payload = queue.read(Receipt(mid)).payload
    except (NoSuchMessageError, StaleReceiptError):
        return None
    return found


def _read_own(service: Service, qid: str, mid: int) -> Stored | None:
    """Returns a message that this client holds by a subscription, None if it does not."""
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
    found = service.storage.receive(qids, most, visibility, service.document)
    if len(qids) > 1:
        service.spent += len(qids)
    return received(found) if found or not request.wait else _wait_to_receive(service, request, qids)


def _wait_to_receive(service: Service, request: wire.ReceiveMessage, qids: tuple[str, ...]) -> Answer:
    """Receives as soon as a queue has a message, or answers without messages when the time is over."""
    _, most, visibility = what_to_receive(service, request)
    pause = Pause(qids, request.wait or 0)  # always the same one, to keep the place in line
    while True:
        over = bool((yield pause))
        # If one queue was deleted meanwhile, messages of the others are received all the same.
        known = service.storage.queues()
        qids = tuple(qid for qid in qids if qid in known) or qids
        found = service.storage.receive(qids, most, visibility, service.document)
        if found or over:
            return received(found)


def what_to_receive(service: Service, request: wire.ReceiveMessage) -> tuple[tuple[str, ...], int, int | None]:
    """Returns (queues, the most messages, visibility in microseconds or None). BadRequestError."""
    if request.qid is not None and request.queues:
        raise BadRequestError("receive-message takes either 'qid' or 'queues', and this one has both")
    qids = tuple(dict.fromkeys(request.queues)) if request.queues else (request.qid or "",)
    most = 1 if request.max is None else min(request.max, service.list_length)
    return qids, most, None if request.visibility is None else round(request.visibility * SECOND)


def received(found: Sequence[Stored]) -> Message:
    deliveries = [
        wire.Delivery(m.mid, m.payload or b"", m.qid, m.receives, m.pushed_at, m.visible_at, reason=m.reason)
        for m in found
    ]
    for message, delivery in zip(found, deliveries, strict=True):
        if message.origin is not None:
            with_origin(delivery, message.origin)
    return wire.ReceiveMessage(messages=deliveries)


def delete_message(service: Service, request: wire.DeleteMessage) -> Message | Answer:
    qid = request.qid or ""
    if request.mid is None:
        return _delete_list(service, qid, request.mids)
    if request.mids:
        raise BadRequestError("delete-message takes either 'mid' or 'messages', and this one has both")
    _delete(service, qid, Receipt(request.mid, request.receives))
    return wire.DeleteMessage(qid, request.mid)


def _delete_list(service: Service, qid: str, mids: Iterable[int | wire.Receipt]) -> Answer:
    deleted: list[int | wire.Receipt] = []
    for entry in mids:
        if service.spent >= TURN:
            yield Pause()
        service.spent += 1
        receipt = Receipt(*entry) if isinstance(entry, wire.Receipt) else Receipt(entry)
        try:
            _delete(service, qid, receipt)
        except (NoSuchMessageError, StaleReceiptError):
            continue
        except (OSError, RemoteError):
            if not deleted:
                raise
            break  # the answer lists the messages deleted before
        deleted.append(receipt.mid)
    return wire.DeleteMessage(qid, mids=deleted)


def _delete(service: Service, qid: str, receipt: Receipt) -> None:
    try:
        service.storage.queue(qid).delete(receipt)
    except NoSuchMessageError:
        service.subscriptions.settled(qid, receipt.mid)  # another process has deleted it
        raise
    service.subscriptions.settled(qid, receipt.mid)


def release_message(service: Service, request: wire.ReleaseMessage) -> Message:
    receipt = Receipt(mid_of(request), request.receives)
    reason, delay = request.reason or None, microseconds(request.delay)
    queue = service.storage.queue(qid_of(request))
    visible_at = queue.release(receipt, delay, count=not request.uncounted, reason=reason)
    service.subscriptions.settled(qid_of(request), receipt.mid)
    return wire.ReleaseMessage(request.qid, request.mid, visible_at=visible_at)


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
    service.spent += 2 * len(queues)
    service.storage.copy(qid, request.mid, queues)
    return wire.CopyMessage(qid, request.mid)


def _copy_list(service: Service, qid: str, mids: Iterable[int | wire.Receipt], queues: Sequence[str]) -> Answer:
    """Copies each message in one step: to all queues or to none. Others have their turn between messages."""
    copied: list[int | wire.Receipt] = []
    for entry in mids:
        if service.spent >= TURN:
            yield Pause()
        service.spent += 2 * len(queues)
        mid = entry.mid if isinstance(entry, wire.Receipt) else entry
        try:
            service.storage.copy(qid, mid, queues)
        except NoSuchMessageError:
            continue
        copied.append(mid)  # any other error is the answer: so a message that the answer does not list does not exist
    return wire.CopyMessage(qid, mids=copied)


def purge_queue(service: Service, request: wire.PurgeQueue) -> Answer:
    qid = qid_of(request)
    upto = service.storage.queue(qid).last_mid
    total = 0
    while True:
        removed = service.storage.queue(qid).purge(upto, _PURGE_SLICE)
        total += removed
        if removed == 0:
            service.subscriptions.purged(qid, upto)
            return wire.PurgeQueue(qid, total)
        yield Pause()


def queue_stats(service: Service, request: wire.QueueStats) -> Answer:
    return with_consumers(service, (yield from stored_stats(service, request)))


def with_consumers(service: Service, answer: wire.QueueStats) -> wire.QueueStats:
    """Adds the numbers of subscriptions and of waiting receives to the figures of each queue, and takes away the names
    of dead-letter queues whose figures this client may not see."""
    for info in answer.queues:
        info.subscribers, info.waiting = service.subscriptions.count(info.qid), service.waiting(info.qid)
        if info.dead_letter is not None and not service.may_see_stats(info.dead_letter):
            info.dead_letter = None
    return answer


def stored_stats(service: Service, request: wire.QueueStats) -> Generator[Pause, bool | None, wire.QueueStats]:
    """Returns the figures of the server's own storage."""
    qids = sorted(filter(service.may_see_stats, service.storage.queues())) if request.qid is None else [request.qid]
    for qid in qids:
        while qid in service.storage.queues() and service.storage.queue(qid).prepare_stats():
            yield Pause()
    infos: list[wire.QueueInfo] = []
    for qid in qids:
        if service.spent >= TURN:
            yield Pause()
        service.spent += _STATS
        if request.qid is not None or qid in service.storage.queues():
            infos.append(stats_of(qid, service.storage.queue(qid)))
    return wire.QueueStats(request.qid, infos)


def stats_of(qid: str, queue: Queue) -> wire.QueueInfo:
    stats = queue.stats()
    return wire.QueueInfo(
        qid,
        new=stats.new,
        ready=stats.ready,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        bytes=stats.bytes,
        oldest=None if stats.oldest is None else min(stats.oldest / SECOND, _LONGEST),
        pushed=stats.pushed,
        delivered=stats.delivered,
        expired=stats.expired,
        deleted=stats.deleted,
        dead=stats.dead,
        retired=stats.retired,
        storage=stats.storage,
        paused=queue.options.paused,
        dead_letter=queue.options.dead_letter or None,
    )


def server_stats(service: Service, request: wire.ServerStats) -> Message:
    service.spent += _FIGURES
    return wire.ServerStats(service.figures(request.connections))


def ping(service: Service, request: wire.Ping) -> Message:
    return wire.Ping(SERVER)


def first_mid(answer: Message) -> tuple[str, int] | None:
    """Returns (queue, first id), which identifies a failed push; None for other answers."""
    if not isinstance(answer, wire.PushMessage):
        return None
    mids: Sequence[int] = answer.mids or ([] if answer.mid is None else [answer.mid])
    return (answer.qid or "", mids[0]) if mids else None
