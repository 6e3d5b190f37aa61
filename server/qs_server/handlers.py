"""The operations: one small function each, from a request to its answer, and the table that finds them.

They run where the engine runs, one at a time. A handler that cannot answer yet is a generator: it yields a Pause, and
goes on when that is over.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import qs_schemas as wire
from qs_schemas import Message

from .storage.engine import (
    SECOND,
    Draft,
    Engine,
    NoSuchMessageError,
    Options,
    Receipt,
    StaleReceiptError,
    State,
    StorageError,
    UnsupportedError,
)
from .storage.engine import Message as Stored
from .subscriber import Subscriber, Subscription
from .subscriptions import Subscriptions

_PREFETCH = 100
"""Messages that a subscriber which does not say has to acknowledge before it is sent more."""
_PURGE_SLICE = 200
"""Messages removed between looks at what others want: some 5 ms."""


class NoSuchSubscriptionError(StorageError):
    """The connection has no subscription of that id."""


class BadRequestError(Exception):
    """A request that is valid and contradicts itself. The text says how."""


@dataclass(slots=True)
class Service:
    """What handlers work with, for one client. document: bytes of payload that one answer may carry, but for its first
    message; become_subscriber: what the client is as one, made when it first subscribes."""

    storage: Engine
    subscriptions: Subscriptions
    become_subscriber: Callable[[], Subscriber]
    list_length: int = 1000
    document: int = 8 * 1024 * 1024
    subscriber: Subscriber | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Why a handler cannot answer yet: it waits for a message in one of the queues, so many seconds from when it first
    said so. No queues: it only lets others go first."""

    qids: tuple[str, ...] = ()
    wait: float = 0
    order: int = field(default_factory=count(1).__next__)
    """Smaller for those that began to wait earlier."""


Answer = Generator[Pause, bool | None, Message]
"""Is sent True when the pause's time is over, None to begin."""
Handler = Callable[[Service, Any], Message | Answer]


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)


def _bytes(payload: bytes | str | None) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload or b""


def list_queues(service: Service, request: wire.ListQueues) -> Message:
    return wire.ListQueues(sorted(service.storage.queues()))


def new_queue(service: Service, request: wire.NewQueue) -> Message:
    asked = request.options or wire.QueueOptions()
    for name in ("retention", "dead_letter", "max_receives"):
        if getattr(asked, name) is not None:
            raise UnsupportedError(f"the option '{name.replace('_', '-')}' is not implemented")
    options = Options(storage=asked.storage or "", capacity=asked.capacity)
    if asked.visibility is not None:
        options.visibility = round(asked.visibility * SECOND)
    service.storage.create(_qid(request), options)
    return wire.NewQueue(request.qid)


def delete_queue(service: Service, request: wire.DeleteQueue) -> Message:
    service.storage.remove(_qid(request), force=request.force)
    service.subscriptions.gone(_qid(request))
    return wire.DeleteQueue(request.qid)


def list_messages(service: Service, request: wire.ListMessages) -> Message:
    mids = service.storage.list_mids(
        _qid(request),
        State(request.state or "new"),
        _count(service, request.max, service.list_length),
        -1 if request.after is None else request.after,
    )
    return wire.ListMessages(request.qid, mids=mids, early=request.early)


def push_message(service: Service, request: wire.PushMessage) -> Message:
    if request.key is not None or any(draft.key is not None for draft in request.messages):
        raise UnsupportedError("'key' is not implemented")
    if request.messages:
        if request.payload is not None:
            raise BadRequestError("push-message takes either 'payload' or 'messages', and this one has both")
        delay = request.delay  # for those that do not say
        drafts = [
            Draft(_bytes(draft.payload), _microseconds(delay if draft.delay is None else draft.delay) or 0)
            for draft in request.messages
        ]
        return wire.PushMessage(request.qid, mids=service.storage.push(_qid(request), drafts))
    draft = Draft(_bytes(request.payload), _microseconds(request.delay) or 0)
    return wire.PushMessage(request.qid, mid=service.storage.push(_qid(request), [draft])[0])


def get_message(service: Service, request: wire.GetMessage) -> Message:
    found = _read_own(service, _qid(request), _mid(request))
    if found is None:
        visibility = _microseconds(request.visibility)
        found = service.storage.get(_qid(request), _mid(request), peek=request.peek, visibility=visibility)
    return wire.GetMessage(
        found.qid,
        found.mid,
        payload=found.payload,
        status=found.status,
        receives=found.receives,
        pushed_at=found.pushed_at,
        visible_at=found.visible_at,
    )


