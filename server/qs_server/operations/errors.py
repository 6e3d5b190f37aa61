"""Makes the answers to requests that fail: maps each exception to an error code and a text."""

import logging

from qs_schemas import CopyMessage, Error, ErrorCode, Fault, Message, NewQueue
from qs_schemas import errors as table
from qs_serving.answers import new_resp
from qs_storage import engine
from qs_storage.disk import has_no_room

from .service import NoSuchSubscriptionError

_logger = logging.getLogger(__name__)

_ERRORS: dict[type[engine.StorageError], ErrorCode] = {
    engine.NoSuchQueueError: table.NOT_FOUND,
    engine.NoSuchMessageError: table.NOT_FOUND,
    NoSuchSubscriptionError: table.NOT_FOUND,
    engine.NoSuchClaimError: table.NOT_FOUND,
    engine.NoSuchPartError: table.NOT_FOUND,
    engine.ClaimOrderError: table.CONFLICT,
    engine.BatchOrderError: table.CONFLICT,
    engine.QueueExistsError: table.CONFLICT,
    engine.OtherMessageError: table.CONFLICT,
    engine.DeadLetterCycleError: table.CONFLICT,
    engine.NoDeadLetterQueueError: table.CONFLICT,
    engine.QueueNotEmptyError: table.NOT_EMPTY,
    engine.StaleReceiptError: table.STALE,
    engine.QueueFullError: table.FULL,
    engine.BadQueueNameError: table.BAD_REQUEST,
    engine.UnsupportedError: table.NOT_IMPLEMENTED,
}


def error_answer(about: Message | Fault, error: ErrorCode, text: str) -> Error:
    return Fault(error, text, about.req).message(new_resp())


def refused(about: Message, error: engine.StorageError) -> Error:
    """Returns the answer to a request that the engine refuses. Logs an error without a code of its own."""
    known = next((_ERRORS[kind] for kind in type(error).__mro__ if kind in _ERRORS), table.INTERNAL)
    answer = error_answer(about, known, str(error))
    if known is table.INTERNAL:
        _logger.error("resp %s: %s: %s", answer.resp, about.op, error)
    return answer


def disk_error(about: Message, error: Exception, storage: engine.Engine) -> Error:
    if isinstance(error, FileNotFoundError) and not all(map(storage.in_place, _queues_of(about))):
        return error_answer(about, table.NOT_FOUND, "the directory of the queue is gone")
    partly = isinstance(about, CopyMessage) and about.mids
    return storage_error(about, error, "some may have been copied" if partly else "nothing was changed")


def _queues_of(about: Message) -> list[str]:
    """Returns the queues of a request that have to exist."""
    if isinstance(about, NewQueue):
        return []
    qid = getattr(about, "qid", None)
    return [*([] if qid is None else [qid]), *getattr(about, "queues", ())]


def storage_error(about: Message, error: Exception, remark: str) -> Error:
    """Returns the answer to a request during which the storage failed, and logs the error. remark: tells what was
    changed."""
    if isinstance(error, OSError) and has_no_room(error):
        return error_answer(about, table.FULL, f"the disk is full; {remark}")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    answer = error_answer(about, table.INTERNAL, f"the storage failed: {reason}; {remark}")
    _logger.error("resp %s: %s: %s", answer.resp, about.op, error)
    return answer
