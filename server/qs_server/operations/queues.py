"""Implements the operations on queues. Each is a function from a request to its answer, or a generator if it may take
long."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import fields, replace

import qs_schemas as wire
from qs_schemas import Message
from qs_schemas.serializing import WrittenQueues
from qs_storage.engine import (
    DEFAULT_VISIBILITY,
    SECOND,
    Feature,
    NoSuchQueueError,
    Options,
    Queue,
    QueueExistsError,
    Redrive,
    UnsupportedError,
)
from qs_storage.policy import contradiction_in, storages_with

from ..broker.jobs import Pause
from .door import InvalidPayloadError
from .messages import check_stored
from .service import Answer, BadRequestError, Service, duration, in_room, qid_of

_LONGEST = 999_999_999
"""The greatest age in seconds that the protocol has. A client may choose an id that stands for 1970."""
_CHUNK = 20
"""Queues of an answer until the handler looks again if the time slice is over."""
_NAME, _STATS, _FIGURES = 1, 8, 1000
"""Units of work (see `Service.spent`) for a name, for the figures of a queue, and for those of the server. Most of the
time goes into writing them."""
_SETTINGS = 200
"""Units of work for a queue whose options are written, or which is made or removed: a few operations of the file
system, some of them synced."""
_SORTED, _COUNTED = 8, 3
"""Names that are gathered and sorted, and queues that are counted in the server's figures, in one unit of work."""
_PURGE_SLICE = 200
"""Messages removed before the requests of others run: some 5 ms."""

# -- all queues


def list_queues(service: Service, request: wire.ListQueues) -> Answer:
    """Answers with the queues that the caller may see. Works in slices, because each name may have to be compared with
    the caller's patterns."""
    may_see = None if service.caller is None else service.caller.may_see
    qids = sorted(service.queues())
    service.spent += len(qids) // _SORTED
    listed = WrittenQueues()
    for at in range(0, len(qids), _CHUNK):
        if service.turn_is_over:
            yield Pause()
        chunk = qids[at : at + _CHUNK]
        service.spent += len(chunk) * _NAME
        if may_see is not None:
            chunk = list(filter(may_see, chunk))
        listed.add(chunk)
    return wire.ListQueues(listed)


def queue_stats(service: Service, request: wire.QueueStats) -> Answer:
    if request.qid is None:
        return (yield from all_stats(service, {}))
    info = yield from stored_stats(service, request.qid)
    return wire.QueueStats(request.qid, [with_consumers(service, info)])


def all_stats(service: Service, elsewhere: Mapping[str, wire.QueueInfo]) -> Answer:
    """Answers with the figures of all queues that the client may see. elsewhere: the figures of queues on other
    servers."""
    qids = sorted({*service.storage.queues(), *elsewhere})
    service.spent += len(qids) // _SORTED
    infos = WrittenQueues()
    for at in range(0, len(qids), _CHUNK):
        if service.turn_is_over:
            yield Pause()
        chunk: list[wire.QueueInfo] = []
        for qid in filter(service.may_see_stats, qids[at : at + _CHUNK]):
            service.spent += _STATS
            try:
                info = elsewhere.get(qid) or (yield from stored_stats(service, qid))
            except NoSuchQueueError:
                continue  # it has just been deleted
            chunk.append(with_consumers(service, info))
        infos.add(chunk)
    return wire.QueueStats(None, infos)


def with_consumers(service: Service, info: wire.QueueInfo) -> wire.QueueInfo:
    """Adds to the figures of a queue what its engine does not count, and removes the name of a
    dead-letter queue whose figures this client may not see. Returns the same figures."""
    info.subscribers, info.waiting = service.subscriptions.count(info.qid), service.waiting(info.qid)
    if info.schema is not None:
        info.refused = service.door.refused.get(info.qid, 0)
    if info.dead_letter is not None and not service.may_see_stats(info.dead_letter):
        info.dead_letter = None
    return info


def stored_stats(service: Service, qid: str) -> Generator[Pause, bool | None, wire.QueueInfo]:
    """Returns the figures of a queue of the server's own storage. Raises NoSuchQueueError."""
    while service.storage.queue(qid).prepare_stats():
        yield Pause()
    return stats_of(qid, service.storage.queue(qid))


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
        limited=stats.limited or None,
        schema=queue.options.schema or None,
    )


def server_stats(service: Service, request: wire.ServerStats) -> Message:
    service.spent += _FIGURES + len(service.storage.queues()) // _COUNTED
    return wire.ServerStats(service.figures(request.connections))


# -- one queue


