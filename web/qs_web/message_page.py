"""The page of one message, its payload as a file, and the forms that delete, release, redrive or reject messages.

Looking at a message does not receive it: its consumers get it as if nobody had looked.
"""

from starlette.responses import Response

from qs_client import Delivery, NotFound, Stale
from qs_schemas import GetMessage

from .forms import Form, ask_to_confirm, is_confirmed, read_form
from .payloads import HEX_MOST, view_payload, visible
from .visit import LIVE, ProblemError, Visit

_LIVE_MOST = 64 * 1024
"""Bytes of the largest payload whose page is reloaded by itself while it is open. The payload is sent again each
time."""


async def _message(visit: Visit) -> Delivery | GetMessage:
    """Returns the message that the address names, without its payload if a claim holds it. Raises NotFound."""
    qid, mid = visit.queue_name, visit.query_number("id", 0)
    if not mid:
        raise ProblemError(400, "the address names no message: an id is a number")
    # The list form has the payload of a message in flight, which `peek` leaves out. It has no message of a claim.
    found = await visit.client.peek_many(qid, [mid])
    return found[0] if found else await visit.client.peek(qid, mid)


def _payload_of(message: Delivery | GetMessage) -> bytes | None:
    """Returns the payload of a message, None if the queue server does not show it because a claim holds the message."""
    payload = message.payload
    return payload.encode() if isinstance(payload, str) else payload


async def show_message(visit: Visit) -> Response:
    """Answers with the page of the message that the address names."""
    qid = visit.queue_name
    message = await _message(visit)
    payload = _payload_of(message)
    offset = visit.query_number("offset", 0) // 16 * 16  # a line of the view in hexadecimal has 16 bytes
    headers = {visible(name): visible(text) for name, text in message.headers.items()}
    content_type = next((text for name, text in headers.items() if name.lower() == "content-type"), "")
    view = None
    if payload is not None:
        view = view_payload(payload, visit.query("view"), min(offset, len(payload)), content_type)
    is_in_flight = message.status == "in-flight" and payload is not None
    return visit.page(
        "message",
        live=LIVE if payload is None or len(payload) < _LIVE_MOST else 0,
        qid=qid,
        message=message,
        headers=headers,
        is_in_flight=is_in_flight,
        dead_letter=(await visit.figures(qid)).dead_letter if is_in_flight else None,
        reason=visible(message.reason or ""),
        size=None if payload is None else len(payload),
        view=view,
        offset=offset,
        next_offset=offset + HEX_MOST if view is not None and view.view == "hex" and view.cut > 0 else None,
    )


async def send_payload(visit: Visit) -> Response:
    """Answers with the payload as a file to save. Browsers never show it as a page, whatever its content type says."""
    message = await _message(visit)
    payload = _payload_of(message)
    if payload is None:
        raise ProblemError(409, f"message {message.mid} is held by a claim: its payload is not shown")
    headers = {
        "content-disposition": f'attachment; filename="{message.mid}.bin"',
        "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    }
    return Response(payload, media_type="application/octet-stream", headers=headers)


async def act_on_messages(visit: Visit) -> Response:
    """Deletes, releases, redrives or rejects messages of a queue.

    Fields of the form: `do`: delete, release, redrive or reject; `id`: a message, may be repeated; `reason`: why it is
    rejected, or empty; `state`, `after`: the page to return to.
    """
    qid = visit.queue_name
    form = await read_form(visit.request)
    mids = [int(text) for text in form.all("id") if text.isascii() and text.isdigit() and len(text) < 20]
    if not mids:
        return _back(visit, form, qid, "nothing", 0)
    visit.upstream.invalidate()
    match form.one("do"):
        case "delete":
            return await _delete(visit, form, qid, mids)
        case "release":
            return _back(visit, form, qid, "released", await _release(visit, qid, mids))
        case "redrive":
            moved = await visit.client.redrive(qid, mids)
            return _back(visit, form, qid, "redriven", len(moved))
        case "reject":
            for mid in mids:
                await visit.client.reject(qid, mid, reason=form.one("reason").strip() or None)
            return _back(visit, form, qid, "rejected", len(mids))
    raise ProblemError(400, "the form does not say what to do")


def _place(form: Form) -> dict[str, str | None]:
    return {"state": form.one("state") or None, "after": form.one("after") or None}


def _back(visit: Visit, form: Form, qid: str, done: str, number: int) -> Response:
    return visit.redirect("queue", done, number, q=qid, **_place(form))


async def _delete(visit: Visit, form: Form, qid: str, mids: list[int]) -> Response:
    if not is_confirmed(form):
        what = "1 message" if len(mids) == 1 else f"{len(mids):,} messages"
        return ask_to_confirm(
            visit, form, title=f"Delete {what} of {qid}?", text=f"This removes {what} for good.",
            button=f"Delete {what}", back=visit.link("queue", q=qid, **_place(form)),
        )  # fmt: skip
    return _back(visit, form, qid, "deleted", len(await visit.client.delete_many(qid, mids)))


async def _release(visit: Visit, qid: str, mids: list[int]) -> int:
    """Makes messages visible now. Returns how many of them were in flight or delayed."""
    released = 0
    for mid in mids:
        try:
            await visit.client.release(qid, mid)
        except (NotFound, Stale):  # its consumer was faster, and what the visitor wants is true already
            continue
        released += 1
    return released
