"""Plans the measurements of `compare`, a star: from a base point one thing at a time varies, for two kinds of work."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from compare_load import Span
from peer import Peer

WORKS = {"push": "push only", "cycle": "push + receive + delete"}
ROWS = ("base", "clients", "batch", "size", "depth")


@dataclass(frozen=True)
class Point:
    """row: what it varies; clients; batch: messages at once; size: bytes; depth: messages before it begins."""

    work: str
    row: str = "base"
    clients: int = 32
    batch: int = 1
    size: int = 1024
    depth: int = 0

    @property
    def name(self) -> str:
        """In the table's head: what differs from the base."""
        return {
            "base": "base",
            "clients": f"{self.clients} client{'s'[: self.clients > 1]}",
            "batch": f"batches of {self.batch}",
            "size": f"{self.size} B" if self.size < 1024 else f"{self.size // 1024} KiB",
            "depth": f"{self.depth:,} deep",
        }[self.row]


@dataclass(frozen=True)
class Plan:
    """full or quick. span: of a cell; fill: seconds that a depth may take to be made; rounds, round: of the ratios;
    depth: of the ratio of depths, 0 to leave it out; most, ratios: seconds of all cells, and of all ratios."""

    span: Span
    fill: float
    rounds: int
    round: Span
    depth: int
    most: float
    ratios: float


FULL = Plan(Span(0.3, 1.4), 60, 3, Span(0.25, 1.0), 1_000_000, 24 * 60, 5.5 * 60)
QUICK = Plan(Span(0.2, 0.5), 10, 1, Span(0.15, 0.4), 0, 55, 60)


def points(quick: bool) -> Iterator[Point]:
    """Returns the points of a peer in the order in which they are measured. quick: base points only."""
    for work in WORKS:
        base = Point(work)
        yield base
        if quick:
            continue
        for clients in (1, 8, 128):
            yield replace(base, row="clients", clients=clients)
        yield replace(base, row="batch", batch=100)
        for size in (100, 65536):
            yield replace(base, row="size", size=size)
    if not quick:
        for depth in (1000, 100_000, 1_000_000):
            for work in ("cycle", "push"):  # the push makes it deeper
                yield Point(work, "depth", depth=depth)


def in_table() -> list[Point]:
    """The points of one kind of work, as the table's columns have them; of the full run."""
    return [point for point in points(False) if point.work == "push"]


def unable(peer: Peer, point: Point) -> str:
    """Why this peer has no such cell; "" when it has."""
    if point.batch > 1 and not peer.batches:
        return "its client has no batches"
    if point.batch > 1 and peer.raw and point.work == "cycle":
        return "raw sockets: only pushes are batched"
    if point.row in ("size", "depth") and not peer.deep:
        return "not measured: see the peer's other rows"
    return ""
