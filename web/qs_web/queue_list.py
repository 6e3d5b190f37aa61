"""The page of all queues: filtered, sorted, in pages of 50."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from qs_client import QueueInfo

from .drawing import Chart, draw
from .history import Rates, depth_of
from .visit import LIVE, Visit

PAGE = 50
"""Queues on one page."""
_SPARK = (120, 24)
_CHART = (1200, 120)
_Key = Callable[[QueueInfo, Rates | None], Any]
_SORTS: dict[str, _Key] = {
    "name": lambda info, _: info.qid.casefold(),
    "ready": lambda info, _: info.ready or 0,
    "in-flight": lambda info, _: info.in_flight or 0,
    "delayed": lambda info, _: info.delayed or 0,
    "dead": lambda info, _: info.dead or 0,
    "oldest": lambda info, _: info.oldest or 0,
    "in": lambda _, rates: (rates and rates.rate_in) or 0,
    "out": lambda _, rates: (rates and rates.rate_out) or 0,
    "storage": lambda info, _: info.storage or "",
}
_BY_RATE = frozenset({"in", "out"})


@dataclass(frozen=True, slots=True)
class Row:
    """A queue in the table."""

    info: QueueInfo
    rates: Rates
    spark: Chart


@dataclass(frozen=True, slots=True)
class Order:
    """The order and the filter that the address asks for. sort: a column; down: the largest first; text: part of a
    name; only: a kind of queues, "" for all."""

    sort: str
    down: bool
    text: str
    only: str

    @property
    def value(self) -> str:
        """The order as the address has it."""
        return f"-{self.sort}" if self.down else self.sort

    def toggled(self, column: str) -> str:
        """Returns the order after a click on the head of a column. Numbers begin with the largest."""
        if column == self.sort:
            return column if self.down else f"-{column}"
        return column if column in {"name", "storage"} else f"-{column}"

    def aria(self, column: str) -> str:
        """Returns the value of aria-sort for the head of a column."""
        return "none" if column != self.sort else "descending" if self.down else "ascending"


_KINDS: dict[str, Callable[[QueueInfo], bool]] = {
    "": lambda _: True,
    "messages": lambda info: depth_of(info) > 0,
    "waiting": lambda info: bool(info.ready),
    "dead": lambda info: bool(info.dead),
    "paused": lambda info: bool(info.paused),
}


def _order(visit: Visit) -> Order:
    wanted = visit.asked("sort", "name")
    sort = wanted.removeprefix("-")
    only = visit.asked("only")
    return Order(
        sort if sort in _SORTS else "name",
        wanted.startswith("-") and sort in _SORTS,
        visit.asked("filter").strip(),
        only if only in _KINDS else "",
    )


def _arranged(queues: list[QueueInfo], order: Order, rates: Callable[[QueueInfo], Rates]) -> list[QueueInfo]:
    """Returns the queues that the order asks for, in its order. queues: sorted by name."""
    part, kind = order.text.casefold(), _KINDS[order.only]
    found = [info for info in queues if part in info.qid.casefold() and kind(info)]
    key = _SORTS[order.sort]
    by_rate = order.sort in _BY_RATE
    found.sort(key=lambda info: key(info, rates(info) if by_rate else None), reverse=order.down)
    return found


async def show_queues(visit: Visit) -> Response:
    """Answers with the table of the queues that the visitor may see."""
    queues = await visit.stats()
    now, history = visit.services.clock(), visit.services.history
    order = _order(visit)
    found = _arranged(queues, order, lambda info: history.rates(info.qid))
    last = max((len(found) - 1) // PAGE, 0)
    page = min(max(visit.asked_number("page", 1) - 1, 0), last)
    rows = [
        Row(info, history.rates(info.qid), draw(history.points(info.qid, now), *_SPARK))
        for info in found[page * PAGE : (page + 1) * PAGE]
    ]
    total = visit.upstream.total
    return visit.page(
        "queues",
        live=LIVE,
        rows=rows,
        order=order,
        kinds=list(_KINDS),
        found=len(found),
        count=len(queues),
        number=page + 1,
        pages=last + 1,
        first=page * PAGE + 1,
        total=total,
        total_rates=total.rates(),
        chart=draw(total.points(now), *_CHART),
    )