def _read_own(service: Service, qid: str, mid: int) -> Stored | None:
    """What was delivered to this very client: it is in nobody else's window."""
    subscriber = service.subscriber
    receipt = None if subscriber is None else service.subscriptions.receipt(subscriber, qid, mid)
    if receipt is None:
        return None
    try:
        found = service.storage.read(qid, receipt)
    except (NoSuchMessageError, StaleReceiptError):
        return None  # another process has taken it
    return found if found.visible_at is not None else None


def receive_message(service: Service, request: wire.ReceiveMessage) -> Answer:
    qids = tuple(dict.fromkeys(request.queues)) or (_qid(request),)
    most = _count(service, request.max, 1)
    visibility = _microseconds(request.visibility)
    if request.qid is not None and request.queues:
        raise BadRequestError("receive-message takes either 'qid' or 'queues', and this one has both")
    pause = Pause(qids, request.wait or 0)
    over = not pause.wait
    while True:
        found = service.storage.receive(qids, most, visibility, service.document)
        if found or over:
            break
        over = bool((yield pause))  # always the same, and with it the place in line
        # One that was deleted meanwhile must not hide what the others have: they were woken for nobody else.
        known = service.storage.queues()
        qids = tuple(qid for qid in qids if qid in known) or qids
    deliveries = [wire.Delivery(m.mid, m.payload or b"", m.qid, m.receives, m.pushed_at, m.visible_at) for m in found]
    return wire.ReceiveMessage(messages=deliveries)


def delete_message(service: Service, request: wire.DeleteMessage) -> Message:
    qid = _qid(request)
    if request.mid is not None:
        if request.mids:
            raise BadRequestError("delete-message takes either 'mid' or 'messages', and this one has both")
        _delete(service, qid, Receipt(request.mid, request.receives))
        return wire.DeleteMessage(qid, request.mid)
    deleted: list[int | wire.Receipt] = []
    for entry in request.mids:
        receipt = Receipt(*entry) if isinstance(entry, wire.Receipt) else Receipt(entry)
        try:
            _delete(service, qid, receipt)
        except (NoSuchMessageError, StaleReceiptError):
            continue
        except OSError:
            if not deleted:
                raise
            break  # the answer says how far it came
        deleted.append(receipt.mid)
    return wire.DeleteMessage(qid, mids=deleted)


def _delete(service: Service, qid: str, receipt: Receipt) -> None:
    try:
        service.storage.delete(qid, receipt)
    except NoSuchMessageError:
        service.subscriptions.settled(qid, receipt.mid)  # another process has deleted it
        raise
    service.subscriptions.settled(qid, receipt.mid)


def release_message(service: Service, request: wire.ReleaseMessage) -> Message:
    receipt = Receipt(_mid(request), request.receives)
    visible_at = service.storage.release(_qid(request), receipt, _microseconds(request.delay) or 0)
    service.subscriptions.settled(_qid(request), receipt.mid)
    return wire.ReleaseMessage(request.qid, request.mid, visible_at=visible_at)


def extend_message(service: Service, request: wire.ExtendMessage) -> Message:
    receipt = Receipt(_mid(request), request.receives)
    visible_at = service.storage.extend(_qid(request), receipt, _microseconds(request.visibility))
    service.subscriptions.extended(_qid(request), receipt.mid, visible_at)
    return wire.ExtendMessage(request.qid, request.mid, visible_at=visible_at)


def copy_message(service: Service, request: wire.CopyMessage) -> Message:
    qid = _qid(request)
    if request.mid is not None:
        if request.mids:
            raise BadRequestError("copy-message takes either 'mid' or 'messages', and this one has both")
        service.storage.copy(qid, request.mid, request.queues)
        return wire.CopyMessage(qid, request.mid)
    copied: list[int | wire.Receipt] = []
    for entry in request.mids:
        mid = entry.mid if isinstance(entry, wire.Receipt) else entry
        try:
            service.storage.copy(qid, mid, request.queues)
        except NoSuchMessageError:
            continue
        copied.append(mid)  # any other error is the answer, so that who is not in the answer does not exist
    return wire.CopyMessage(qid, mids=copied)


