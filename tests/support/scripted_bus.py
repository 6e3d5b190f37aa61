"""Scripts that play a bus, for a `ScriptedServer`."""

import contextlib
import queue
from collections.abc import Callable

from qs_client import DeleteMessage, Error, GetMessage, Message, ReleaseMessage, Subscribe
from qs_schemas import Peer
from support.scripted_server import GIVE_UP, Conversation, Script, answer_bytes

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


def noted(seen: Seen, count: int) -> list[Message]:
    return [seen.get(timeout=GIVE_UP) for _ in range(count)]


def what(messages: list[Message]) -> list[tuple[str, int | None]]:
    """Returns what became of which message."""
    return [(message.op, message.mid) for message in messages if isinstance(message, DeleteMessage | ReleaseMessage)]


def reset(conversation: Conversation) -> None:
    conversation.reset()


def refusing(code: int, kind: str) -> Callable[[Conversation], None]:
    def script(conversation: Conversation) -> None:
        conversation.read()
        conversation.write(Peer().send(Error(code, kind, "not now")))
        conversation.wait_for_close()

    return script


OUTAGE = (
    delivering(1, 2, then=lambda conversation: None),
    reset,
    refusing(503, "shutting-down"),
    refusing(429, "too-many"),
)
