"""The subcommands of `qs` that look at messages and change nothing: `peek`, and `ls` of messages. See `command_verbs`.

Both show messages in any state: what waits, what a consumer has, what is scheduled. Times are those of the server. How
far away they are is told by the clock of this machine.
"""

import itertools
import math
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qs_schemas import Delivery, GetMessage

from .client import QueueClient
from .command_output import INCOMPLETE, NOTHING, OK, Output, as_time, complain, message_fields, one_line
from .errors import Forbidden, NotFound, NotImplementedByServer

_AT_ONCE = 50
"""Messages that are fetched together, with their payloads: they are in memory at the same time."""
_COLUMNS = (
    ("MID", "<17"), ("STATUS", "<9"), ("RECEIVES", ">8"), ("BYTES", ">8"), ("PUSHED", "<20"), ("VISIBLE", "<37"),
    ("PRIORITY", ">8"), ("GROUP", "<12"), ("REASON", ""),
)  # fmt: skip
"""The head of the table, and the format of each column: the widths are fixed, as lines are printed as they come. An id
of dirq has 17 digits, a time 20 characters, and the distance to it at most 17."""
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SECOND = 1_000_000


def peek(client: QueueClient, arguments: Namespace, out: Output) -> int:
    """Prints messages without receiving them: the named ones, or the oldest ones in a state."""
    qid, named = arguments.queue, bool(arguments.mids)
    mids = arguments.mids or itertools.islice(client.list_messages(qid, state=arguments.state), arguments.max)
    found = False
    for message in _looked_at(client, qid, mids, missing_ok=not named):
        if message.payload is None:
            complain(f"message {message.mid} belongs to a claim, which alone shows its payload: qs claims {qid}")
        else:
            found = True
        out.message(message, heading=arguments.verbose, headers=arguments.headers)
    return OK if found else NOTHING


def list_messages(client: QueueClient, arguments: Namespace, out: Output, queues: Sequence[str]) -> int:
    """Lists messages of queues in a state, as they come: ids, or with --long a table. Leaves out queues that cannot be
    looked at, unless one is named."""
    named = arguments.queue is not None
    columns = _COLUMNS if named else (("QUEUE", f"<{max(5, *map(len, queues), 0)}"), *_COLUMNS)
    table = out.columns([name for name, _ in columns], [form for _, form in columns])
    code = OK
    for qid in queues:
        try:
            for mid, cells, fields in _listed(client, qid, arguments):
                if arguments.long:
                    table.row(cells if named else [qid, *cells], fields)
                else:
                    out.line(f"{mid}" if named else f"{qid} {mid}", fields)
        except (Forbidden, NotFound, NotImplementedByServer) as error:
            if named:
                raise
            if not isinstance(error, NotFound):  # else it has just been deleted
                complain(f"{qid!r} is left out: {error}")
                code = INCOMPLETE
    if arguments.long:
        table.begin()
    return code


def _listed(
    client: QueueClient, qid: str, arguments: Namespace
) -> Iterator[tuple[int | None, Sequence[str], dict[str, Any]]]:
    """Yields the id of each message, and with --long its cells and its fields for programs."""
    mids = client.list_messages(qid, state=arguments.state or "all")
    if arguments.long:
        for message in _looked_at(client, qid, mids, missing_ok=True):
            yield message.mid, _cells(message), _fields(message)
    else:
        for mid in mids:
            yield mid, (), {"qid": qid, "mid": mid}


def _looked_at(
    client: QueueClient, qid: str, mids: Iterable[int], *, missing_ok: bool
) -> Iterator[Delivery | GetMessage]:
    """Yields messages in the order of their ids as given. Messages in a claim have no payload. missing_ok: leave out
    messages that do not exist, instead of raising NotFound."""
    left = iter(mids)
    # In batches: with a request for each message, a long queue would take a round trip a line.
    while batch := list(itertools.islice(left, _AT_ONCE)):
        found = {message.mid: message for message in client.peek_many(qid, batch)}
        for mid in batch:
            if mid in found:
                yield found[mid]
                continue
            try:
                yield client.peek(qid, mid)  # a claim holds it, or it is gone
            except NotFound:
                if not missing_ok:
                    raise


def _cells(message: Delivery | GetMessage) -> list[str]:
    size = "-" if message.payload is None else str(len(message.payload))
    receives = "-" if message.receives is None else str(message.receives)
    pushed = _moment(message.pushed_at)
    return [
        str(message.mid),
        message.status or "-",
        receives,
        size,
        pushed,
        _visible(message),
        str(message.priority or ""),
        one_line(message.group or ""),
        one_line(message.reason or ""),
    ]


def _visible(message: Delivery | GetMessage) -> str:
    """Returns when a message becomes visible, and how far away that time is."""
    if message.visible_at is None:
        return "now" if message.status == "ready" else "-"
    return f"{_moment(message.visible_at)} ({distance(message.visible_at / _SECOND - time.time())})"


def _moment(microseconds: int | None) -> str:
    moment, point, _ = as_time(microseconds).partition(".")
    return f"{moment}Z" if point else "-"


def distance(seconds: float) -> str:
    """Returns how far away a time is: in the largest unit that is not 0, and the next one."""
    left = math.ceil(seconds)
    parts: list[str] = []
    for length, unit in _UNITS:
        count, left = divmod(left, length) if left > 0 else (0, left)
        if count or parts:
            parts.append(f"{count} {unit}")
    return f"in {' '.join(parts[:2])}" if parts else "now"


def _fields(message: Delivery | GetMessage) -> dict[str, Any]:
    fields = message_fields(message, None)
    return fields if message.payload is None else {**fields, "bytes": len(message.payload)}
