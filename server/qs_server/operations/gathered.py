"""Makes requests about queues of an engine that gathers requests into its operations, and results into answers.

Such requests need neither a batch nor a thread: `session/session.py` begins their operations and sends the answers when
they have ended. Requests of one connection that follow each other are one operation where that is possible, because an
engine does operations in any order: pushes to one queue, and deletes from one queue.

All other requests about such queues are handled as those about any queue on another server: see `remote_requests.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import qs_schemas as wire
from qs_schemas import Message
from qs_storage.engine import (
    SECOND,
    Draft,
    Feature,
    NoSuchMessageError,
    Receipt,
    StaleReceiptError,
    StorageError,
    UnsupportedError,
)
from qs_storage.remote_engine import (
    Delete,
    Extend,
    GatheringEngine,
    Operation,
    Push,
    Receive,
    Reject,
    Release,
    RemoteEngine,
)

from .messages import drafts_of, receipts_of, what_to_receive
from .service import Service, microseconds

_new = tuple.__new__


def push_all(requests: Sequence[wire.PushMessage]) -> Push:
    """Returns the operation of pushes that `RequestBatch.pushes` has found."""
    drafts = [_new(Draft, (request.payload, 0, None, False, 0, None, "", ())) for request in requests]
    return Push(requests[0].qid or "", drafts)


def delete_all(requests: Sequence[wire.DeleteMessage]) -> Delete:
    """Returns the operation of deletes from one queue, of one message each."""
    receipts = [_new(Receipt, (request.mid, request.receives)) for request in requests]
    return Delete(requests[0].qid or "", receipts)


def _push(service: Service, engine: GatheringEngine, request: wire.PushMessage) -> Push:
    qid, drafts = request.qid or "", drafts_of(service, request)
    options = engine.options(qid)
    if options.schema:
        service.door.check_now(qid, options, [draft.payload for draft in drafts])
    return Push(qid, drafts)


def needs_no_thread(service: Service, engine: RemoteEngine, request: Message) -> bool:
    """Tells whether a request of `BEGIN` can be begun in the loop: all can, but pushes whose payloads may take long to
    check. UnavailableError."""
    if type(request) is not wire.PushMessage:
        return True
    qid = request.qid or ""
    schema = engine.options(qid).schema
    size = len(request.payload or b"") + sum(len(draft.payload) for draft in request.messages)
    return not schema or service.door.is_quick(qid, schema, size, len(request.messages) or 1)


def _receive(service: Service, engine: GatheringEngine, request: wire.ReceiveMessage) -> Receive:
    qids, most, visibility = what_to_receive(service, request)
    given = request.order == "given" and len(qids) > 1
    if given:
        check_given(engine)
    return Receive(qids, most, visibility, service.document, wait=request.wait or 0, given=given)


def check_given(engine: Any) -> None:
    """Refuses an order of queues that an engine cannot keep. UnsupportedError."""
    if Feature.GIVEN in engine.cannot:
        raise UnsupportedError(
            f"queues of the storage {engine.name!r} are asked for their oldest messages together: order='given' is for "
            "queues that this server keeps"
        )


def _delete(service: Service, engine: GatheringEngine, request: wire.DeleteMessage) -> Delete:
    return Delete(request.qid or "", receipts_of(request))


def _release(service: Service, engine: GatheringEngine, request: wire.ReleaseMessage) -> Release:
    receipt = _new(Receipt, (request.mid or 0, request.receives))
    delay = None if request.delay is None else round(request.delay * SECOND)
    return Release(request.qid or "", receipt, delay, counts=not request.uncounted, reason=request.reason or None)


def _reject(service: Service, engine: GatheringEngine, request: wire.RejectMessage) -> Reject:
    return Reject(request.qid or "", _new(Receipt, (request.mid or 0, request.receives)), request.reason or None)


def _extend(service: Service, engine: GatheringEngine, request: wire.ExtendMessage) -> Extend:
    receipt = _new(Receipt, (request.mid or 0, request.receives))
    return Extend(request.qid or "", receipt, microseconds(request.visibility))


BEGIN: dict[type[Message], Callable[[Service, GatheringEngine, Any], Operation[Any]]] = {
    wire.PushMessage: _push,
    wire.ReceiveMessage: _receive,
    wire.DeleteMessage: _delete,
    wire.ReleaseMessage: _release,
    wire.RejectMessage: _reject,
    wire.ExtendMessage: _extend,
}
"""By the kind of a request: the function that makes its operation, or raises what is wrong with the request."""


def answer_of(request: Message, result: Any) -> Message:
    """Returns the answer to a request. result: what its operation has returned. Raises what that says of a single
    message."""
    if isinstance(request, wire.PushMessage):
        mids, mid = (result, None) if request.messages else ([], result[0])
        return wire.PushMessage(request.qid, mid=mid, mids=mids)
    if isinstance(request, wire.DeleteMessage):
        return _deleted(request, result)
    if isinstance(request, wire.ReleaseMessage):
        return wire.ReleaseMessage(request.qid, request.mid, visible_at=result)
    if isinstance(request, wire.ExtendMessage):
        return wire.ExtendMessage(request.qid, request.mid, visible_at=result)
    assert isinstance(request, wire.RejectMessage)  # noqa: S101 - receives are answered by the session
    return wire.RejectMessage(request.qid, request.mid)


def _deleted(request: wire.DeleteMessage, errors: Sequence[StorageError | None]) -> Message:
    """Returns the answer to a delete. errors: for each message why it was not deleted, None if it was. Raises that of a
    single message, and what has kept all messages of a list from being deleted."""
    if request.mid is not None:
        if errors[0] is not None:
            raise errors[0]
        return wire.DeleteMessage(request.qid, request.mid)
    receipts = receipts_of(request)
    deleted: list[int | wire.Receipt] = [
        receipt.mid for receipt, error in zip(receipts, errors, strict=True) if error is None
    ]
    for error in errors:
        if error is not None and not deleted and not isinstance(error, NoSuchMessageError | StaleReceiptError):
            raise error
    return wire.DeleteMessage(request.qid, mids=deleted)


def settled_by(operation: Operation[Any]) -> Iterator[tuple[str, int]]:
    """Yields (queue, id) of the messages that nobody holds any more, now that the operation has ended."""
    if isinstance(operation, Delete):
        for receipt, error in zip(operation.receipts, operation.result(), strict=True):
            if error is None or isinstance(error, NoSuchMessageError):  # another process may have deleted it
                yield operation.qid, receipt.mid
    elif isinstance(operation, Release | Reject):
        yield operation.qid, operation.receipt.mid
