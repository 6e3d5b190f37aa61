"""The page of one message, which is looked at and not received, and its payload as a file."""

from starlette.responses import Response

from qs_schemas import GetMessage

from .payloads import HEX_MOST, view_payload
from .problem import ProblemError
from .queue_page import payload_of, queue_name
from .visit import LIVE, Visit

_MICROS = 1_000_000


async def _message(visit: Visit) -> GetMessage:
    mid = visit.asked_number("id", 0)
    if not mid:
        raise ProblemError(400, "the address names no message: an id is a number")
    return await visit.client.peek(queue_name(visit), mid)


async def show_message(visit: Visit) -> Response:
    """Answers with the page of the message that the address names."""
    qid = queue_name(visit)
    message = await _message(visit)
    payload = payload_of(message)
    offset = visit.asked_number("offset", 0) // 16 * 16
    view = None if payload is None else view_payload(payload, visit.asked("view"), min(offset, len(payload)))
    return visit.page(
        "message",
        live=LIVE if payload is None or len(payload) < 64 * 1024 else 0,
        qid=qid,
        message=message,
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
        raise ProblemError(409, f"message {message.mid} is {message.status}: its payload is not shown")
    headers = {
        "content-disposition": f'attachment; filename="{message.mid}.bin"',
        "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    }
    return Response(payload, media_type="application/octet-stream", headers=headers)
