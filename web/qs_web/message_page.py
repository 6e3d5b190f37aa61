"""The page of one message, which is looked at and not received, and its payload as a file."""

from starlette.responses import Response

from qs_client import Delivery
from qs_schemas import GetMessage

from .message_list import payload_of
from .payloads import HEX_MOST, view_payload, visible
from .problem import ProblemError
from .visit import LIVE, Visit


async def _message(visit: Visit) -> Delivery | GetMessage:
    """Returns the message that the address names, without its payload if a claim holds it. NotFound."""
    qid, mid = visit.queue_name, visit.asked_number("id", 0)
    if not mid:
        raise ProblemError(400, "the address names no message: an id is a number")
    found = await visit.client.peek_many(qid, [mid])
    return found[0] if found else await visit.client.peek(qid, mid)


async def show_message(visit: Visit) -> Response:
    """Answers with the page of the message that the address names."""
    qid = visit.queue_name
    message = await _message(visit)
    payload = payload_of(message)
    offset = visit.asked_number("offset", 0) // 16 * 16
    view = None if payload is None else view_payload(payload, visit.asked("view"), min(offset, len(payload)))
    is_held = message.status == "in-flight" and payload is not None
    return visit.page(
        "message",
        live=LIVE if payload is None or len(payload) < 64 * 1024 else 0,
        qid=qid,
        message=message,
        is_held=is_held,
        dead_letter=(await visit.figures(qid)).dead_letter if is_held else None,
        reason=visible(message.reason or ""),
        size=None if payload is None else len(payload),
        view=view,
        offset=offset,
        next_offset=offset + HEX_MOST if view is not None and view.view == "hex" and view.cut > 0 else None,
    )


async def send_payload(visit: Visit) -> Response:
    """Answers with the payload as a file to save. Browsers never show it as a page."""
    message = await _message(visit)
    payload = payload_of(message)
    if payload is None:
        raise ProblemError(409, f"message {message.mid} is held by a claim: its payload is not shown")
    headers = {
        "content-disposition": f'attachment; filename="{message.mid}.bin"',
        "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    }
    return Response(payload, media_type="application/octet-stream", headers=headers)
