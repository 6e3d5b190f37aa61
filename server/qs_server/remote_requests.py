"""Requests about queues that another server keeps: the same handlers, run in a thread, as it answers when it likes.

What a handler tells the subscriptions there is told them afterwards, here, where everything else about them happens.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import qs_schemas as wire
from qs_schemas import Message

from .handlers import queue_stats, received, stats_of, what_to_receive
from .remotes import Call, Remotes
from .service import Answer, Handler, Pause, Service
from .storage.engine import Message as Stored
from .storage.engine import Receipt, StorageError, UnsupportedError
from .storage.remote.engine import RemoteEngine, RemoteError
from .subscriptions import Subscriptions

_logger = logging.getLogger(__name__)


def handler_of(service: Service, request: Message, usual: Handler) -> Handler:
    """Who handles a request. usual: who does, unless it is about queues that another server keeps."""
    remotes = service.remotes
    if remotes is None or not (remotes.used or isinstance(request, wire.NewQueue)):
        return usual
    if isinstance(request, wire.Subscribe | wire.Unsubscribe | wire.ListQueues | wire.Ping):
        return usual
    if isinstance(request, wire.QueueStats) and request.qid is None:
        return _all_stats
    engine = _keeper(remotes, request)
    if engine is None:
        return usual
    if isinstance(request, wire.ReceiveMessage):
        return partial(_receive, engine)
    return partial(_elsewhere, engine, usual)


def _keeper(remotes: Remotes, request: Message) -> RemoteEngine | None:
    if isinstance(request, wire.NewQueue):
        return remotes.of_storage(request.options.storage if request.options else None)
    qid = cast(str | None, getattr(request, "qid", None))
    if isinstance(request, wire.CopyMessage):
        for target in request.queues:
            if (keeper := remotes.of(target)) is not None:
                raise UnsupportedError(f"queue {target!r} has the storage {keeper.name!r}: nothing is copied there")
    if isinstance(request, wire.ReceiveMessage) and qid is None:
        return remotes.of_all(request.queues)
    return None if qid is None else remotes.of(qid)


class _Notes:
    """Takes down what is to be said to the subscriptions."""

    def __init__(self) -> None:
        self._said: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self._said.append((name, args))

    def tell(self, subscriptions: Subscriptions) -> None:
        """Says it."""
        for name, args in self._said:
            getattr(subscriptions, name)(*args)


def _elsewhere(engine: RemoteEngine, handler: Handler, service: Service, request: Message) -> Answer:
    notes = _Notes()
    there = Service(
        engine,
        cast(Subscriptions, notes),
        service.become_subscriber,
        service.list_length,
        service.document,
        service.peer,
    )
    call = Call(lambda stop: _to_its_end(handler(there, request)))
    yield Pause(call=call)
    notes.tell(service.subscriptions)
    return call.result()


def _to_its_end(answer: Message | Iterator[Pause]) -> Message:
    if isinstance(answer, Message):
        return answer
    while True:
        try:
            next(answer)  # it only lets others go first, whom it does not keep waiting here
        except StopIteration as end:
            return cast(Message, end.value)


def _receive(engine: RemoteEngine, service: Service, request: wire.ReceiveMessage) -> Answer:
    qids, most, visibility = what_to_receive(service, request)
    wait = request.wait or 0
    call = Call(
        lambda stop: engine.receive_within(qids, most, visibility, service.document, wait=wait, stop=stop),
        waits=wait > 0,
    )
    yield Pause(call=call)
    found = call.result()
    if call.stop.is_set() and found and wait:
        # Nobody may be there any more to take what came in the end.
        yield Pause(call=Call(lambda stop: give_back(engine, found)))
        found = []
    return received(found)


def give_back(engine: RemoteEngine, messages: list[Stored]) -> None:
    """Makes messages visible again that were received and are not wanted. Logs what cannot be: its window ends."""
    for message in messages:
        try:
            engine.release(message.qid, Receipt(message.mid, message.receives), 0)
        except (StorageError, OSError) as error:
            _logger.error("message %s of %r stays hidden until its window ends: %s", message.mid, message.qid, error)


def _all_stats(service: Service, request: wire.QueueStats) -> Answer:
    """Those of the other servers' queues too; of one that cannot be asked, its name and storage."""
    answer = cast(wire.QueueStats, (yield from queue_stats(service, request)))
    remotes = service.remotes
    if remotes is None:
        return answer
    call = Call(lambda stop: [_stats(engine, qid) for engine in remotes.engines.values() for qid in [*engine.queues()]])
    yield Pause(call=call)
    answer.queues = sorted([*answer.queues, *call.result()], key=lambda info: info.qid)
    return answer


def _stats(engine: RemoteEngine, qid: str) -> wire.QueueInfo:
    try:
        return stats_of(engine, qid)
    except RemoteError as error:
        _logger.error("no figures of queue %r: %s", qid, error)
        return wire.QueueInfo(qid, storage=engine.name)
