"""Measures what a scrape of /metrics once a second costs clients that push.

The page and the scraper are processes of their own. With two cores they take time from the load and from the server,
and so do all other programs of the machine: the rate of the pushes shows that too. The server's processor time for a
push, and for a scrape without other load, does not.
"""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from load import Client, document, push_document, rate_of_many
from processes import Listening, queue_server, queue_web
from table import Row, ratio_row

_SIZE = 1024
_CLIENTS = 32
_QUEUES = (10, 1_000, 10_000)
_TARGET = 0.98
_AT_ONCE = 500
_ALONE = 10
"""Scrapes without load, of which the median counts."""
_SCRAPER = Path(__file__).with_name("scraper.py")


class _Round(NamedTuple):
    """The figures of a round. rate: pushes a second; cost: microseconds of the server's processor time for a push."""

    rate: float
    cost: float


def measure(folder: Path, quick: bool) -> list[Row]:
    """durable pushes by 32 clients while /metrics is scraped once a second, against without; 10 to 10,000 queues"""
    rounds, seconds = (3, 3) if quick else (7, 4)
    return [row for queues in _QUEUES for row in _measure(folder, queues, rounds, seconds)]


def _measure(folder: Path, queues: int, rounds: int, seconds: float) -> Iterator[Row]:
    without: list[_Round] = []
    scraped: list[_Round] = []
    answers: list[tuple[float, int]] = []
    with ExitStack() as stack:
        server = stack.enter_context(queue_server(folder / f"root-{queues}"))
        page = stack.enter_context(queue_web(folder / f"web-{queues}", server.address))
        clients = [stack.enter_context(Client(server.address)) for _ in range(_CLIENTS)]
        _make_queues(clients[0], queues)
        _round(server, clients, 1)  # warms up
        alone = _scrape_alone(server, page)
        for _ in range(rounds):
            without.append(_round(server, clients, seconds))
            with _scraping(page, answers):
                scraped.append(_round(server, clients, seconds))
    name = f"with {queues:,} queues, scraped / not scraped"
    rates = [[each.rate for each in some] for some in (scraped, without)]
    yield ratio_row(f"durable pushes, {_CLIENTS} clients, {name}", *rates, _TARGET)
    costs = [[each.cost for each in some] for some in (scraped, without)]
    ratio = median(a / b for a, b in zip(*costs, strict=True))
    shown = f"{median(costs[0]):.1f} µs to {median(costs[1]):.1f} µs"
    yield Row(f"server's processor time for a push, {name}", f"{ratio:.3f}", f"<= {2 - _TARGET:g}", shown)
    took = median(seconds for seconds, _ in answers) * 1000
    shown = f"{took:.0f} ms until the answer under load, {answers[-1][1]:,} bytes"
    yield Row(f"server's processor time for a scrape, {queues:,} queues", f"{alone * 1000:.1f} ms", "", shown)


def _scrape_alone(server: Listening, page: Listening) -> float:
    """Returns the seconds of processor time that a scrape costs the server while nothing else is asked of it."""
    used: list[float] = []
    for _ in range(_ALONE + 1):
        before = server.processor_seconds()
        with urllib.request.urlopen(_metrics_of(page), timeout=30) as answer:
            answer.read()
        used.append(server.processor_seconds() - before)
    return median(used[1:])  # the first one connects


def _metrics_of(page: Listening) -> str:
    return f"http://{page.address[0]}:{page.address[1]}/metrics"


def _make_queues(client: Client, count: int) -> None:
    made = [document(b"new-queue", b"<qid>q%d</qid>" % number) for number in range(count)]
    for start in range(0, count, _AT_ONCE):
        some = made[start : start + _AT_ONCE]
        client.lines(b"".join(some), len(some))


def _round(server: Listening, clients: list[Client], seconds: float) -> _Round:
    began, used = time.perf_counter(), server.processor_seconds()
    rate = rate_of_many(clients, push_document("q0", _SIZE), seconds)
    pushes = rate * (time.perf_counter() - began)
    return _Round(rate, (server.processor_seconds() - used) / pushes * 1e6)


@contextmanager
def _scraping(page: Listening, answers: list[tuple[float, int]]) -> Iterator[None]:
    """Scrapes inside the block, from after the first answer. answers: gets the seconds and the bytes of each."""
    with subprocess.Popen(
        [sys.executable, str(_SCRAPER), _metrics_of(page)], stdout=subprocess.PIPE, text=True
    ) as scraper:
        assert scraper.stdout is not None
        try:
            scraper.stdout.readline()
            yield
        finally:
            scraper.kill()
        lines = scraper.stdout.read().splitlines()
    answers += [(float(seconds), int(size)) for seconds, size in map(str.split, lines)]
