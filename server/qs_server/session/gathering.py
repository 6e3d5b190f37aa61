"""Begins operations for the requests of a connection whose queue is that of an engine that gathers requests, and
answers the requests when the operations have ended. The session calls this between batches, in the loop.

The requests are those of the connection's `RequestBatch`, which knows their order and has their answers. An operation
is for its next requests: several pushes to one queue, or deletes from one, are one operation.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from qs_schemas import DeleteMessage, Message, PushMessage, ReceiveMessage
from qs_serving.access.caller import NotAllowedError
from qs_storage.engine import Message as Stored
from qs_storage.engine import NoSuchQueueError, QueueFullError, Stats, StorageError
from qs_storage.headers import trace_of
from qs_storage.remote_engine import Delete, Extend, GatheringEngine, Operation, Push, Receive, Release
from qs_storage.shared import Event

from ..broker.remotes import Remotes
from ..broker.subscriber import bytes_of
from ..operations.gathered import BEGIN, answer_of, delete_all, needs_no_thread, push_all, settled_by
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


def begin_run(requests: RequestBatch, service: Service) -> Run | None:  # noqa: C901 - its steps, without a call each
    """Makes the operation for the next requests. Answers requests before that are refused. Returns None if the next
    request has to run in a batch, or if there is none."""
    gathered, caller = service.remotes.gathered, service.caller
    while requests.unanswered and requests.runnable:
        event: Any = requests.events[requests.done]
        kind = type(event)
        begin = BEGIN.get(kind)
        if begin is None:
            return None
        qid = event._qid  # without the cost of the property: this runs for each request
        engine = gathered.get(qid) if qid is not None else _engine_of_all(gathered, event.queues)
        if engine is None or (qid is not None and qid not in engine.queues()):
            return None  # a batch finds out
        operation: Any
        try:
            if caller is not None:
                caller.check(OPERATIONS[kind].rights, event)
            run: list[Any] = []
            if requests.alone:
                requests.alone -= 1
            elif kind is PushMessage:
                run = requests.pushes(engine)
            elif kind is DeleteMessage and requests.unanswered > 1:
                run = _deletes(requests)
            if not run:
                if not needs_no_thread(service, engine, event):
                    return None
                run, operation = [event], begin(service, engine, event)
            elif kind is PushMessage:
                operation = push_all(run)
            else:
                operation = delete_all(run)
        except Exception as error:
            requests.answer(event, requests.refuse(event, error))
            continue
        return _new(Run, (engine, operation, run, kind is ReceiveMessage and operation.wait_seconds > 0))
    return None


def _engine_of_all(gathered: Mapping[str, GatheringEngine], qids: Sequence[str]) -> GatheringEngine | None:
    """Returns the engine that has all these queues, None if a batch has to find out."""
    engine = gathered.get(qids[0])
    if engine is None:
        return None
    known = engine.queues()
    return engine if all(qid in known and gathered.get(qid) is engine for qid in qids) else None


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
    first = run.requests[0]
    if type(first) is PushMessage and not first.messages:
        requests.pushed(run.requests, result)
    else:
        _answer(requests, run, result)
    remotes = service.remotes
    if left or remotes.has_history or service.subscriptions.busy:
        return Ended(_calls(service, operation, result), left)
    _count(remotes.counts_in_loop, operation, result)
    return _NOTHING


_NOTHING = Ended([])


def _calls(service: Service, operation: Operation[Any], result: Any) -> list[Callable[[], object]]:
    """Returns the calls that a batch has to make. Counts what the operation has done, unless that is one of them."""
    calls: list[Callable[[], object]] = []
    if service.remotes.has_history:
        calls.append(partial(_note, service.remotes, operation, result))
    else:
        _count(service.remotes.counts_in_loop, operation, result)
    if service.subscriptions.busy:
        calls += [partial(service.subscriptions.settled, *each) for each in settled_by(operation)]
        if type(operation) is Extend:
            calls.append(partial(service.subscriptions.extended, operation.qid, operation.receipt.mid, result))
    return calls


def _end_failed(requests: RequestBatch, run: Run, error: Exception) -> Ended:
    if isinstance(error, QueueFullError) and len(run.requests) > 1:
        requests.alone = len(run.requests)  # some may have room by themselves
        return _NOTHING
    again = _without_gone(run) if isinstance(error, NoSuchQueueError) else None
    if again is None:
        for request in run.requests:
            requests.answer(request, requests.refuse(request, error))
    return Ended([], again=again)


def _answer(requests: RequestBatch, run: Run, result: Any) -> None:
    """Answers the requests of an operation that has succeeded. result: what the operation has returned."""
    first = run.requests[0]
    answer: Message
    if len(run.requests) > 1:
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
