"""The operation that moves dead letters back."""

import qs_schemas as wire
from qs_schemas import Message
from qs_storage.engine import Redrive, UnsupportedError
from qs_storage.policy import REDRIVING

from .service import BadRequestError, Service, qid_of


def redrive_messages(service: Service, request: wire.RedriveMessages) -> Message:
    if len(request.queues) > 1:
        raise BadRequestError("redrive-messages takes one destination, and 'queues' has more")
    qid = qid_of(request)
    redrive = _redrive(service, qid)
    wanted = [each.mid if isinstance(each, wire.Receipt) else each for each in request.mids]
    count = min(service.list_length if request.max is None else request.max, service.list_length)
    letters = redrive.letters(wanted, count)
    names = request.queues or sorted({came_from for _, came_from in letters})
    if service.caller is not None and not request.queues:
        service.caller.check_origins(names)
    targets = {name: service.storage.queue(name) for name in names}
    into = request.queues[0] if request.queues else None
    moved = redrive.move([(mid, targets[into or came_from]) for mid, came_from in letters])
    for mid, _ in moved:
        service.subscriptions.settled(qid, mid)
    return wire.RedriveMessages(qid, count=len(moved), mids=[new for _, new in moved])


def _redrive(service: Service, qid: str) -> Redrive:
    queue = service.storage.queue(qid)
    if queue.redrive is None:
        raise UnsupportedError(
            f"queue {qid!r} has the storage {queue.options.storage!r}, which moves no dead letters back: {REDRIVING} do"
        )
    return queue.redrive
