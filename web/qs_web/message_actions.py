"""Handles the forms of messages: deletes, releases or redrives those that are checked, and rejects one."""

from starlette.responses import Response

from qs_client import NotFound, Stale

from .confirming import ask, is_confirmed
from .forms import Form, read_form
from .problem import ProblemError
from .visit import Visit


async def act_on_messages(visit: Visit) -> Response:
    """Does to messages of a queue what the form says. `do`: delete, release, redrive, reject; `id`: the messages;
    `reason`: why it is rejected, or empty; `state`, `after`: of the page to return to."""
    qid = visit.queue_name
    form = await read_form(visit.request)
    mids = [int(text) for text in form.all("id") if text.isascii() and text.isdigit() and len(text) < 20]
    if not mids:
        return _back(visit, form, qid, "nothing", 0)
    visit.upstream.forget()
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
    return visit.see("queue", done, number, q=qid, **_place(form))


async def _delete(visit: Visit, form: Form, qid: str, mids: list[int]) -> Response:
    if not is_confirmed(form):
        what = "1 message" if len(mids) == 1 else f"{len(mids):,} messages"
        return ask(
            visit, form, title=f"Delete {what} of {qid}?", text=f"This removes {what} for good.",
            button=f"Delete {what}", back=visit.link("queue", q=qid, **_place(form)),
        )  # fmt: skip
    return _back(visit, form, qid, "deleted", len(await visit.client.delete_many(qid, mids)))


async def _release(visit: Visit, qid: str, mids: list[int]) -> int:
    """Makes messages visible now. Returns how many were in flight or delayed."""
    released = 0
    for mid in mids:
        try:
            await visit.client.release(qid, mid)
        except (NotFound, Stale):  # gone, or visible already
            continue
        released += 1
    return released
