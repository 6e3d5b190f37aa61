"""Writes the most frequent requests and answers like `serialize`, in 0.4 to 0.6 of its time.

scripts/bench/documents.py measures both ways, and a property test compares their results.

1. A template writes byte for byte what `serialize` would.
2. It writes only fields of exactly the types that `messages` names, within the bounds of the contract. Every other
   message is left to `serialize`, which writes the message or says what is wrong.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from .headers import checked_headers
from .limits import GROUP, KEY, QID, REQ
from .messages import (
    CopyMessage,
    DeleteMessage,
    Delivery,
    Draft,
    ExtendMessage,
    GetClaim,
    GetMessage,
    Message,
    Ping,
    PushMessage,
    Receipt,
    ReceiveMessage,
    ReleaseMessage,
    StageMessages,
)
from .serializing import check_lengths, serialize, write_headers, write_payload, write_payloads
from .text import escape
from .wire import NAMESPACE, seconds

_HEADS = {kind: f'<qs xmlns="{NAMESPACE}" type="{kind}"' for kind in ("request", "response")}
Written = tuple[str, str, bytes]
"""The attributes of `op`; the elements behind `op` as text; and the elements behind these as bytes."""


class _NoTemplateError(Exception):
    """Reports that no template can write this message."""


# `type(...) is` and not isinstance: True is an int too, and a subclass may be written in another way.
def _whole(value: Any) -> int:
    if type(value) is not int:
        raise _NoTemplateError
    return value


def _seconds(name: str, value: Any) -> str:
    if value is None:
        return ""
    if type(value) is not int and type(value) is not float:
        raise _NoTemplateError
    return f' {name}="{seconds(value)}"'


def _number(name: str, value: Any) -> str:
    if value is None:
        return ""
    if type(value) is not int:
        raise _NoTemplateError
    return f' {name}="{value}"'


# A client repeats the names of its queues. `typed`, so that a subclass of str is not found as the str that it equals.
@lru_cache(1024, typed=True)  # an unusual one raises, and is not kept
def _name(name: str) -> str:
    if type(name) is not str or not 0 < len(name) <= QID or not name.isprintable():
        raise _NoTemplateError
    return escape(name)


@lru_cache(1024, typed=True)
def _qid(qid: str | None) -> str:
    return "" if qid is None else f"<qid>{_name(qid)}</qid>"


def _id(name: str, value: str) -> str:
    """Writes the attribute `req` or `resp`, with a space in front."""
    # Nearly all are letters, digits and hyphens, and this check costs less than `escape`.
    if len(value) > REQ:
        raise _NoTemplateError
    return f' {name}="{value if value.isascii() and value.replace("-", "0").isalnum() else escape(value)}"'


def _mids(mids: Sequence[int | Receipt]) -> bytes:
    written = [
        f'<mid receives="{_whole(mid.receives)}">{_whole(mid.mid)}</mid>'
        if isinstance(mid, Receipt)
        else f"<mid>{_whole(mid)}</mid>"
        for mid in mids
    ]
    return f"<messages>{''.join(written)}</messages>".encode()


# The functions below read `_key`, `_qid` and the like: reading through the property would cost a call each time.
def _push(message: PushMessage) -> Written:
    attributes = ""
    if (
        message.delay is not None
        or message._key is not None
        or message.unique is not False
        or message.priority is not None
        or message.expires is not None
        or message._group is not None
        or message._headers
    ):
        attributes = _of_draft(message, message._type == "request")
        if message._headers and (message.payload is None or message.mid is not None):
            raise _NoTemplateError
    qid, payload, mid = _qid(message._qid), message.payload, message.mid
    if mid is not None:
        if payload is not None or message.messages or message.mids or type(mid) is not int:
            raise _NoTemplateError
        return attributes, f"{qid}<mid>{mid}</mid>", b""
    if payload is not None:
        if message.messages or message.mids or not isinstance(payload, bytes | str):
            raise _NoTemplateError
        written = write_payload(payload, message._type == "request")
        return attributes, qid, write_headers(message._headers) + written if message._headers else written
    if message.messages:
        if message.mids:
            raise _NoTemplateError
        return attributes, qid, _drafts(message.messages, message._type == "request")
    if not message.mids:
        raise _NoTemplateError
    return attributes, qid, _mids(message.mids)


def _of_draft(message: PushMessage | Draft, request: bool) -> str:
    """Writes the attributes of a message to push, and checks its headers."""
    key, group = message.key, message.group
    if type(message.unique) is not bool:
        raise _NoTemplateError
    if message.headers:
        if not request:
            raise _NoTemplateError
        checked_headers(message.headers.items())
    if (key is not None and not 0 < len(key) <= KEY) or (group is not None and not 0 < len(group) <= GROUP):
        raise _NoTemplateError
    return (
        _seconds("delay", message.delay)
        + ("" if key is None else f' key="{escape(key)}"')
        + (' unique="yes"' if message.unique else "")
        + _number("priority", message.priority)
        + _seconds("expires", message.expires)
        + ("" if group is None else f' group="{escape(group)}"')
    )


def _drafts(drafts: list[Draft], shortest: bool) -> bytes:
    parts = [b"<messages>"]
    if set(map(type, drafts)) != {Draft}:
        raise _NoTemplateError
    payloads = write_payloads([draft.payload for draft in drafts], shortest)
    for draft, payload in zip(drafts, payloads, strict=True):
        start = b"<message>"
        if (
            draft.delay is not None
            or draft.key is not None
            or draft.unique is not False
            or draft.priority is not None
            or draft.expires is not None
            or draft.group is not None
            or draft.headers
        ):
            start = f"<message{_of_draft(draft, shortest)}>".encode()
            if draft.headers:
                start += write_headers(draft.headers)
        parts += (start, payload, b"</message>")
    parts.append(b"</messages>")
    return b"".join(parts)


def _receive(message: ReceiveMessage) -> Written:
    if message.queues != [] or message.order is not None:
        raise _NoTemplateError
    attributes = ""
    if message.max is not None:
        attributes += _number("max", message.max)
    if message.visibility is not None:
        attributes += _seconds("visibility", message.visibility)
    if message.wait is not None:
        attributes += _seconds("wait", message.wait)
    if message._type == "request":
        if message.messages:
            raise _NoTemplateError
        return attributes, _qid(message.qid), b""
    return attributes, _qid(message.qid), _deliveries(message.messages)


def _deliveries(deliveries: list[Delivery]) -> bytes:
    heads: list[bytes] = []
    payloads: list[bytes] = []
    for delivery in deliveries:
        if type(delivery) is not Delivery or _is_dead(delivery) or delivery.status is not None:
            raise _NoTemplateError
        mid, receives, pushed_at, visible_at = delivery.mid, delivery.receives, delivery.pushed_at, delivery.visible_at
        if not (type(mid) is type(receives) is type(pushed_at) is int):
            raise _NoTemplateError
        until = "" if visible_at is None else f' visible-at="{_whole(visible_at)}"'
        qid = "" if delivery.qid is None else f' qid="{_name(delivery.qid)}"'
        head = f'<message{qid} mid="{mid}" receives="{receives}" pushed-at="{pushed_at}"{until}'
        if (
            delivery.headers
            or delivery.priority is not None
            or delivery.group is not None
            or delivery.expires_at is not None
        ):
            start = f"{head}{_there(delivery)}>".encode()
            heads.append(start + write_headers(delivery.headers) if delivery.headers else start)
        else:
            heads.append(f"{head}>".encode())
        payloads.append(delivery.payload)
    parts = [b"<messages>"]
    for start, payload in zip(heads, write_payloads(payloads), strict=True):
        parts += (start, payload, b"</message>")
    parts.append(b"</messages>")
    return b"".join(parts)


def _there(message: Delivery | GetMessage) -> str:
    """Writes the attributes that a message has if it was pushed with them."""
    group = message.group
    if group is not None and (type(group) is not str or not 0 < len(group) <= GROUP):
        raise _NoTemplateError
    return (
        _number("priority", message.priority)
        + ("" if group is None else f' group="{escape(group)}"')
        + _number("expires-at", message.expires_at)
    )


def _is_dead(message: Delivery | GetMessage) -> bool:
    """Tells whether a message has a field that only dead letters have, or messages that were released with a reason."""
    return (
        message.reason is not None
        or message.dead_from is not None
        or message.dead_mid is not None
        or message.dead_receives is not None
        or message.dead_at is not None
        or message.dead_reason is not None
    )


def _claim(message: GetClaim) -> Written:
    if message._type == "request" or message.consumer is not None or message.part is not None:
        raise _NoTemplateError
    if message.seq is not None or message.parts is not None:
        raise _NoTemplateError
    return "", _qid(message.qid), _deliveries(message.messages)


def _stage(message: StageMessages) -> Written:
    if message.count is not None or not message.messages:
        raise _NoTemplateError
    attributes = _number("part", message.part) + _number("batch", message.batch) + _number("attempt", message.attempt)
    producer = "" if message.producer is None else f"<producer>{_name(message.producer)}</producer>"
    return attributes, _qid(message.qid) + producer, _drafts(message.messages, message._type == "request")


def _delete(message: DeleteMessage) -> Written:
    qid, mid = _qid(message.qid), message.mid
    if mid is not None:
        if message.mids or type(mid) is not int:
            raise _NoTemplateError
        receives = "" if message.receives is None else f' receives="{_whole(message.receives)}"'
        return "", f"{qid}<mid{receives}>{mid}</mid>", b""
    if not message.mids and message._type == "request":
        raise _NoTemplateError
    return "", qid, _mids(message.mids)


def _copy(message: CopyMessage) -> Written:
    qid, mid, queues = _qid(message.qid), message.mid, message.queues
    if mid is not None and message.mids:
        raise _NoTemplateError
    names = "".join([f"<queue>{_name(queue)}</queue>" for queue in queues])
    if queues:
        names = f"<queues>{names}</queues>"
    if mid is not None:
        return "", f"{qid}{names}<mid>{_whole(mid)}</mid>", b""
    if not message.mids and message._type == "request":
        raise _NoTemplateError
    return "", qid + names, _mids(message.mids)


def _get(message: GetMessage) -> Written:
    status, payload = message.status, message.payload
    if type(message.peek) is not bool or _is_dead(message) or message.messages or message.mids or message.more:
        raise _NoTemplateError
    attributes = ' peek="yes"' if message.peek else ""
    if message.visibility is not None:
        attributes += _seconds("visibility", message.visibility)
    mid = (
        ("<mid" if status is None else f'<mid status="{_name(status)}"')
        + _number("receives", message.receives)
        + _number("pushed-at", message.pushed_at)
        + _number("visible-at", message.visible_at)
    )
    headers = message._headers
    if headers or message.priority is not None or message._group is not None or message.expires_at is not None:
        mid += _there(message)
    mid += f">{_whole(message.mid)}</mid>"
    if payload is None:
        if headers:
            raise _NoTemplateError
        return attributes, _qid(message.qid) + mid, b""
    written = write_payload(payload, message._type == "request") + mid.encode()
    return attributes, _qid(message.qid), write_headers(headers) + written if headers else written


def _release(message: ReleaseMessage) -> Written:
    if message.uncounted is not False or message._reason is not None:
        raise _NoTemplateError
    return _seconds("delay", message.delay), _release_or_extend(message), b""


def _extend(message: ExtendMessage) -> Written:
    return _seconds("visibility", message.visibility), _release_or_extend(message), b""


def _release_or_extend(message: ReleaseMessage | ExtendMessage) -> str:
    attributes = _number("receives", message.receives) + _number("visible-at", message.visible_at)
    return f"{_qid(message.qid)}<mid{attributes}>{_whole(message.mid)}</mid>"


def _ping(message: Ping) -> Written:
    return "" if message.name is None else f' name="{_name(message.name)}"', "", b""


_TEMPLATES: dict[type[Message], Callable[[Any], Written]] = {
    PushMessage: _push,
    ReceiveMessage: _receive,
    DeleteMessage: _delete,
    CopyMessage: _copy,
    GetMessage: _get,
    ReleaseMessage: _release,
    ExtendMessage: _extend,
    Ping: _ping,
    GetClaim: _claim,
    StageMessages: _stage,
}


def write_pushed(
    requests: Sequence[PushMessage], mids: Iterable[int], new_resp: Callable[[], str], *, early: bool = False
) -> list[bytes]:
    """Writes the answers to pushes of one message each, like `write` and `serialize`, with one formatting for each.
    requests: to one queue, as they were read, so that their names are within the bounds; mids: the ids of their
    messages; new_resp: makes the id of an answer; early: see `serialize`."""
    if early:
        return [serialize(_pushed(*each, new_resp()), early) for each in zip(requests, mids, strict=False)]
    documents: list[bytes] = []
    head, behind = _HEADS["response"], f'"><op><push-message/></op>{_qid(requests[0]._qid)}<mid>'
    for request, mid in zip(requests, mids, strict=False):
        ids = "" if request._req is None else _id("req", request._req)
        documents.append(f'{head}{ids} resp="{new_resp()}{behind}{mid}</mid></qs>\r\n'.encode())
    return documents


def _pushed(request: PushMessage, mid: int, resp: str) -> PushMessage:
    """Returns the answer to a push of one message. mid: the message's id; resp: the answer's."""
    answer = PushMessage(request.qid, mid=mid)
    answer.answers(resp, request.req)
    return answer


def write(message: Message) -> bytes:
    """Writes the document of a message, with its line end: from a template, or else with `serialize`. Raises ValueError
    if a field holds a character that XML cannot carry, or if a request has a name, key or id that is longer than the
    contract allows."""
    template = _TEMPLATES.get(type(message))
    if template is None:
        return _serialized(message)
    req, resp, ids = message._req, message._resp, ""
    try:
        if req is not None:
            # `_id` without its call, as nearly every message has one.
            plain = len(req) <= REQ and req.isascii() and req.replace("-", "0").isalnum()
            ids = f' req="{req}"' if plain else _id("req", req)
        if resp is not None:
            ids += f' resp="{resp}"' if resp.isalnum() and resp.isascii() else _id("resp", resp)
        attributes, text, rest = template(message)
        head = f"{_HEADS[message._type]}{ids}><op{attributes}><{message.op}/></op>{text}"
    except (_NoTemplateError, KeyError, TypeError, AttributeError):  # the last: a field holds another type
        return _serialized(message)
    return b"%b%b</qs>\r\n" % (head.encode(), rest)


def _serialized(message: Message) -> bytes:
    if message.type == "request":
        check_lengths(message)
    return serialize(message)
