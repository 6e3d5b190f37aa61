"""Measures what a scrape of /metrics once a second costs clients that push. Run as a program, it is the scraper:
scrapes.py URL

The page and the scraper are processes of their own. With two cores they take time from the load and from the server,
and so do all other programs of the machine: the rate of the pushes shows that too. The server's processor time for a
push, and for a scrape without other load, does not.
"""

import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from load import Client, document, push_document, rate_of_many
from measuring import Figure, Run, ratio
from processes import Assistant, Process, queue_server, queue_web

_SIZE = 1024
_CLIENTS = 32
_QUEUES = (10, 1_000, 10_000)
_TARGET = 0.98
_AT_ONCE = 500
_ALONE = 10
"""Scrapes without load, whose median counts."""


class _Round(NamedTuple):
    """The figures of a round. rate: pushes a second; cost: microseconds of the server's processor time for a push."""

    rate: float
    cost: float


def scrapes(run: Run) -> list[Figure]:
    """Compares durable pushes by 32 clients with and without a scrape of /metrics a second; 10 to 10,000 queues."""
    rounds, seconds = (3, 3) if run.quick else (7, 4)
    return [figure for queues in _QUEUES for figure in _measure(run.folder, queues, rounds, seconds)]


def _measure(folder: Path, queues: int, rounds: int, seconds: float) -> Iterator[Figure]:
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
    yield ratio(f"durable pushes, {_CLIENTS} clients, {name}", *rates, _TARGET)
    costs = [[each.cost for each in some] for some in (scraped, without)]
    title = f"server's processor time for a push, {name}"
    yield ratio(title, *costs, 2 - _TARGET, "at most", " us", digits=3)
    took = median(seconds for seconds, _ in answers) * 1000
    of = f"{took:.0f} ms until the answer under load, {answers[-1][1]:,} bytes"
    title = f"server's processor time for a scrape, {queues:,} queues"
    yield Figure(title, alone * 1000, unit=" ms", of=of, digits=1)


def _scrape_alone(server: Process, page: Process) -> float:
    """Returns the seconds of processor time that a scrape costs the server while it gets no other request."""
    used: list[float] = []
    for _ in range(_ALONE + 1):
        before = server.processor_seconds()
        with urllib.request.urlopen(_metrics_of(page), timeout=30) as answer:
            answer.read()
        used.append(server.processor_seconds() - before)
    return median(used[1:])  # the first one connects


def _metrics_of(page: Process) -> str:
    return f"http://{page.address[0]}:{page.address[1]}/metrics"


def _make_queues(client: Client, count: int) -> None:
    made = [document(b"new-queue", b"<qid>q%d</qid>" % number) for number in range(count)]
    for start in range(0, count, _AT_ONCE):
        some = made[start : start + _AT_ONCE]
        client.lines(b"".join(some), len(some))


def _round(server: Process, clients: list[Client], seconds: float) -> _Round:
    began, used = time.perf_counter(), server.processor_seconds()
    rate = rate_of_many(clients, push_document("q0", _SIZE), seconds)
    pushes = rate * (time.perf_counter() - began)
    return _Round(rate, (server.processor_seconds() - used) / pushes * 1e6)


@contextmanager
def _scraping(page: Process, answers: list[tuple[float, int]]) -> Iterator[None]:
    """Scrapes inside the block, from after the first answer. answers: gets the seconds and the bytes of each answer."""
    with Assistant("scrapes.py", _metrics_of(page)) as scraper:
        try:
            yield
        finally:
            scraper.process.kill()
        lines = scraper.output.read().decode().splitlines()
    answers += [(float(seconds), int(size)) for seconds, size in map(str.split, lines)]


def main() -> None:
    """Scrapes a page once a second until it is killed, as Prometheus does. Prints the seconds and the bytes of each
    answer: the process that has started this one can wait for the first."""
    due = time.monotonic()
    while True:
        began = time.monotonic()
        with urllib.request.urlopen(sys.argv[1], timeout=30) as answer:
            size = len(answer.read())
        print(time.monotonic() - began, size, flush=True)
        due += 1
        time.sleep(max(due - time.monotonic(), 0))


if __name__ == "__main__":
    main()