def new_queue(service: Service, request: wire.NewQueue) -> Message:
    asked = request.options or wire.QueueOptions()
    options = _options_of(service, asked)
    service.spent += _SETTINGS
    try:
        service.storage.create(qid_of(request), options)
    except QueueExistsError as error:
        if not request.exist_ok:
            raise
        _refuse_others(service, qid_of(request), asked, _shown(options), error)
    return wire.NewQueue(request.qid)


def _refuse_others(
    service: Service, qid: str, asked: wire.QueueOptions, wanted: wire.QueueOptions, error: QueueExistsError
) -> None:
    """Checks that an existing queue has the options that a request names. Ignores options that the request does not
    name, which the server chooses for a new queue too. wanted: the values of the named options; error: the error of the
    creation. Raises QueueExistsError."""
    try:
        there = _shown(service.storage.options(qid))
    except NoSuchQueueError:  # it went just now, or only another server knows it
        raise error from None
    differing = [
        f"its {name.replace('_', '-')} is {_written(getattr(there, name))}, not {_written(getattr(wanted, name))}"
        for name in (field.name for field in fields(wire.QueueOptions) if field.name != "removed")
        if getattr(asked, name) is not None and getattr(there, name) != getattr(wanted, name)
    ]
    if differing:
        raise QueueExistsError(f"'{qid}' is already an existing queue with other options: {', '.join(differing)}")


