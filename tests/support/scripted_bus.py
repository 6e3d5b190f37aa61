"""Scripts that play a bus, for a `ScriptedServer`."""

import contextlib
import queue
from collections.abc import Callable

from qs_client import GetMessage, Message, Subscribe
from qs_schemas import Peer
from support.scripted_server import Conversation, Script, answer_bytes

Seen = queue.SimpleQueue[Message]


def delivered(request: Message | None, mid: int, payload: bytes | None = None) -> bytes:
    """A message as the bus delivers it; the payload is its number, if it is not given."""
    assert request is not None
    message = GetMessage(
        "q", mid, payload=b"%d" % mid if payload is None else payload, status="delivered", receives=1, type="response"
    )
    message.req = request.req
    return Peer().send(message)


def accept(conversation: Conversation, *mids: int) -> Subscribe:
    """Takes a subscription, and delivers these."""
    subscribe = conversation.read()
    assert isinstance(subscribe, Subscribe)
    conversation.write(answer_bytes(subscribe) + b"".join(delivered(subscribe, mid) for mid in mids))
    return subscribe


def delivering(*mids: int, seen: Seen | None = None, then: Callable[[Conversation], None] | None = None) -> Script:
    """A script that takes a subscription, delivers these, and answers what comes, noting it. then: instead of the
    latter."""

    def script(conversation: Conversation) -> None:
        subscribe = accept(conversation, *mids)
        if seen is not None:
            seen.put(subscribe)
        if then is not None:
            then(conversation)
            return
        while (request := _next(conversation)) is not None:
            if seen is not None:
                seen.put(request)
            with contextlib.suppress(ConnectionError):  # the client may go without waiting for it
                conversation.answer(request)

    return script


def _next(conversation: Conversation) -> Message | None:
    try:
        return conversation.read()
    except ConnectionError:  # the client went while something was on its way to it
        return None
