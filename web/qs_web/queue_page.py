"""The page of one queue, and the forms that make, pause, resume, purge or delete queues, push, and change options."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from qs_client import Draft, Forbidden, NotImplementedByServer, QueueOptions
from qs_client.standstill import why_nothing
from qs_schemas.headers import checked_headers

from .dead_letters import dead_letters_of
from .drawing import draw
from .forms import AffectedQueue, Form, ask_to_confirm, is_confirmed, read_form, read_large_form
from .history import counters_of, depth_of
from .message_list import STATES, list_page
from .visit import LIVE, ProblemError, Visit

_LIVE_LARGE = 10_000
"""Milliseconds between two reloads, like `LIVE`, for a page that has to fetch megabytes each time."""
_CHART = (1200, 160)
"""Width and height of the chart in units of SVG."""
_PUSH_MOST = 26 * 1024 * 1024
"""Bytes of the form of a push. A document has at most 8 MiB, and each byte of a payload may need three (`%41`)."""


def _yes_or_no(text: str) -> bool:
    if text not in {"yes", "no"}:
        raise ValueError
    return text == "yes"


_KINDS: dict[Callable[[str], Any], str] = {int: "a whole number", float: "a number", _yes_or_no: "yes or no"}
"""The functions that read a field, and what it has to be."""
_OPTIONS: dict[str, Callable[[str], Any]] = {
    "visibility": float,
    "capacity": int,
    "retention": float,
    "max_receives": int,
    "backoff": float,
    "backoff_max": float,
    "dead_letter": str,
    "group_in_flight": int,
    "fair": _yes_or_no,
    "max_in_flight": int,
    "rate": float,
    "schema": str,
}
"""The options of a queue that can be changed, and what reads them. The fields of the form have the same names."""


async def _options(visit: Visit, qid: str) -> QueueOptions | None:
    """Returns the options of a queue, None if the visitor may not know them, or the queue's storage has none."""
    try:
        return await visit.client.queue_options(qid)
    except (Forbidden, NotImplementedByServer):
        return None


async def show_queue(visit: Visit) -> Response:
    """Answers with the page of the queue that the address names."""
    qid = visit.queue_name
    info = await visit.figures(qid)
    state = visit.query("state", "all")
    state = state if state in STATES else "all"
    after = visit.query_number("after", 0) or None
    listing = await list_page(visit.client, info, state, after)
    options = await _options(visit, qid)
    now, history = visit.services.clock(), visit.services.history
    history.observe(now, qid, counters_of(info))
    return visit.page(
        "queue",
        live=_LIVE_LARGE if listing.is_heavy else LIVE,
        qid=qid,
        info=info,
        depth=depth_of(info),
        standstill=why_nothing(info),
        options=options,
        rates=history.rates(qid),
        chart=draw(history.points(qid, now), *_CHART),
        state=state,
        after=after,
        listing=listing,
        wall=time.time(),
        letters=await dead_letters_of(visit, info),
    )


async def act_on_queues(visit: Visit) -> Response:
    """Pauses, resumes, purges or deletes queues, and shows the form's page again.

    Fields of the form: `do`: pause, resume, purge or delete; `q`: a queue, may be repeated; `back`: `queue` if the form
    was on the page of this one queue.
    """
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
        return visit.redirect("", "nothing")
    try:
        return await action(visit, form, qids)
    finally:  # after an error too: it may have come after the first of several queues
        visit.upstream.invalidate()


def _done(visit: Visit, form: Form, qids: list[str], done: str, number: int | None = None) -> Response:
    if form.one("back") == "queue":
        return visit.redirect("queue", done, len(qids) if number is None else number, q=qids[0])
    return visit.redirect("", done, len(qids) if number is None else number)


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


async def _affected(visit: Visit, qids: list[str]) -> list[AffectedQueue]:
    found = []
    # The figures of now, also when the form is confirmed: a queue that has grown past 1,000 messages since the question
    # is asked about again. `Visit.stats` may be a second old.
    for qid in qids:
        info = await visit.figures(qid)
        parts = (info.ready, info.in_flight, info.delayed)
        found.append(AffectedQueue(qid, None if info.ready is None else sum(part or 0 for part in parts)))
    return found


def _messages(affected: list[AffectedQueue]) -> str:
    if any(queue.count is None for queue in affected):
        return "all messages"
    count = sum(queue.count or 0 for queue in affected)
    return "1 message" if count == 1 else f"{count:,} messages"


