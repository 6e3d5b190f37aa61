"""The page of one queue: its figures, its messages by state, its options, and what can be done with it."""

from dataclasses import dataclass

from starlette.responses import Response

from qs_client import AsyncQueueClient, Forbidden, NotImplementedByServer, QueueInfo, QueueOptions, ServerError
from qs_schemas import GetMessage

from .drawing import draw
from .history import depth_of, figures_of
from .payloads import preview
from .problem import ProblemError
from .visit import LIVE, Visit

MESSAGES = 25
"""Messages on one page."""
_LOOKED_AT = 1 << 20
"""Bytes of payloads after which one page fetches no more."""
_LIVE_LARGE = 10_000
"""Like `LIVE`, for a page that has to fetch megabytes each time."""
_CHART = (1200, 160)
STATES = ("all", "new", "ready", "in-flight", "delayed")


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in the table. message: None if it was not fetched; size: bytes, None if not known; text: the beginning
    of its payload."""

    mid: int
    message: GetMessage | None = None
    size: int | None = None
    text: str = ""


def queue_name(visit: Visit) -> str:
    """Returns the queue that the address names. ProblemError if there is none."""
    name = visit.asked("q")
    if not name:
        raise ProblemError(400, "the address names no queue")
    return name


async def figures(visit: Visit, qid: str) -> QueueInfo:
    """Returns the figures of a queue. ServerError: NotFound, Forbidden."""
    return (await visit.client.stats(qid))[0]


async def _page_of_ids(client: AsyncQueueClient, qid: str, state: str, after: int | None) -> tuple[list[int], bool]:
    """Returns the ids on a page, and whether there are more."""
    found: list[int] = []
    async for mid in client.list_messages(qid, state=state, after=after):
        found.append(mid)
        if len(found) > MESSAGES:
            break
    return found[:MESSAGES], len(found) > MESSAGES


async def _entries(client: AsyncQueueClient, qid: str, mids: list[int]) -> list[Entry]:
    """Looks at messages without receiving them, until that is too much for one page."""
    entries: list[Entry] = []
    fetched = 0
    for mid in mids:
        if fetched > _LOOKED_AT:
            entries.append(Entry(mid))
            continue
        try:
            message = await client.peek(qid, mid)
        except ServerError as error:
            if error.code == 404:  # the message has gone meanwhile
                continue
            raise
        payload = payload_of(message)
        fetched += len(payload or b"")
        entries.append(
            Entry(mid, message, None if payload is None else len(payload), "" if payload is None else preview(payload))
        )
    return entries


def payload_of(message: GetMessage) -> bytes | None:
    """Returns the payload of a message, None if the queue server does not show it: it is in flight or delayed."""
    payload = message.payload
    return payload.encode() if isinstance(payload, str) else payload


async def _options(visit: Visit, qid: str) -> QueueOptions | None:
    """Returns the options of a queue, None if the visitor may not know them, or its storage has none."""
    try:
        return await visit.client.queue_options(qid)
    except (Forbidden, NotImplementedByServer):
        return None


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of messages. next_after: the id after which the next page begins, None for the last; refused: why the
    queue server shows no messages, "" if it does."""

    entries: list[Entry]
    next_after: int | None = None
    refused: str = ""


async def _listing(client: AsyncQueueClient, qid: str, state: str, after: int | None) -> Listing:
    try:
        mids, more = await _page_of_ids(client, qid, state, after)
        return Listing(await _entries(client, qid, mids), mids[-1] if more else None)
    except (Forbidden, NotImplementedByServer) as error:  # may see only figures, or the storage cannot
        return Listing([], refused=error.text)


async def show_queue(visit: Visit) -> Response:
    """Answers with the page of the queue that the address names."""
    qid = queue_name(visit)
    info = await figures(visit, qid)
    state = visit.asked("state", "all")
    state = state if state in STATES else "all"
    after = visit.asked_number("after", 0) or None
    listing = await _listing(visit.client, qid, state, after)
    options = await _options(visit, qid)
    now, history = visit.services.clock(), visit.services.history
    history.observe(now, qid, figures_of(info))
    return visit.page(
        "queue",
        live=LIVE if all(entry.message for entry in listing.entries) else _LIVE_LARGE,
        qid=qid,
        info=info,
        depth=depth_of(info),
        options=options,
        rates=history.rates(qid),
        chart=draw(history.points(qid, now), *_CHART),
        state=state,
        after=after,
        listing=listing,
        has_dead=any(entry.message and entry.message.dead_from for entry in listing.entries),
    )
