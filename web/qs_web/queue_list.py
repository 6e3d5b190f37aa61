"""The page of all queues: filtered, sorted, 50 on a page. The queues that a bus keeps for itself have a table of their
own, as they would hide the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.responses import Response

from qs_client import QueueInfo
from qs_client.standstill import why_nothing

from .dead_letters import count_dead_letters, dead_letter_counts
from .drawing import Chart, draw
from .history import Rates, depth_of
from .visit import LIVE, Visit

PAGE = 50
"""Queues on one page."""
_SPARK = (120, 24)
_CHART = (1200, 120)
"""Width and height, in units of SVG, of the chart in a row and of that of all queues."""
OF_BUS = "bus:"
"""The prefix of the queues in which a bus keeps its durable names and its notes."""
FEW = 10
"""Queues of the bus that are shown without a click."""


def consumers_of(info: QueueInfo) -> int:
    """Returns how many subscriptions and waiting receives a queue has."""
    return (info.subscribers or 0) + (info.waiting or 0)


class QueueFigures(NamedTuple):
    """The figures of a queue by which the table is filtered and sorted."""

    info: QueueInfo
    letters: int | None
    """The number of dead letters that wait, None without a dead-letter queue."""
    rates: Rates | None = None
    """None unless the table is sorted by a rate: otherwise the rates are computed for the 50 queues of a page only."""


_SORTS: dict[str, Callable[[QueueFigures], Any]] = {
    "name": lambda queue: queue.info.qid.casefold(),
    "ready": lambda queue: queue.info.ready or 0,
    "in-flight": lambda queue: queue.info.in_flight or 0,
    "delayed": lambda queue: queue.info.delayed or 0,
    "dead": lambda queue: queue.letters or 0,
    "consumers": lambda queue: consumers_of(queue.info),
    "oldest": lambda queue: queue.info.oldest or 0,
    "in": lambda queue: (queue.rates and queue.rates.rate_in) or 0,
    "out": lambda queue: (queue.rates and queue.rates.rate_out) or 0,
    "storage": lambda queue: queue.info.storage or "",
}
_BY_RATE = frozenset({"in", "out"})


@dataclass(frozen=True, slots=True)
class Row:
    """A queue on the page. letters: as in `QueueFigures`."""

    info: QueueInfo
    letters: int | None
    consumers: int
    rates: Rates
    spark: Chart

    @property
    def standstill(self) -> str:
        """The reason why no message of the queue can be had now, "" if one can be had."""
        return why_nothing(self.info)


@dataclass(frozen=True, slots=True)
class Order:
    """The order and the filter of the table. sort: a column; down: largest first; text: part of a name; only: a key of
    `_KINDS`."""

    sort: str
    down: bool
    text: str
    only: str

    @property
    def value(self) -> str:
        """Returns the order in the form of an address."""
        return f"-{self.sort}" if self.down else self.sort

    def toggled(self, column: str) -> str:
        """Returns the order after a click on the head of a column. The first click on a column of numbers sorts the
        largest first."""
        if column == self.sort:
            return column if self.down else f"-{column}"
        return column if column in {"name", "storage"} else f"-{column}"

    def aria(self, column: str) -> str:
        """Returns the value of aria-sort for the head of a column."""
        return "none" if column != self.sort else "descending" if self.down else "ascending"


_KINDS: dict[str, Callable[[QueueFigures], bool]] = {
    "": lambda _: True,
    "messages": lambda queue: depth_of(queue.info) > 0,
    "waiting": lambda queue: bool(queue.info.ready),
    "dead": lambda queue: bool(queue.letters),
    "paused": lambda queue: bool(queue.info.paused),
    "limited": lambda queue: queue.info.limited is not None,
    "bus": lambda queue: queue.info.qid.startswith(OF_BUS),
}


def _order(visit: Visit) -> Order:
    wanted = visit.query("sort", "name")
    sort = wanted.removeprefix("-")
    only = visit.query("only")
    return Order(
        sort if sort in _SORTS else "name",
        wanted.startswith("-") and sort in _SORTS,
        visit.query("filter").strip(),
        only if only in _KINDS else "",
    )


def _arranged(queues: list[QueueFigures], order: Order) -> list[QueueFigures]:
    """Returns the queues that the filter selects, in order. queues: sorted by name, which decides between equals."""
    part, kind = order.text.casefold(), _KINDS[order.only]
    found = [queue for queue in queues if part in queue.info.qid.casefold() and kind(queue)]
    found.sort(key=_SORTS[order.sort], reverse=order.down)
    return found


async def show_queues(visit: Visit) -> Response:
    """Answers with the table of the queues that the visitor may see."""
    queues = await visit.stats()
    now, history = visit.services.clock(), visit.services.history
    order = _order(visit)
    letters = dead_letter_counts(queues)
    # Ten thousand queues are filtered and sorted in each request. So only what sorting needs is made for all of them,
    # and a row with its chart for those of the page.
    by_rate = order.sort in _BY_RATE
    known = [QueueFigures(info, letters.get(info.qid), history.rates(info.qid) if by_rate else None) for info in queues]
    found, of_bus = _arranged(known, order), []
    if order.only != "bus":
        of_bus = [queue for queue in found if _KINDS["bus"](queue)]
        found = [queue for queue in found if not _KINDS["bus"](queue)]

    def row(queue: QueueFigures) -> Row:
        qid = queue.info.qid
        spark = draw(history.points(qid, now), *_SPARK)
        return Row(queue.info, queue.letters, consumers_of(queue.info), history.rates(qid), spark)

    # A page that there is not any more shows the last one: queues go while somebody reads.
    last = max((len(found) - 1) // PAGE, 0)
    page = min(max(visit.query_number("page", 1) - 1, 0), last)
    total = visit.upstream.total
    return visit.page(
        "queues",
        live=LIVE,
        rows=[row(queue) for queue in found[page * PAGE : (page + 1) * PAGE]],
        bus_rows=[row(queue) for queue in of_bus[:PAGE]],
        bus_found=len(of_bus),
        few=FEW,
        order=order,
        found=len(found),
        count=sum(_KINDS["bus"](queue) == (order.only == "bus") for queue in known),
        number=page + 1,
        pages=last + 1,
        first=page * PAGE + 1,
        total=total,
        letters=count_dead_letters(queues),
        total_rates=total.rates(),
        chart=draw(total.points(now), *_CHART),
    )