def _queues(affected: list[AffectedQueue]) -> str:
    return affected[0].qid if len(affected) == 1 else f"{len(affected)} queues"


async def _purge(visit: Visit, form: Form, qids: list[str]) -> Response:
    affected = await _affected(visit, qids)
    if not is_confirmed(form, affected):
        return ask_to_confirm(
            visit, form, title=f"Purge {_queues(affected)}?",
            text=f"This removes {_messages(affected)} for good, those in flight too.",
            button=f"Remove {_messages(affected)}", back=_back(visit, form, qids), affected=affected,
        )  # fmt: skip
    removed = 0
    for qid in qids:
        removed += await visit.client.purge(qid)
    return _done(visit, form, qids, "purged", removed)


async def _delete(visit: Visit, form: Form, qids: list[str]) -> Response:
    affected = await _affected(visit, qids)
    if not is_confirmed(form, affected):
        return ask_to_confirm(
            visit, form, title=f"Delete {_queues(affected)}?",
            text=f"This deletes {'the queue' if len(qids) == 1 else 'the queues'} and {_messages(affected)} for good.",
            button=f"Delete {_queues(affected)}", back=_back(visit, form, qids), affected=affected,
        )  # fmt: skip
    for qid in qids:
        # The question was about the messages too. A queue that somebody else has deleted meanwhile is what was wanted.
        await visit.client.delete_queue(qid, force=True, missing_ok=True)
    return visit.redirect("", "queues-deleted", len(qids))


async def make_queue(visit: Visit) -> Response:
    """Makes a queue. Fields of the form: `q`: its name; `storage`: empty for the server's default."""
    form = await read_form(visit.request)
    await visit.client.new_queue(form.one("q").strip(), storage=form.one("storage").strip() or None)
    visit.upstream.invalidate()
    return visit.redirect("queue", "created", q=form.one("q").strip())


async def push_message(visit: Visit) -> Response:
    """Pushes a message.

    Fields of the form: `payload`; `delay` and `expires` in seconds, `key`, `priority` and `group`, or empty; `unique`:
    yes, or empty; `headers`: lines of `NAME: TEXT`, or empty.
    """
    qid = visit.queue_name
    form = await read_large_form(visit.request, _PUSH_MOST)
    payload = form.one("payload").replace("\r\n", "\n")  # browsers send line ends as CR LF
    draft = Draft(
        payload,
        _value(form, "delay", float),
        form.one("key").strip() or None,
        unique=form.one("unique") == "yes",
        priority=_value(form, "priority", int),
        expires=_value(form, "expires", float),
        group=_value(form, "group", str),
        headers=_headers(form.one("headers")),
    )
    await visit.client.push_many(qid, [draft])
    visit.upstream.invalidate()
    return visit.redirect("queue", "pushed", 1, q=qid)


def _headers(lines: str) -> dict[str, str]:
    pairs = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        name, colon, text = line.partition(":")
        if not colon:
            raise ProblemError(400, f"a line of the headers is {line[:80]!r}, not 'NAME: TEXT'")
        pairs.append((name.strip(), text.strip()))
    try:
        return checked_headers(pairs)
    except ValueError as error:
        raise ProblemError(400, str(error)) from None


def _value(form: Form, name: str, kind: Callable[[str], Any]) -> Any:
    """Returns the value of a field, None for an empty one."""
    text = form.one(name).strip()
    if not text:
        return None
    try:
        return kind(text)
    except ValueError:
        raise ProblemError(400, f"{name.replace('_', '-')} is {text!r}, not {_KINDS[kind]}") from None


async def set_options(visit: Visit) -> Response:
    """Changes those options of a queue that the visitor has changed.

    Fields of the form: `NAME`: the wanted value, empty to remove the option, missing to leave it alone; `was-NAME`: the
    value that the form showed.
    """
    # What differs from `was-NAME` is the visitor's change. Compared with the options of now, a form that has been open
    # for a while would put back what somebody else has changed since. Scripts need not send `was-NAME`.
    qid = visit.queue_name
    form = await read_form(visit.request)
    now = await visit.client.queue_options(qid)
    changed: dict[str, Any] = {}
    for name, kind in _OPTIONS.items():
        if form.has(name):
            wanted = _value(form, name, kind)
            before = _value(form, f"was-{name}", kind) if form.has(f"was-{name}") else getattr(now, name)
            if wanted != before:
                changed[name] = wanted
    if changed:
        await visit.client.set_queue(qid, **changed)
        visit.upstream.invalidate()
    return visit.redirect("queue", "changed", len(changed), q=qid)
