"""Measures how long after the answer to its push a subscriber of the bus reads a message, beside an echo's round trip.

One process with blocking sockets has both ends, so one clock tells both moments; a delivery that is read before the
answer counts as negative. The echo sends back the bytes of a delivery. Everything takes turns, with the same pause
before each: nothing else is under way then, and what sleeps has to be woken for each of them alike.
"""

import selectors
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

from fanout import one_delivery
from load import Client, document, push_document
from processes import echo_server, queue_bus, queue_server
from table import Row

_SIZE = 1024
_PAUSE = 0.005
"""Seconds. In them the bus deletes the message that has been delivered."""
_TIMEOUT = 60
_PUSH = push_document("q", _SIZE)
_FLAGS: dict[str, tuple[str, ...]] = {"always": (), "none": ("--durability", "none")}
"""Of the server, by its durability: the first is the default."""
_TARGETS = {"always": "<= 2", "none": ""}


class _Bus:
    """A server with its bus, a publisher and a subscriber."""

    def __init__(self, folder: Path, flags: tuple[str, ...], stack: ExitStack) -> None:
        folder.mkdir()
        server = stack.enter_context(queue_server(folder / "root", *flags))
        self._publisher = stack.enter_context(Client(server.address))
        self._publisher.lines(document(b"new-queue", b"<qid>q</qid>"))
        bus = stack.enter_context(queue_bus(folder, server.address, "q"))
        self.delivery = one_delivery(self._publisher, bus.address)
        self._subscriber = stack.enter_context(Client(bus.address))
        self._subscriber.lines(document(b"subscribe", b"<qid>q</qid>"))
        self._selector = stack.enter_context(selectors.DefaultSelector())
        for client in (self._publisher, self._subscriber):
            self._selector.register(client.socket, selectors.EVENT_READ, client)

    def once(self) -> tuple[float, float]:
        """Seconds from the push of a message to its answer, and from there to its delivery."""
        read: dict[Client, float] = {}
        pushed = time.perf_counter()
        self._publisher.socket.sendall(_PUSH)
        while len(read) < 2:
            ready = self._selector.select(_TIMEOUT)
            if not ready:
                raise RuntimeError(f"no {'delivery' if self._publisher in read else 'answer'} in {_TIMEOUT} s")
            for key, _ in ready:
                key.data.next_line()
                read[key.data] = time.perf_counter()
        answered = read[self._publisher]
        return answered - pushed, read[self._subscriber] - answered


def measure(folder: Path, quick: bool) -> list[Row]:
    """from the answer to a push to its delivery by the bus, against the round trip of a bare trio echo server"""
    rounds, each = (3, 100) if quick else (9, 300)
    kept: dict[str, list[list[float]]] = {name: [] for name in _FLAGS}
    pushes: dict[str, list[float]] = {name: [] for name in _FLAGS}
    echoes: list[list[float]] = []
    with ExitStack() as stack:
        buses = {name: _Bus(folder / name, flags, stack) for name, flags in _FLAGS.items()}
        client = stack.enter_context(Client(stack.enter_context(echo_server(folder)).address))
        same = next(iter(buses.values())).delivery
        for measured in range(rounds + 1):
            times: dict[str, list[float]] = {name: [] for name in _FLAGS}
            trips: list[float] = []
            for _ in range(each if measured else 20):
                for name, bus in buses.items():
                    time.sleep(_PAUSE)
                    push, delivery = bus.once()
                    pushes[name].append(push)
                    times[name].append(delivery)
                time.sleep(_PAUSE)
                trips.append(_trip(client, same))
            if measured:  # the first round warms up
                echoes.append(trips)
                for name, figures in times.items():
                    kept[name].append(figures)
    return [
        _row(f"push's answer to bus's delivery, durability {name} / echo", kept[name], echoes, target, pushes[name])
        for name, target in _TARGETS.items()
    ]


def _trip(client: Client, data: bytes) -> float:
    started = time.perf_counter()
    client.same(data)
    return time.perf_counter() - started


def _row(name: str, figures: list[list[float]], echoes: list[list[float]], target: str, pushes: list[float]) -> Row:
    """The median of the rounds' ratios of p50; p50 and p99 of all."""
    answered = f"push answered after {median(pushes) * 1e6:,.0f} us"
    ratio = median(median(a) / median(b) for a, b in zip(figures, echoes, strict=True))
    return Row(name, f"{ratio:.2f}", target, f"{_percentiles(figures)} to {_percentiles(echoes)}; {answered}")


def _percentiles(rounds: list[list[float]]) -> str:
    ordered = quantiles((figure * 1e6 for figures in rounds for figure in figures), n=100)
    return f"p50 {ordered[49]:,.0f} us, p99 {ordered[98]:,.0f} us"
