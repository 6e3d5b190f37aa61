"""Makes the answers, and the entries of answers, that carry messages."""

from typing import TypeVar

from qs_schemas import Delivery, GetMessage
from qs_storage.engine import Message, Origin

_Answer = TypeVar("_Answer", Delivery, GetMessage)


def delivery_of(message: Message, req: str | None = None) -> GetMessage:
    """Returns the answer with a message. req: the subscription's, None for a request."""
    answer = GetMessage(
        message.qid,
        message.mid,
        payload=message.payload,
        status=message.status,
        receives=message.receives,
        pushed_at=message.pushed_at,
        visible_at=message.visible_at,
        reason=message.reason,
        req=req,
        type="response",
    )
    return answer if message.origin is None else with_origin(answer, message.origin)


def peeked(message: Message) -> Delivery:
    """Returns the entry of a list with a message that was peeked at."""
    entry = Delivery(
        message.mid,
        message.payload or b"",
        receives=message.receives,
        pushed_at=message.pushed_at,
        visible_at=message.visible_at,
        status=message.status,
        reason=message.reason,
    )
    return entry if message.origin is None else with_origin(entry, message.origin)


def with_origin(answer: _Answer, origin: Origin | None) -> _Answer:
    """Adds the origin of a dead letter to an answer. origin: None for any other message."""
    if origin is not None:
        answer.dead_from, answer.dead_mid, answer.dead_receives = origin.qid, origin.mid, origin.receives or None
        answer.dead_at, answer.dead_reason = origin.at or None, origin.reason
    return answer
