"""The operations that make a queue, and look at and change its options."""

from dataclasses import fields, replace

import qs_schemas as wire
from qs_schemas import Message
from qs_storage.engine import DEFAULT_VISIBILITY, SECOND, NoSuchQueueError, Options, QueueExistsError
from qs_storage.policy import contradiction_in

from .service import BadRequestError, Service, qid_of


def new_queue(service: Service, request: wire.NewQueue) -> Message:
    asked = request.options or wire.QueueOptions()
    options = _options_of(asked)
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
    """Raises QueueExistsError unless a queue has the options that a request names. Those that it does not name are left
    to the server, here as when a queue is made. wanted: the values of those that are named; error: of the creation."""
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
    return "none" if value is None else repr(value) if isinstance(value, str) else f"{value:.15g}"


def _options_of(asked: wire.QueueOptions) -> Options:
    options = Options(storage=asked.storage or "", capacity=asked.capacity, retention=_duration(asked.retention))
    if asked.visibility is not None:
        options.visibility = round(asked.visibility * SECOND)
    _set_dead_letter(options, asked)
    _set_backoff(options, asked)
    return options


def _set_dead_letter(options: Options, asked: wire.QueueOptions) -> None:
    """Takes over the requested options of dead letters. BadRequestError."""
    if asked.dead_letter is not None or "dead_letter" in asked.removed:
        options.dead_letter = asked.dead_letter or ""
    if asked.max_receives is not None or "max_receives" in asked.removed:
        options.max_receives = asked.max_receives
    if bool(options.dead_letter) != (options.max_receives is not None):
        raise BadRequestError("'dead-letter' and 'max-receives' go together: a queue has both, or neither")


def _set_backoff(options: Options, asked: wire.QueueOptions) -> None:
    """Takes over the requested options of the back-off. BadRequestError."""
    if asked.backoff is not None or "backoff" in asked.removed:
        options.backoff = _duration(asked.backoff)
    if asked.backoff_max is not None or "backoff_max" in asked.removed:
        options.backoff_max = _duration(asked.backoff_max)
    if (contradiction := contradiction_in(options)) is not None:
        raise BadRequestError(contradiction)


def _duration(seconds: float | None) -> int | None:
    """Returns microseconds, at least one, None for None."""
    return None if seconds is None else max(round(seconds * SECOND), 1)


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
        options.retention = _duration(asked.retention)
    _set_dead_letter(options, asked)
    _set_backoff(options, asked)
    service.storage.configure(qid_of(request), options)
    return wire.SetQueue(request.qid)


def get_queue(service: Service, request: wire.GetQueue) -> Message:
    return wire.GetQueue(request.qid, _shown(service.storage.options(qid_of(request))))


def _shown(options: Options) -> wire.QueueOptions:
    shown = wire.QueueOptions(options.storage, options.visibility / SECOND, options.capacity)
    shown.retention = _seconds(options.retention)
    shown.backoff, shown.backoff_max = _seconds(options.backoff), _seconds(options.backoff_max)
    shown.dead_letter, shown.max_receives = options.dead_letter or None, options.max_receives
    return shown


def pause_queue(service: Service, request: wire.PauseQueue) -> Message:
    _pause(service, qid_of(request), paused=True)
    return wire.PauseQueue(request.qid)


def resume_queue(service: Service, request: wire.ResumeQueue) -> Message:
    _pause(service, qid_of(request), paused=False)
    return wire.ResumeQueue(request.qid)


def _pause(service: Service, qid: str, *, paused: bool) -> None:
    options = service.storage.queue(qid).options
    if options.paused is not paused:
        service.storage.configure(qid, replace(options, paused=paused))
