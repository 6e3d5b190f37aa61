"""Requests about queues that another server keeps: the same handlers, run in a thread, as it answers when it likes.

What a handler tells the subscriptions there is told them afterwards, here, where everything else about them happens.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import qs_schemas as wire
from qs_schemas import Message

from ..broker.calling import Call
from ..broker.jobs import Pause
from ..broker.remotes import Remotes, give_back, receive_wanted
from ..broker.subscriptions import Subscriptions
from ..storage.engine import Engine, Feature, NoSuchQueueError, Receipt, UnsupportedError
from ..storage.lifecycle import Event
from ..storage.remote.engine import RemoteEngine, RemoteError
from .messages import queue_stats, received, stats_of, what_to_receive
from .service import Answer, Handler, Service, mid_of, qid_of

_logger = logging.getLogger(__name__)
_FIGURES = 5
"""Seconds after which a server that has failed is not asked for the figures of its other queues."""


def handler_of(service: Service, request: Message, usual: Handler) -> Handler:
    """Who handles a request. usual: who does, unless it is about queues that another server keeps."""
    remotes = service.remotes
    if not (remotes.used or isinstance(request, wire.NewQueue)):
        return usual
    if isinstance(request, wire.Unsubscribe | wire.ListQueues | wire.Ping):
        return usual
    if isinstance(request, wire.QueueStats) and request.qid is None:
        return _all_stats
    engine = _keeper(service, remotes, request)
    if engine is None:
        return usual
    if isinstance(request, wire.ReceiveMessage):
        return partial(_receive, engine)
    return partial(_elsewhere, engine, usual)


def _keeper(service: Service, remotes: Remotes, request: Message) -> RemoteEngine | None:
    if isinstance(request, wire.NewQueue):
        return remotes.of_storage(request.options.storage if request.options else None)
    qid = cast(str | None, getattr(request, "qid", None))
    if isinstance(request, wire.Subscribe):
        for each in request.queues or [qid or ""]:
            remotes.of(each)  # not of one that is out of reach
        return None
    if isinstance(request, wire.CopyMessage):
        return _keeper_of_copies(service, remotes, request)
    if isinstance(request, wire.ReceiveMessage) and qid is None:
        return _keeper_of_all(service, remotes, request.queues)
    return None if qid is None else remotes.of(qid)


def _keeper_of_all(service: Service, remotes: Remotes, qids: Sequence[str]) -> RemoteEngine | None:
    try:
        return remotes.of_all(qids)
    except UnsupportedError:
        for qid in qids:
            if remotes.of(qid) is None:
                service.storage.queue(qid)  # that there is no such queue comes first
        raise


def _keeper_of_copies(service: Service, remotes: Remotes, request: wire.CopyMessage) -> RemoteEngine | None:
    keepers = {qid: remotes.of(qid) for qid in (qid_of(request), *request.queues)}
    source = keepers[qid_of(request)]
    for qid, keeper in keepers.items():
        if keeper is None and (source is not None or any(keepers.values())):
            service.storage.queue(qid)  # that there is no such queue comes first
    for qid, keeper in keepers.items():
        if keeper is not source:
            raise UnsupportedError(
                f"queues {qid_of(request)!r} and {qid!r} are of storages that cannot copy to each other"
            )
    return source


class _Notes:
    """Takes down what is to be said to the subscriptions."""

    def __init__(self, held: Receipt | None) -> None:
        """held: of the message that is asked for, when it was delivered to this very client."""
        self._held = held
        self._said: list[tuple[str, tuple[Any, ...]]] = []

    def receipt(self, *_: object) -> Receipt | None:
        """See Subscriptions."""
        return self._held

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self._said.append((name, args))

    def tell(self, subscriptions: Subscriptions) -> None:
        """Says it."""
        for name, args in self._said:
            getattr(subscriptions, name)(*args)


def _elsewhere(engine: RemoteEngine, handler: Handler, service: Service, request: Message) -> Answer:
    notes = _Notes(_held(engine, service, request))
    there = Service(
        cast(Engine, engine),  # of which the handlers of these requests use what a RemoteEngine has too
        cast(Subscriptions, notes),
        service.become_subscriber,
        service.list_length,
        service.document,
        service.peer,
        service.subscriber,
    )
    call = Call(lambda stop: _to_its_end(handler(there, request)))
    yield Pause(call=call)
    notes.tell(service.subscriptions)
    answer = call.result()
    for event, mid, size, receives in _events(request, answer):
        service.remotes.note(event, getattr(request, "qid", ""), mid, size, receives)
    return answer


def _held(engine: RemoteEngine, service: Service, request: Message) -> Receipt | None:
    if service.subscriber is None or not isinstance(request, wire.GetMessage) or Feature.GET in engine.cannot:
        return None
    return service.subscriptions.receipt(service.subscriber, qid_of(request), mid_of(request))


def _events(request: Message, answer: Message) -> Iterator[tuple[Event, int, int | None, int | None]]:
    """What an answer says has happened: the event, the message, its size and receives as far as they are known."""
    if isinstance(answer, wire.PushMessage) and isinstance(request, wire.PushMessage):
        drafts = request.messages or [wire.Draft(request.payload or b"")]
        mids = answer.mids or [answer.mid or 0]
        for draft, mid in zip(drafts, mids, strict=False):
            yield "pushed", mid, len(draft.payload if isinstance(draft.payload, bytes) else draft.payload.encode()), 0
    elif isinstance(answer, wire.DeleteMessage):
        for entry in answer.mids or [answer.mid or 0]:
            yield "deleted", entry.mid if isinstance(entry, wire.Receipt) else entry, None, None
    elif isinstance(answer, wire.ReleaseMessage | wire.ExtendMessage) and answer.mid is not None:
        yield "released" if isinstance(answer, wire.ReleaseMessage) else "extended", answer.mid, None, None
    elif isinstance(answer, wire.GetMessage) and answer.status == "delivered" and answer.payload is not None:
        yield "received", answer.mid or 0, len(answer.payload), answer.receives


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
    receive = partial(receive_wanted, engine, qids, most, visibility, max_bytes=service.document, wait=wait)
    call = Call(receive, waits=wait > 0)
    yield Pause(call=call)
    found = call.result()
    if call.stop.is_set() and found and wait:  # it was stopped when it had just ended
        yield Pause(call=Call(lambda stop: give_back(engine, found)))
        found = []
    for message in found:
        service.remotes.note("received", message.qid, message.mid, len(message.payload or b""), message.receives)
    return received(found)


def _all_stats(service: Service, request: wire.QueueStats) -> Answer:
    """Those of the other servers' queues too; of one that cannot be asked, its name and storage."""
    answer = cast(wire.QueueStats, (yield from queue_stats(service, request)))
    remotes = service.remotes
    call = Call(lambda stop: _figures(remotes))
    yield Pause(call=call)
    answer.queues = sorted([*answer.queues, *call.result()], key=lambda info: info.qid)
    return answer


def _figures(remotes: Remotes) -> list[wire.QueueInfo]:
    found = [wire.QueueInfo(qid, storage=storage) for qid, storage in remotes.out_of_reach.items()]
    for engine in remotes.engines.values():
        until = time.monotonic() + _FIGURES
        failed = False
        for qid in engine.queues():
            try:
                late = failed and time.monotonic() >= until
                found.append(wire.QueueInfo(qid, storage=engine.name) if late else stats_of(qid, engine.queue(qid)))
            except NoSuchQueueError:
                continue  # it has just been deleted
            except RemoteError as error:
                _logger.error("no figures of queue %r: %s", qid, error)
                found.append(wire.QueueInfo(qid, storage=engine.name))
                failed = True
    return found
