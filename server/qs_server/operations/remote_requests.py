"""Handles requests about queues on another server: runs the same handlers in a thread, because that server may be slow.

How it works. `handler_of` finds out which server has the queue, and puts a generator around the usual handler. The
generator yields a `Pause` with a call, so that the batch goes on without this request, and answers when the call has
ended. In the thread the engine of the other server takes the place of the server's own. The subscriptions belong to the
batches, so the thread only records the handler's calls of subscriptions; a batch makes these calls afterwards.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import qs_schemas as wire
from qs_schemas import Message
from qs_storage.engine import (
    Engine,
    Feature,
    NoSuchQueueError,
    QueueExistsError,
    Receipt,
    RemoteError,
    UnsupportedError,
)
from qs_storage.headers import trace_of
from qs_storage.remote_engine import RemoteEngine
from qs_storage.shared import Event

from ..broker.jobs import Call, Pause
from ..broker.remotes import Remotes, give_back, is_gathering, receive_wanted
from ..broker.subscriber import bytes_of
from ..broker.subscriptions import Subscriptions
from .gathered import BEGIN, check_given, needs_no_thread
from .messages import received, what_to_receive
from .queues import all_stats, stats_of, stored_stats, with_consumers
from .service import Answer, Handler, Service, mid_of, qid_of

_logger = logging.getLogger(__name__)
_STATS_TIMEOUT = 5
"""Seconds after which a server that has failed once is not asked for the figures of its other queues."""


def handler_of(service: Service, request: Message, usual: Handler) -> Handler | None:
    """Returns the handler of a request: `usual`, unless the request is about queues on another server. Returns None if
    the request needs no batch, see `gathered.py`."""
    remotes = service.remotes
    if isinstance(request, wire.Unsubscribe | wire.ListQueues | wire.Authenticate | wire.Ping):
        return usual
    if isinstance(request, wire.QueueStats) and request.qid is None:
        return _all_stats
    if isinstance(request, wire.NewQueue) and not (request.exist_ok and qid_of(request) in service.queues()):
        return _handler_of_new(service, remotes, request, usual)
    gathered = type(request) in BEGIN and remotes.gather(_queues_of(request))
    engine = None if gathered and type(request) is not wire.PushMessage else _engine_for(service, remotes, request)
    if gathered and (engine is None or needs_no_thread(service, engine, request)):
        return None
    return usual if engine is None else _there(engine, usual, request)


def _queues_of(request: Message) -> list[str]:
    """Returns the queues of a request that `BEGIN` has."""
    qid = cast(str | None, getattr(request, "qid", None))
    return request.queues if isinstance(request, wire.ReceiveMessage) and qid is None else [qid or ""]


def _handler_of_new(service: Service, remotes: Remotes, request: wire.NewQueue, usual: Handler) -> Handler:
    storage = remotes.storage_for(request.options.storage if request.options else None)
    qid = qid_of(request)
    # An engine knows the directories of the root and its own queues, and not those in a database.
    if qid in (service.storage.queues() if storage else remotes.queues()):
        raise QueueExistsError(f"'{qid}' is already an existing queue")
    if storage:
        return partial(_new_queue, storage, usual)
    remotes.forget(qid)
    return usual


def _there(engine: RemoteEngine, usual: Handler, request: Message) -> Handler:
    if isinstance(request, wire.ReceiveMessage):
        return partial(_receive, engine)
    if isinstance(request, wire.QueueStats):
        return partial(_stats, engine)
    return partial(_run_in_thread, engine, usual)


def _engine_for(service: Service, remotes: Remotes, request: Message) -> RemoteEngine | None:
    """Returns the engine of the queues that a request is about, None if they are the server's own queues. Raises
    UnsupportedError if the queues are out of reach, or of several storages."""
    qid = cast(str | None, getattr(request, "qid", None))
    if isinstance(request, wire.Subscribe):  # subscriptions fetch by themselves, see `broker/fetcher.py`
        for each in request.queues or [qid or ""]:
            remotes.engine_of(each)  # raises if the queue is out of reach
        return None
    if isinstance(request, wire.CopyMessage):
        return _engine_of_all(service, [qid_of(request), *request.queues], "copy to each other")
    if isinstance(request, wire.ReceiveMessage) and qid is None:
        return _engine_of_all(service, request.queues, "be asked together: ask for each by itself")
    return None if qid is None else remotes.engine_of(qid)


def _engine_of_all(service: Service, qids: Sequence[str], refusal: str) -> RemoteEngine | None:
    try:
        return service.remotes.engine_of_all(qids, refusal)
    except UnsupportedError:
        for qid in qids:
            if service.remotes.engine_of(qid) is None:
                service.storage.queue(qid)  # a missing queue is the more important error
        raise


class _RecordedCalls:
    """Stands in for the subscriptions in a thread: records calls, which a batch makes later."""

    def __init__(self, held: Receipt | None) -> None:
        """held: the receipt of the requested message if this client holds the message by a subscription, else None."""
        self._held = held
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def receipt(self, *_: object) -> Receipt | None:
        """Implements `Subscriptions.receipt`."""
        return self._held

    def __getattr__(self, name: str) -> Callable[..., None]:
        # Also for `busy`, which is true in this way: so a handler makes all its calls, and each is recorded.
        return lambda *args: self._calls.append((name, args))

    def replay(self, subscriptions: Subscriptions) -> None:
        for name, args in self._calls:
            getattr(subscriptions, name)(*args)


class _ServiceElsewhere(Service):
    """Serves handlers in a thread, where time slices never end and steps never lack room: no other request waits for
    the thread, and it writes no log."""

    turn_is_over = False


def _run_in_thread(engine: RemoteEngine, handler: Handler, service: Service, request: Message) -> Answer:
    recorded = _RecordedCalls(_held(engine, service, request))
    there = _ServiceElsewhere(
        cast(Engine, engine),  # these handlers use only methods that a RemoteEngine has too
        cast(Subscriptions, recorded),
        service.become_subscriber,
        service.list_length,
        service.document,
        service.peer,
        service.subscriber,
        caller=service.caller,
        door=service.door,
    )
    call = Call(lambda stop: _run_to_end(handler(there, request)))
    yield Pause(call=call)
    recorded.replay(service.subscriptions)  # also if the call has failed: it may have settled some messages
    answer = call.result()
    for event, mid, size, receives, trace in _events(request, answer):
        service.remotes.note(event, getattr(request, "qid", ""), mid, size, receives, trace=trace)
    if isinstance(answer, wire.PurgeQueue):
        service.remotes.counts.deleted += answer.count or 0
    return answer


def _new_queue(storage: str, usual: Handler, service: Service, request: wire.NewQueue) -> Answer:
    """Makes a queue on another server. Opens the engine of the storage if this is the storage's first queue. usual: the
    handler that refuses an unknown storage."""
    engine = service.remotes.engines.get(storage)
    if engine is None:
        call = Call(lambda stop: service.remotes.open(storage))
        yield Pause(call=call)
        engine = call.result()
    if engine is None:
        return cast(Message, usual(service, request))
    service.remotes.has_queues = True
    return (yield from _run_in_thread(engine, usual, service, request))


def _held(engine: RemoteEngine, service: Service, request: Message) -> Receipt | None:
    """Returns the receipt of the message that a get-message asks for, if this client holds the message by a
    subscription. Called before the thread begins, because the thread must not use the subscriptions."""
    if (
        service.subscriber is None
        or not isinstance(request, wire.GetMessage)
        or request.mids
        or Feature.GET in engine.cannot
    ):
        return None
    return service.subscriptions.receipt(service.subscriber, qid_of(request), mid_of(request))


def _events(request: Message, answer: Message) -> Iterator[tuple[Event, int, int | None, int | None, str | None]]:
    """Yields the events of an answer: (event, id, size, receives, trace), the last three None if unknown."""
    if isinstance(answer, wire.PushMessage) and isinstance(request, wire.PushMessage):
        drafts = request.messages or [wire.Draft(request.payload or b"", headers=request.headers)]
        mids = answer.mids or [answer.mid or 0]
        for draft, mid in zip(drafts, mids, strict=False):
            size = len(draft.payload if isinstance(draft.payload, bytes) else draft.payload.encode())
            yield "pushed", mid, size + bytes_of(draft.headers.items()), 0, trace_of(draft.headers.items())
    elif isinstance(answer, wire.DeleteMessage):
        for entry in answer.mids if answer.mid is None else [answer.mid]:
            yield "deleted", entry.mid if isinstance(entry, wire.Receipt) else entry, None, None, None
    elif isinstance(answer, wire.ReleaseMessage | wire.ExtendMessage) and answer.mid is not None:
        event: Event = "released" if isinstance(answer, wire.ReleaseMessage) else "extended"
        yield event, answer.mid, None, None, None
    elif isinstance(answer, wire.GetMessage) and answer.status == "delivered" and answer.payload is not None:
        size = len(answer.payload) + bytes_of(answer.headers.items())
        yield "received", answer.mid or 0, size, answer.receives, None


def _run_to_end(answer: Message | Iterator[Pause]) -> Message:
    if isinstance(answer, Message):
        return answer
    while True:
        try:
            pause = next(answer)  # its pauses let the requests of others run, which a thread does not hold up
            if pause.call is not None:
                pause.call.run()
        except StopIteration as end:
            return cast(Message, end.value)


def _receive(engine: RemoteEngine, service: Service, request: wire.ReceiveMessage) -> Answer:
    qids, most, visibility = what_to_receive(service, request)
    given = request.order == "given" and len(qids) > 1
    if given:
        check_given(engine)
    wait = request.wait or 0
    receive = partial(
        receive_wanted, engine, qids, most, visibility, max_bytes=service.document, wait=wait, given=given
    )
    call = Call(partial(receive, wait=wait, given=given), waits=wait > 0)
    yield Pause(qids if wait else (), call=call)
    found = call.result()
    if call.stop.is_set() and found and wait:  # the call was stopped just after its end
        yield Pause(call=Call(lambda stop: give_back(engine, found)))
        found = []
    for message in found:
        size = len(message.payload or b"") + bytes_of(message.headers)
        service.remotes.note("received", message.qid, message.mid, size, message.receives)
    return received(found)


def _stats(engine: RemoteEngine, service: Service, request: wire.QueueStats) -> Answer:
    def ask(there: Service, request: wire.QueueStats) -> Answer:
        return wire.QueueStats(request.qid, [(yield from stored_stats(there, qid_of(request)))])

    answer = cast(wire.QueueStats, (yield from _run_in_thread(engine, ask, service, request)))
    with_consumers(service, answer.queues[0])
    return answer


def _all_stats(service: Service, request: wire.QueueStats) -> Answer:
    """Answers with the figures of all queues. For queues on a server that fails, the answer has only name and
    storage."""
    remotes = service.remotes
    # A queue of this server hides one of the same name that another server has made in a database.
    own = frozenset(service.storage.queues())
    call = Call(lambda stop: _remote_stats(remotes, lambda qid: qid not in own and service.may_see_stats(qid)))
    yield Pause(call=call)
    return (yield from all_stats(service, {info.qid: info for info in call.result()}))


def _remote_stats(remotes: Remotes, wanted: Callable[[str], bool]) -> list[wire.QueueInfo]:
    # Queues out of reach are listed by name: a client must see that there are queues without figures.
    found = [wire.QueueInfo(qid, storage=storage) for qid, storage in remotes.out_of_reach.items() if wanted(qid)]
    for engine in remotes.engines.values():
        # What is known not to answer is not asked: nobody's figures of other queues wait for that.
        failed = is_gathering(engine) and not engine.answers()
        until = time.monotonic() + (0 if failed else _STATS_TIMEOUT)
        for qid in filter(wanted, engine.queues()):
            try:
                # The others may fail as well, each after a time-out of its own: this one is for all together.
                late = failed and time.monotonic() >= until
                found.append(wire.QueueInfo(qid, storage=engine.name) if late else stats_of(qid, engine.queue(qid)))
            except NoSuchQueueError:
                continue  # it has just been deleted
            except RemoteError as error:
                _logger.error("no figures of queue %r: %s", qid, error)
                found.append(wire.QueueInfo(qid, storage=engine.name))
                failed = True
    return found