def subscribe(service: Service, request: wire.Subscribe) -> Message:
    qids = set(request.queues) or {_qid(request)}
    if request.qid is not None and request.queues:
        raise BadRequestError("subscribe takes either 'qid' or 'queues', and this one has both")
    if request.name is not None:
        raise UnsupportedError("'name' belongs on the bus: this is the queue server")
    if request.visibility == 0:
        raise BadRequestError("a subscription with 'visibility' 0 would be sent the same message again and again")
    known = service.storage.queues()
    for qid in sorted(qids):
        if qid not in known:
            service.storage.options(qid)  # says so, unless somebody has just made it
    service.subscriber = service.subscriber or service.become_subscriber()
    prefetch, visibility = request.prefetch or _PREFETCH, _microseconds(request.visibility)
    open_one = service.subscriber.subscriptions.get(request.req)
    if open_one is None:
        subscription = Subscription(service.subscriber, request.req, qids, prefetch, visibility)
        service.subscriptions.open(subscription)
    elif open_one.closed or open_one.qids != qids:
        raise BadRequestError(f"there is a subscription of req {request.req!r} already; give this one another req")
    else:
        open_one.prefetch, open_one.visibility = prefetch, visibility
        service.subscriptions.feed(open_one)
    return wire.Subscribe(request.qid, request.queues)


def unsubscribe(service: Service, request: wire.Unsubscribe) -> Message:
    known = service.subscriber.subscriptions if service.subscriber else {}
    subscription = known.get(request.subscription)
    if subscription is None or subscription.closed:
        raise NoSuchSubscriptionError(f"there is no subscription of req {request.subscription!r} on this connection")
    service.subscriptions.close(subscription)
    return wire.Unsubscribe(request.subscription)


def purge_queue(service: Service, request: wire.PurgeQueue) -> Answer:
    qid = _qid(request)
    upto = service.storage.last_mid(qid)
    total = 0
    while True:
        removed = service.storage.purge(qid, upto, _PURGE_SLICE)
        total += removed
        if removed == 0:
            service.subscriptions.purged(qid, upto)
            return wire.PurgeQueue(qid, total)
        yield Pause()


def queue_stats(service: Service, request: wire.QueueStats) -> Answer:
    qids = sorted(service.storage.queues()) if request.qid is None else [request.qid]
    for qid in qids:
        while qid in service.storage.queues() and service.storage.prepare_stats(qid):
            yield Pause()
    known = service.storage.queues()
    return wire.QueueStats(
        request.qid, [_info(service, qid) for qid in qids if qid in known or request.qid is not None]
    )


def _info(service: Service, qid: str) -> wire.QueueInfo:
    stats = service.storage.stats(qid)
    return wire.QueueInfo(
        qid,
        new=stats.new,
        ready=stats.ready,
        in_flight=stats.in_flight,
        delayed=stats.delayed,
        bytes=stats.bytes,
        oldest=None if stats.oldest is None else stats.oldest / SECOND,
        pushed=stats.pushed,
        delivered=stats.delivered,
        expired=stats.expired,
        deleted=stats.deleted,
        storage=stats.storage,
    )


def ping(service: Service, request: wire.Ping) -> Message:
    return wire.Ping()


def _qid(request: Message) -> str:
    """The name of the queue: the parser has made sure that there is one."""
    return request.qid or ""  # type: ignore[attr-defined]


def _mid(request: Message) -> int:
    return request.mid or 0  # type: ignore[attr-defined]


def _count(service: Service, asked: int | None, default: int) -> int:
    return min(default if asked is None else asked, service.list_length)


HANDLERS: dict[type[Message], Handler] = {
    wire.ListQueues: list_queues,
    wire.NewQueue: new_queue,
    wire.DeleteQueue: delete_queue,
    wire.ListMessages: list_messages,
    wire.PushMessage: push_message,
    wire.GetMessage: get_message,
    wire.ReceiveMessage: receive_message,
    wire.DeleteMessage: delete_message,
    wire.ReleaseMessage: release_message,
    wire.ExtendMessage: extend_message,
    wire.CopyMessage: copy_message,
    wire.Subscribe: subscribe,
    wire.Unsubscribe: unsubscribe,
    wire.PurgeQueue: purge_queue,
    wire.QueueStats: queue_stats,
    wire.Ping: ping,
}
"""The handler of each operation. What is not in it is answered with 501."""


def first_mid(answer: Message) -> tuple[str, int] | None:
    """What a push's failure is known by: queue and first id. None for other answers."""
    if not isinstance(answer, wire.PushMessage):
        return None
    mids: Sequence[int] = answer.mids or ([] if answer.mid is None else [answer.mid])
    return (answer.qid or "", mids[0]) if mids else None
