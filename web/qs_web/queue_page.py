"""The page of one queue: its figures, its messages by state, its options, and what can be done with it."""

import time

from starlette.responses import Response

from qs_client import Forbidden, NotImplementedByServer, QueueOptions

from .dead_letters import letters_of
from .drawing import draw
from .history import depth_of, figures_of
from .message_list import STATES, list_page
from .visit import LIVE, Visit

_LIVE_LARGE = 10_000
"""Like `LIVE`, for a page that has to fetch megabytes each time."""
_CHART = (1200, 160)


async def _options(visit: Visit, qid: str) -> QueueOptions | None:
    """Returns the options of a queue, None if the visitor may not know them, or its storage has none."""
    try:
        return await visit.client.queue_options(qid)
    except (Forbidden, NotImplementedByServer):
        return None


async def show_queue(visit: Visit) -> Response:
    """Answers with the page of the queue that the address names."""
    qid = visit.queue_name
    info = await visit.figures(qid)
    state = visit.asked("state", "all")
    state = state if state in STATES else "all"
    after = visit.asked_number("after", 0) or None
    listing = await list_page(visit.client, info, state, after)
    options = await _options(visit, qid)
    now, history = visit.services.clock(), visit.services.history
    history.observe(now, qid, figures_of(info))
    return visit.page(
        "queue",
        live=_LIVE_LARGE if listing.is_heavy else LIVE,
        qid=qid,
        info=info,
        depth=depth_of(info),
        options=options,
        rates=history.rates(qid),
        chart=draw(history.points(qid, now), *_CHART),
        state=state,
        after=after,
        listing=listing,
        wall=time.time(),
        letters=await letters_of(visit, info),
    )
