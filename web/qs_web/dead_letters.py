"""Dead letters: how many wait, and the form that moves them back (redrive)."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

import trio
from starlette.responses import Response

from qs_client import AsyncQueueClient, NotFound, QueueInfo, ServerError

from .forms import ask_to_confirm, is_confirmed, read_form
from .history import depth_of
from .message_list import list_ids
from .visit import ProblemError, Visit

_AT_ONCE = 1000
"""Dead letters that one request moves: the most that the protocol allows."""
_MOVING = 20.0
"""Seconds for which one form moves dead letters. An action may take 30."""


def dead_letter_counts(queues: Iterable[QueueInfo]) -> dict[str, int]:
    """Returns for each queue that names a dead-letter queue how many messages are in the dead-letter queue now, where
    they wait for an operator. The counter `dead` of a queue says how many were ever moved."""
    names = {info.qid: info.dead_letter for info in queues if info.dead_letter}
    wanted = set(names.values())
    depths = {info.qid: depth_of(info) for info in queues if info.qid in wanted}
    return {qid: depths.get(name, 0) for qid, name in names.items()}  # 0: it is made when it is first needed


def count_dead_letters(queues: Iterable[QueueInfo]) -> int:
    """Returns how many messages are in dead-letter queues now. Queues that share one count it once."""
    wanted = {info.dead_letter for info in queues if info.dead_letter}
    return sum(depth_of(info) for info in queues if info.qid in wanted)


async def dead_letters_of(visit: Visit, info: QueueInfo) -> int | None:
    """Returns how many messages are in the dead-letter queue of a queue now, None without a dead-letter queue."""
    if info.dead_letter is None:
        return None
    try:
        return depth_of(await visit.figures(info.dead_letter))
    except NotFound:  # it is made when it is first needed
        return 0


async def move_back(visit: Visit) -> Response:
    """Moves the dead letters of a queue back, after a question. The address names the dead-letter queue.

    Fields of the form: `of`: move only those that came from this queue, whose page has the form; `to`: the queue to
    move them to, empty for the one that each came from.
    """
    dead, form = visit.queue_name, await read_form(visit.request)
    of, to = form.one("of"), form.one("to").strip()
    count = depth_of(await visit.figures(dead))
    if not is_confirmed(form):
        those = f"Those that came from {of}" if of else "Its dead letters"
        where = f"to {to}" if to else "back" if of else "back to where they came from"
        return ask_to_confirm(
            visit, form, title=f"Move the dead letters of {of or dead} back?",
            text=f"{dead} holds {count:,} message{'' if count == 1 else 's'}. {those} go {where}, to the end of the "
            "queue, as messages that were never received.",
            button="Move back", back=visit.link("queue", q=of or dead), destroys=False,
        )  # fmt: skip
    moving = _move_those_of(visit.client, dead, of, to, count) if of else _move_all(visit.client, dead, to, count)
    until = trio.current_time() + _MOVING
    moved, done = 0, "redriven"
    try:
        async with aclosing(moving):
            async for step in moving:
                moved += step
                if trio.current_time() > until:
                    done = "redriven-in-part"
                    break
    except ServerError as error:
        if not moved:
            raise
        text = f"{moved:,} messages were moved back; then the queue server said: {error.text}"
        raise ProblemError(409, text) from error
    finally:
        visit.upstream.invalidate()
    return visit.redirect("queue", done, moved, q=of or dead)


# Both of these move what the queue holds at the beginning, and not what comes back meanwhile: a message whose consumer
# fails at once would be moved for ever.


async def _move_all(client: AsyncQueueClient, dead: str, to: str, left: int) -> AsyncGenerator[int, None]:
    """Moves the oldest dead letters, request after request. Yields how many each request has moved. left: how many to
    move."""
    while left > 0 and (mids := await client.redrive(dead, to=to or None, max=min(left, _AT_ONCE))):
        yield len(mids)
        left -= len(mids)


async def _move_those_of(client: AsyncQueueClient, dead: str, of: str, to: str, left: int) -> AsyncGenerator[int, None]:
    """Moves the dead letters that came from one queue, and leaves those of others that share the dead-letter queue.
    Yields after each request how many it has moved. left: how many to look at."""
    after = None
    while left > 0 and (mids := await list_ids(client, dead, "all", after, min(left, _AT_ONCE))):
        found = await client.peek_many(dead, mids, once=True)
        after = found[-1].mid if found else mids[-1]  # an answer has as many of them as fit into a document
        left -= sum(mid <= after for mid in mids)
        mine = [letter.mid for letter in found if letter.dead_from == of]
        while mine and (moved := await client.redrive(dead, mine, to=to or None)):
            yield len(moved)
            mine = mine[len(moved) :]  # a request moves the oldest, if they are too large for one transaction
        yield 0  # the caller looks at the time also where a thousand in a row are another queue's