def _written(value: float | str | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else repr(value) if isinstance(value, str) else f"{value:.15g}"


def _options_of(service: Service, asked: wire.QueueOptions) -> Options:
    options = Options(storage=asked.storage or "", capacity=asked.capacity, retention=duration(asked.retention))
    if asked.visibility is not None:
        options.visibility = round(asked.visibility * SECOND)
    _set_dead_letter(options, asked)
    _set_backoff(options, asked)
    _set_pace(options, asked)
    _set_texts(service, options, asked)
    return options


def _set_dead_letter(options: Options, asked: wire.QueueOptions) -> None:
    """Sets the requested options about dead letters. Raises BadRequestError if they contradict each other."""
    if asked.dead_letter is not None or "dead_letter" in asked.removed:
        options.dead_letter = asked.dead_letter or ""
    if asked.max_receives is not None or "max_receives" in asked.removed:
        options.max_receives = asked.max_receives
    if bool(options.dead_letter) != (options.max_receives is not None):
        raise BadRequestError("'dead-letter' and 'max-receives' go together: a queue has both, or neither")


def _set_backoff(options: Options, asked: wire.QueueOptions) -> None:
    """Sets the requested options of the back-off. Raises BadRequestError if they contradict other options."""
    if asked.backoff is not None or "backoff" in asked.removed:
        options.backoff = duration(asked.backoff)
    if asked.backoff_max is not None or "backoff_max" in asked.removed:
        options.backoff_max = duration(asked.backoff_max)
    if (contradiction := contradiction_in(options)) is not None:
        raise BadRequestError(contradiction)


def _set_pace(options: Options, asked: wire.QueueOptions) -> None:
    """Sets the requested options of order and pace."""
    if asked.group_in_flight is not None or "group_in_flight" in asked.removed:
        # 1 is what a queue has that names none, so both are the same queue.
        options.group_in_flight = None if asked.group_in_flight == 1 else asked.group_in_flight
    if asked.fair is not None or "fair" in asked.removed:
        options.fair = bool(asked.fair)
    if asked.max_in_flight is not None or "max_in_flight" in asked.removed:
        options.max_in_flight = asked.max_in_flight
    if asked.rate is not None or "rate" in asked.removed:
        options.rate = asked.rate


def _set_texts(service: Service, options: Options, asked: wire.QueueOptions) -> None:
    """Sets the schema, and the condition of a durable name. Raises BadRequestError for a schema that is not there."""
    if asked.schema and (fault := service.door.fault_in_name(asked.schema)) is not None:
        raise BadRequestError(fault)
    if asked.schema is not None or "schema" in asked.removed:
        options.schema = asked.schema or ""
    if asked.where is not None or "where" in asked.removed:
        options.where = asked.where or ""


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / SECOND


def set_queue(service: Service, request: wire.SetQueue) -> Message:
    asked = request.options or wire.QueueOptions()
    if asked.storage is not None or "storage" in asked.removed:
        raise BadRequestError(
            "the storage of a queue cannot be changed while the server runs: stop it and use queue-journal.py convert"
        )
    options = replace(service.storage.options(qid_of(request)))
    if asked.visibility is not None or "visibility" in asked.removed:
        options.visibility = DEFAULT_VISIBILITY if asked.visibility is None else round(asked.visibility * SECOND)
    if asked.capacity is not None or "capacity" in asked.removed:
        options.capacity = asked.capacity
    if asked.retention is not None or "retention" in asked.removed:
        options.retention = duration(asked.retention)
    _set_dead_letter(options, asked)
    _set_backoff(options, asked)
    _set_pace(options, asked)
    _set_texts(service, options, asked)
    service.spent += _SETTINGS
    service.storage.configure(qid_of(request), options)
    return wire.SetQueue(request.qid)


def get_queue(service: Service, request: wire.GetQueue) -> Message:
    return wire.GetQueue(request.qid, _shown(service.storage.options(qid_of(request))))


def _shown(options: Options) -> wire.QueueOptions:
    shown = wire.QueueOptions(options.storage, options.visibility / SECOND, options.capacity)
    shown.retention = _seconds(options.retention)
    shown.backoff, shown.backoff_max = _seconds(options.backoff), _seconds(options.backoff_max)
    shown.dead_letter, shown.max_receives = options.dead_letter or None, options.max_receives
    shown.group_in_flight, shown.fair = options.group_in_flight, options.fair or None
    shown.max_in_flight, shown.rate = options.max_in_flight, options.rate
    shown.schema, shown.where = options.schema or None, options.where or None
    return shown


def pause_queue(service: Service, request: wire.PauseQueue) -> Message:
    _pause(service, qid_of(request), paused=True)
    return wire.PauseQueue(request.qid)


def resume_queue(service: Service, request: wire.ResumeQueue) -> Message:
    _pause(service, qid_of(request), paused=False)
    return wire.ResumeQueue(request.qid)


def _pause(service: Service, qid: str, *, paused: bool) -> None:
    options = service.storage.queue(qid).options
    if options.paused is not paused:  # a repeated request writes nothing
        service.spent += _SETTINGS
        service.storage.configure(qid, replace(options, paused=paused))


def delete_queue(service: Service, request: wire.DeleteQueue) -> Message:
    service.spent += _SETTINGS
    service.storage.remove(qid_of(request), force=request.force)
    service.subscriptions.gone(qid_of(request))
    return wire.DeleteQueue(request.qid)


def purge_queue(service: Service, request: wire.PurgeQueue) -> Answer:
    """Removes the messages that the queue has now, in slices. Messages that are pushed meanwhile stay."""
    qid = qid_of(request)
    upto = service.storage.queue(qid).last_mid  # later messages stay, or this might never end
    total = 0
    while True:
        # The queue is looked up again in each slice: somebody may have deleted it in between.
        removed = yield from in_room(lambda: service.storage.queue(qid).purge(upto, _PURGE_SLICE))
        total += removed
        if removed == 0:
            service.subscriptions.purged(qid, upto)
            return wire.PurgeQueue(qid, total)
        yield Pause()


def redrive_messages(service: Service, request: wire.RedriveMessages) -> Message | Answer:
    if len(request.queues) > 1:
        raise BadRequestError("redrive-messages takes one destination, and 'queues' has more")
    qid = qid_of(request)
    wanted = [each.mid if isinstance(each, wire.Receipt) else each for each in request.mids]
    count = min(service.list_length if request.max is None else request.max, service.list_length)
    redrive = _redrive(service, qid)
    letters = redrive.letters(wanted, count)
    names = request.queues or sorted({came_from for _, came_from in letters})
    if service.caller is not None and not request.queues:  # the table has checked the queues that the request names
        service.caller.check_origins(names)
    targets = {name: service.storage.queue(name) for name in names}  # raises before anything is moved
    into = request.queues[0] if request.queues else None
    goals = [(mid, into or came_from) for mid, came_from in letters]
    if any(target.options.schema for target in targets.values()):
        return _redrive_checked(service, qid, goals)
    return _move(service, qid, goals)


def _redrive_checked(service: Service, qid: str, goals: Sequence[tuple[int, str]]) -> Answer:
    for mid, target in goals:
        if service.turn_is_over:
            yield Pause()
        try:
            yield from check_stored(service, qid, mid, [target])
        except InvalidPayloadError as error:
            raise InvalidPayloadError(f"message {mid} of queue {qid!r}: {error}") from None
    return (yield from in_room(lambda: _move(service, qid, goals)))


def _move(service: Service, qid: str, goals: Sequence[tuple[int, str]]) -> Message:
    targets = {name: service.storage.queue(name) for name in {name for _, name in goals}}
    redrive = _redrive(service, qid)
    moved = redrive.move([(mid, targets[name]) for mid, name in goals])
    for mid, _ in moved:
        service.subscriptions.settled(qid, mid)
    return wire.RedriveMessages(qid, count=len(moved), mids=[new for _, new in moved])


def _redrive(service: Service, qid: str) -> Redrive:
    queue = service.storage.queue(qid)
    if queue.redrive is None:
        raise UnsupportedError(
            f"queue {qid!r} has the storage {queue.options.storage!r}, which moves no dead letters back: "
            f"{storages_with(Feature.REDRIVE)} do"
        )
    return queue.redrive
