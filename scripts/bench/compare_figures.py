"""Computes the figures of a cell of the table, and which side was its limit. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Limit = Literal["server", "clients", "disk", "waiting"]
_FULL = 0.85
"""Of a core, or of all cores: what counts as used up."""
_BUSY = 0.6
"""Of the time: from then on it is the disk that others wait for."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of the values does not exceed (nearest rank). ValueError when there are none."""
    if not ordered:
        raise ValueError("no values")
    rank = max(1, -(-len(ordered) * round(share * 1000) // 1000))
    return ordered[min(rank, len(ordered)) - 1]


def limit(server: float | None, clients: float, disk: float, cores: int, single: bool) -> Limit:
    """Which side the rate is limited by. single: whether the server's work is in one thread.

    server, clients: cores that they used on average, None without a server; disk: the share of time in which it had
    something to do. A server of one thread that has a core to itself is the limit, however busy the clients are.
    Otherwise, if all cores are used up, it is the side that used more; and if they are not, it is the disk or, when
    that has little to do, nothing but the time of round trips: there are too few clients.
    """
    used = server or 0.0
    if single and used >= _FULL:
        return "server"
    if used + clients >= _FULL * cores:
        return "clients" if clients >= used else "server"
    return "disk" if disk >= _BUSY else "waiting"


@dataclass(frozen=True)
class Figures:
    """The figures of a cell. rate: messages a second; p50, p99: seconds, of a call or a round.

    server, clients: CPU seconds per 10,000 messages; memory: bytes, the most that the server had. A library has no
    server, and None there.
    """

    rate: float
    p50: float
    p99: float
    server: float | None
    clients: float
    memory: int | None
    limit: Limit
    messages: int
    others: float = 0.0
    """Cores that neither server nor clients used but something else did, the kernel's writing to the disk among it."""


def figures(
    messages: int,
    seconds: float,
    latencies: Sequence[float],
    server: float | None,
    clients: float,
    memory: int | None,
    disk: float,
    cores: int,
    single: bool,
) -> Figures:
    """Computes the figures from what was counted in so many seconds. server, clients, disk: seconds. RuntimeError when
    nothing was done."""
    if not messages:
        raise RuntimeError(f"nothing was done in {seconds:.1f} s")
    ordered = sorted(latencies)
    each = 10_000 / messages
    return Figures(
        messages / seconds,
        percentile(ordered, 0.5),
        percentile(ordered, 0.99),
        None if server is None else server * each,
        clients * each,
        memory,
        limit(None if server is None else server / seconds, clients / seconds, disk / seconds, cores, single),
        messages,
    )
