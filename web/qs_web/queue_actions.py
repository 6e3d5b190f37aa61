"""Handles the forms of queues: make, pause, resume, purge, delete, push, change options."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from qs_client import Draft

from .confirming import Doomed, ask, is_confirmed
from .forms import Form, read_form, read_large_form
from .problem import ProblemError
from .visit import Visit

_PUSH_MOST = 26 * 1024 * 1024
"""Bytes of the form of a push. Each byte of a payload may need three."""
_NUMBERS: dict[str, Callable[[str], Any]] = {
    "visibility": float,
    "capacity": int,
    "retention": float,
    "max_receives": int,
    "backoff": float,
    "backoff_max": float,
}


async def act_on_queues(visit: Visit) -> Response:
    """Does to queues what the form says, and shows the page that the form was on. `do`: pause, resume, purge, delete;
    `q`: the queues; `back`: `queue` if the form was on the page of the one queue."""
    form = await read_form(visit.request)
    actions: dict[str, Callable[[Visit, Form, list[str]], Awaitable[Response]]] = {
        "pause": _pause,
        "resume": _resume,
        "purge": _purge,
        "delete": _delete,
    }
    action = actions.get(form.one("do"))
    if action is None:
        raise ProblemError(400, "the form does not say what to do")
    qids = [name for name in form.all("q") if name]
    if not qids:
        return visit.see("", "nothing")
    try:
        return await action(visit, form, qids)
    finally:
        visit.upstream.forget()


def _done(visit: Visit, form: Form, qids: list[str], done: str, number: int | None = None) -> Response:
    if form.one("back") == "queue":
        return visit.see("queue", done, len(qids) if number is None else number, q=qids[0])
    return visit.see("", done, len(qids) if number is None else number)


def _back(visit: Visit, form: Form, qids: list[str]) -> str:
    return visit.link("queue", q=qids[0]) if form.one("back") == "queue" else visit.link("")


async def _pause(visit: Visit, form: Form, qids: list[str]) -> Response:
    for qid in qids:
        await visit.client.pause(qid)
    return _done(visit, form, qids, "paused")


async def _resume(visit: Visit, form: Form, qids: list[str]) -> Response:
    for qid in qids:
        await visit.client.resume(qid)
    return _done(visit, form, qids, "resumed")


async def _doomed(visit: Visit, qids: list[str]) -> list[Doomed]:
    found = []
    for qid in qids:
        info = await visit.figures(qid)
        parts = (info.ready, info.in_flight, info.delayed)
        found.append(Doomed(qid, None if info.ready is None else sum(part or 0 for part in parts)))
    return found


def _messages(doomed: list[Doomed]) -> str:
    if any(queue.count is None for queue in doomed):
        return "all messages"
    count = sum(queue.count or 0 for queue in doomed)
    return "1 message" if count == 1 else f"{count:,} messages"


def _queues(doomed: list[Doomed]) -> str:
    return doomed[0].qid if len(doomed) == 1 else f"{len(doomed)} queues"


async def _purge(visit: Visit, form: Form, qids: list[str]) -> Response:
    doomed = await _doomed(visit, qids)
    if not is_confirmed(form, doomed):
        return ask(
            visit, form, title=f"Purge {_queues(doomed)}?",
            text=f"This removes {_messages(doomed)} for good, those in flight too.",
            button=f"Remove {_messages(doomed)}", back=_back(visit, form, qids), doomed=doomed,
        )  # fmt: skip
    removed = 0
    for qid in qids:
        removed += await visit.client.purge(qid)
    return _done(visit, form, qids, "purged", removed)


async def _delete(visit: Visit, form: Form, qids: list[str]) -> Response:
    doomed = await _doomed(visit, qids)
    if not is_confirmed(form, doomed):
        return ask(
            visit, form, title=f"Delete {_queues(doomed)}?",
            text=f"This deletes {'the queue' if len(doomed) == 1 else 'the queues'} and {_messages(doomed)} for good.",
            button=f"Delete {_queues(doomed)}", back=_back(visit, form, qids), doomed=doomed,
        )  # fmt: skip
    for qid in qids:
        await visit.client.delete_queue(qid, force=True, missing_ok=True)
    return visit.see("", "queues-deleted", len(qids))


async def make_queue(visit: Visit) -> Response:
    """Makes a queue. `q`: its name; `storage`: empty for the server's."""
    form = await read_form(visit.request)
    await visit.client.new_queue(form.one("q").strip(), storage=form.one("storage").strip() or None)
    visit.upstream.forget()
    return visit.see("queue", "created", q=form.one("q").strip())


async def push_message(visit: Visit) -> Response:
    """Pushes a message. `payload`, `delay` in seconds or empty, `key` or empty."""
    qid = visit.queue_name
    form = await read_large_form(visit.request, _PUSH_MOST)
    payload = form.one("payload").replace("\r\n", "\n")  # browsers send line ends as CR LF
    delay = _number(form, "delay", float)
    await visit.client.push_many(qid, [Draft(payload, delay, form.one("key").strip() or None)])
    visit.upstream.forget()
    return visit.see("queue", "pushed", 1, q=qid)


def _number(form: Form, name: str, kind: Callable[[str], Any]) -> Any:
    text = form.one(name).strip()
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        whole = "a whole number" if kind is int else "a number"
        raise ProblemError(400, f"{name.replace('_', '-')} is {text!r}, not {whole}") from None


async def set_options(visit: Visit) -> Response:
    """Changes the options of a queue that the visitor has changed: those whose field differs from `was-NAME`, what the
    form showed, or without it from what they are. An empty field removes an option, a missing one leaves it alone."""
    qid = visit.queue_name
    form = await read_form(visit.request)
    now = await visit.client.queue_options(qid)
    changed: dict[str, Any] = {}
    for name in [*_NUMBERS, "dead_letter"]:
        if form.has(name):
            wanted = _option(form, name, name)
            before = _option(form, f"was-{name}", name) if form.has(f"was-{name}") else getattr(now, name)
            if wanted != before:
                changed[name] = wanted
    if changed:
        await visit.client.set_queue(qid, **changed)
        visit.upstream.forget()
    return visit.see("queue", "changed", len(changed), q=qid)


def _option(form: Form, field: str, name: str) -> Any:
    kind = _NUMBERS.get(name)
    return form.one(field).strip() or None if kind is None else _number(form, field, kind)
