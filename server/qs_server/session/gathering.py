"""Begins operations for the requests of a connection whose queue is that of an engine that gathers requests, and
answers the requests when the operations have ended. The session calls this between batches, in the loop.

The requests are those of the connection's `RequestBatch`, which knows their order and has their answers. An operation
is for its next requests: several pushes to one queue, or deletes from one, are one operation.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from qs_schemas import DeleteMessage, Message, PushMessage
from qs_serving.access.caller import NotAllowedError
from qs_storage.engine import Message as Stored
from qs_storage.engine import NoSuchQueueError, QueueFullError, Stats, StorageError
from qs_storage.headers import trace_of
from qs_storage.remote_engine import Delete, Extend, GatheringEngine, Operation, Push, Receive, Release
from qs_storage.shared import Event

from ..broker.remotes import Remotes
from ..broker.subscriber import bytes_of
from ..operations.gathered import BEGIN, answer_of, delete_all, push_all, settled_by
from ..operations.messages import received
from ..operations.service import Service
from ..operations.table import OPERATIONS
from .requests import RequestBatch


class Run(NamedTuple):
    """An operation, and the requests that it does, in their order. waits: True for a receive that may wait."""

    engine: GatheringEngine
    operation: Operation[Any]
    requests: list[Any]
    waits: bool


_new = tuple.__new__


def begin_run(requests: RequestBatch, service: Service, *, leaving: bool) -> Run | None:
    """Makes the operation for the next requests. Answers requests before that are refused. Returns None if the next
    request has to run in a batch, or if there is none. leaving: True if no receive may wait any more."""
    gathered, caller = service.remotes.gathered, service.caller
    while requests.runnable and not requests.is_running:
        event: Any = requests.events[requests.done]
        begin = BEGIN.get(type(event))
        engine = None if begin is None else _engine_of(gathered, event)
        if begin is None or engine is None:
            return None
        try:
            if caller is not None:
                caller.check(OPERATIONS[type(event)].rights, event)
            operation: Any
            run = _run_of(requests, event)
            if len(run) > 1 or (run and type(event) is PushMessage):
                operation = push_all(run) if type(event) is PushMessage else delete_all(run)
            else:
                run, operation = [event], begin(service, engine, event)
        except Exception as error:
            requests.answer(event, requests.refuse(event, error))
            continue
        waits = type(operation) is Receive and operation.wait_seconds > 0
        if waits and leaving:
            operation.wait_seconds, waits = 0, False
        return _new(Run, (engine, operation, run, waits))
    return None


def _run_of(requests: RequestBatch, event: Message) -> list[Any]:
    """Returns the next requests that one operation can do, none if the first of them is not as simple as that."""
    if requests.alone:
        requests.alone -= 1
    elif type(event) is PushMessage:
        return requests.pushes()
    elif type(event) is DeleteMessage and requests.unanswered > 1:
        return _deletes(requests)
    return []


def _engine_of(gathered: dict[str, GatheringEngine], request: Any) -> GatheringEngine | None:
    """Returns the engine that has all queues of a request, None if a batch has to find out."""
    qid = request._qid  # without the cost of the property: this runs for each request
    if qid is None:  # a receive from several queues
        engines = {_engine_of_queue(gathered, qid) for qid in request.queues}
        return engines.pop() if len(engines) == 1 else None
    return _engine_of_queue(gathered, qid)


def _engine_of_queue(gathered: dict[str, GatheringEngine], qid: str) -> GatheringEngine | None:
    engine = gathered.get(qid)
    return engine if engine is not None and qid in engine.queues() else None


def _deletes(requests: RequestBatch) -> list[Any]:
    """Returns the next requests, as far as they are deletes from the same queue, each of one message."""
    found: list[Any] = []
    for event in cast(list[Any], requests.events[requests.done :]):
        if type(event) is not DeleteMessage or event.mid is None or event.mids:
            break
        if found and event.qid != found[0].qid:
            break
        found.append(event)
    return found


class Ended(NamedTuple):
    """What is left to do after an operation. calls: what a batch has to do; left: received messages that nobody wants
    any more; again: an operation in the place of the one that has ended, None if its requests are answered."""

    calls: list[Callable[[], object]]
    left: Sequence[Stored] = ()
    again: Run | None = None


def end_run(requests: RequestBatch, service: Service, run: Run) -> Ended:
    """Answers the requests of an operation that has ended."""
    operation = run.operation
    try:
        result = operation.result()
    except Exception as error:
        return _end_failed(requests, run, error)
    left: Sequence[Stored] = ()
    if operation.stopped:  # a receive
        result, left = [], result
    _answer(requests, run, result)
    calls: list[Callable[[], object]] = []
    if service.remotes.has_history:
        calls.append(partial(_note, service.remotes, operation, result))
    else:
        _count(service.remotes.counts_in_loop, operation, result)
    if service.subscriptions.busy:
        calls += [partial(service.subscriptions.settled, *each) for each in settled_by(operation)]
        if type(operation) is Extend:
            calls.append(partial(service.subscriptions.extended, operation.qid, operation.receipt.mid, result))
    return Ended(calls, left)


def _end_failed(requests: RequestBatch, run: Run, error: Exception) -> Ended:
    if isinstance(error, QueueFullError) and len(run.requests) > 1:
        requests.alone = len(run.requests)  # some may have room by themselves
        return Ended([])
    again = _without_gone(run) if isinstance(error, NoSuchQueueError) else None
    if again is None:
        for request in run.requests:
            requests.answer(request, requests.refuse(request, error))
    return Ended([], again=again)


def _answer(requests: RequestBatch, run: Run, result: Any) -> None:
    """Answers the requests of an operation that has succeeded. result: what the operation has returned."""
    first = run.requests[0]
    answer: Message
    if type(first) is PushMessage and not first.messages:
        requests.pushed(run.requests, result)
    elif len(run.requests) > 1:
        for request, why in zip(run.requests, result, strict=True):
            answer = DeleteMessage(request.qid, request.mid) if why is None else requests.refuse(request, why)
            requests.answer(request, answer)
    else:
        try:
            if type(run.operation) is not Receive:
                answer = answer_of(first, result)
            else:
                if run.waits and not result:
                    requests.check(first)  # the client's rights may have changed meanwhile
                answer = received(result)
        except (StorageError, NotAllowedError) as error:
            answer = requests.refuse(first, error)
        requests.answer(first, answer)


def _without_gone(run: Run) -> Run | None:
    """Returns the operation of a receive from several queues without those that have been deleted. None if there is
    no difference, or no queue left."""
    operation = run.operation
    if type(operation) is not Receive:
        return None
    known = run.engine.queues()
    qids = [qid for qid in operation.qids if qid in known]
    if not qids or len(qids) == len(operation.qids):
        return None
    wait = max(operation.deadline - time.monotonic(), 0) if run.waits else 0
    return run._replace(
        operation=Receive(
            qids, operation.count, operation.visibility, operation.max_bytes, wait=wait, given=operation.given
        ),
        waits=wait > 0,
    )


def _count(counts: Stats, operation: Operation[Any], result: Any) -> None:
    kind = type(operation)
    if kind is Push:
        counts.pushed += len(result)
    elif kind is Receive:
        counts.delivered += len(result)
        for message in result:
            if message.receives > 1:
                counts.redelivered += 1
    elif kind is Delete:
        counts.deleted += result.count(None)
    elif kind is Release:
        counts.released += 1


def _note(remotes: Remotes, operation: Operation[Any], result: Any) -> None:
    """Notes what an operation has done. Called in a batch, which the history needs."""
    if isinstance(operation, Push):
        for draft, mid in zip(operation.drafts, result, strict=True):
            size = len(draft.payload) + bytes_of(draft.headers)
            remotes.note("pushed", operation.qid, mid, size, 0, trace=trace_of(draft.headers))
    elif isinstance(operation, Receive):
        for message in result:
            size = len(message.payload or b"") + bytes_of(message.headers)
            remotes.note("received", message.qid, message.mid, size, message.receives)
    elif isinstance(operation, Delete):
        for receipt, error in zip(operation.receipts, result, strict=True):
            if error is None:
                remotes.note("deleted", operation.qid, receipt.mid)
    elif isinstance(operation, Release | Extend):
        event: Event = "released" if isinstance(operation, Release) else "extended"
        remotes.note(event, operation.qid, operation.receipt.mid)
