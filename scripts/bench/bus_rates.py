"""The bus: deliveries a second to many subscribers, how late one is, and what an idle subscriber needs.

**Fan-out.** All send to a process of subscribers of the same kind, which only counts. The bare loops have their bytes
ready; one sends with trio's `send_all`, one with hardly more than the system call, which is as cheap as it gets when
each delivery is sent by itself; the bus may join those that wait for the same subscriber. It gets each message from a
queue server that stores it with its default durability, pushed while the others are delivered, and deletes it there.
Rates are taken at the subscribers, from the steady part of each run: neither the first messages count nor the bus's
last, when nothing is pushed any more. A subscriber that misses a message, or gets one twice, is an error.

**Latency** is from the answer to a push to its delivery. One process with blocking sockets has both ends, so one clock
tells both moments; a delivery that is read before the answer counts as negative. The echo sends back the bytes of a
delivery. Everything takes turns, with the same pause before each: nothing else is under way then, and what sleeps has
to be woken for each of them alike.

**Idle.** Both processes are new in each round, and have some connections already when the first figure is taken, so
that only what every further connection needs is measured. Each subscriber has been answered, and each bare connection
has its task, before the second figure is taken.
"""

import selectors
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import linear_regression, median, quantiles

from load import Client, document, push_document
from machine import room_for
from measuring import Figure, Run, ratio
from processes import Process, bare_server, queue_bus, queue_server
from subscribers import Subscribers

_SUBSCRIBERS = 1000
_SIZE = 1024
_AHEAD = 16
"""Messages that have been pushed and not been delivered to everybody: enough that the bus never waits for one."""
_FIRST = 8
"""Messages at the beginning of a run that do not count. At the end of the bus's runs, the messages that are ahead do
not count."""
_LEAST = _FIRST + 24
_TIMEOUT = 60
_SUBSCRIBE = document(b"subscribe", b"<qid>q</qid>")

_PAUSE = 0.005
"""Seconds of a pause, in which the bus deletes the delivered message."""

_PUSH = push_document("q", _SIZE)
_FLAGS: dict[str, tuple[str, ...]] = {"always": (), "none": ("--durability", "none")}
"""Flags of the server, by its durability: the first one is the default."""

_TARGETS: dict[str, float | None] = {"always": 2, "none": None}
_CONNECTIONS = 5000
_BEFORE = 100


def fanout(run: Run) -> list[Figure]:
    """Compares deliveries to 1,000 subscribers of the bus with a bare trio loop that sends the same bytes."""
    rounds, seconds = (2, 1.5) if run.quick else (7, 5.0)
    room_for(_SUBSCRIBERS + 10)
    rates: dict[str, list[float]] = {"bus": [], "stream": [], "socket": []}
    with queue_server(run.folder / "root") as server, Client(server.address) as publisher:
        publisher.lines(document(b"new-queue", b"<qid>q</qid>"))
        with queue_bus(run.folder, server.address, "q") as bus, bare_server(run.folder, "fanout") as loop:
            delivery = one_delivery(publisher, bus.address)
            with (
                Subscribers(loop.address, _SUBSCRIBERS) as theirs,
                Subscribers(bus.address, _SUBSCRIBERS, _SUBSCRIBE) as ours,
                Client(loop.address) as control,
            ):
                runs: dict[str, Callable[[int], float]] = {
                    "bus": lambda messages: _bus_rate(publisher, ours, messages, len(delivery)),
                    "stream": lambda messages: _bare_rate(control, theirs, messages, delivery, b"stream"),
                    "socket": lambda messages: _bare_rate(control, theirs, messages, delivery, b"socket"),
                }
                # The first round warms up, and tells how long the others will take.
                counts = {
                    name: max(_LEAST, int(rate_of(_LEAST) * seconds / _SUBSCRIBERS)) for name, rate_of in runs.items()
                }
                for _ in range(rounds):
                    for name, rate_of in runs.items():
                        rates[name].append(rate_of(counts[name]))
    name = f"deliveries by server and bus to {_SUBSCRIBERS:,} subscribers"
    figure = ratio(f"{name} / trio loop of send_all", rates["bus"], rates["stream"], 0.5)
    return [
        replace(figure, of=f"{figure.of}; {len(delivery):,} bytes each; durability always, the default"),
        ratio(f"{name} / loop of socket.send", rates["bus"], rates["socket"], 0.5),
    ]


def one_delivery(publisher: Client, bus: tuple[str, int]) -> bytes:
    """Returns the bytes in which a message comes to a subscriber."""
    with Client(bus) as subscriber:
        subscriber.lines(_SUBSCRIBE)
        publisher.lines(push_document("q", _SIZE))
        return subscriber.next_line()


def _bare_rate(control: Client, subscribers: Subscribers, messages: int, delivery: bytes, way: bytes) -> float:
    subscribers.expect(messages)
    control.socket.sendall(b"%s %d %d %d\n%s" % (way, messages, subscribers.many, len(delivery), delivery))
    marks = [float(subscribers.line()) for _ in range(messages)]
    _check_size(subscribers, messages, len(delivery))
    control.next_line()
    return _steady(marks, subscribers.many)


def _bus_rate(publisher: Client, subscribers: Subscribers, messages: int, size: int) -> float:
    """Pushes that many messages, pipelined and never too far ahead of the subscribers, and the ones that are still
    ahead at the end. Returns deliveries a second."""
    push = push_document("q", _SIZE)
    marks: list[float] = []
    pushed = answered = 0
    messages += _AHEAD
    subscribers.expect(messages)
    with selectors.DefaultSelector() as selector:
        selector.register(publisher.socket, selectors.EVENT_READ)
        selector.register(subscribers.output, selectors.EVENT_READ)
        while len(marks) < messages or answered < messages:
            more = min(messages, len(marks) + _AHEAD) - pushed
            if more > 0:
                publisher.socket.sendall(push * more)
                pushed += more
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise RuntimeError(
                    f"nothing came in {_TIMEOUT} s: {pushed} pushed, {answered} answered, {len(marks)} delivered"
                )
            for key, _ in ready:
                if key.fileobj is publisher.socket:
                    answered += publisher.answers()
                elif len(marks) < messages:
                    marks.append(float(subscribers.line()))
    _check_size(subscribers, messages, size)
    return _steady(marks[:-_AHEAD], subscribers.many)


def _check_size(subscribers: Subscribers, messages: int, size: int) -> None:
    """Checks that the compared deliveries have the same size."""
    _, _, got = subscribers.line().partition(b"done ")
    each = int(got) / (messages * subscribers.many)
    if abs(each / size - 1) > 0.01:
        raise RuntimeError(f"a delivery had {each:.1f} bytes instead of {size}")


def _steady(marks: list[float], many: int) -> float:
    """Returns deliveries a second: the slope of all the marks except the first, because the bus may send many at once.

    marks: the times at which one delivery for each subscriber had come, then two for each, and so on.
    """
    steady = marks[_FIRST:]
    return linear_regression(steady, range(len(steady))).slope * many


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
        """Returns the seconds from the push of a message to its answer, and from there to its delivery."""
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


def latency(run: Run) -> list[Figure]:
    """Compares the time from a push's answer to the bus's delivery with the round trip of a bare trio echo server."""
    rounds, each = (3, 100) if run.quick else (9, 300)
    kept: dict[str, list[list[float]]] = {name: [] for name in _FLAGS}
    pushes: dict[str, list[float]] = {name: [] for name in _FLAGS}
    echoes: list[list[float]] = []
    with ExitStack() as stack:
        buses = {name: _Bus(run.folder / name, flags, stack) for name, flags in _FLAGS.items()}
        client = stack.enter_context(Client(stack.enter_context(bare_server(run.folder, "echo")).address))
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
        _latency_figure(
            f"push's answer to bus's delivery, durability {name} / echo", kept[name], echoes, target, pushes[name]
        )
        for name, target in _TARGETS.items()
    ]


def _trip(client: Client, data: bytes) -> float:
    started = time.perf_counter()
    client.same(data)
    return time.perf_counter() - started


def _latency_figure(
    name: str, figures: list[list[float]], echoes: list[list[float]], target: float | None, pushes: list[float]
) -> Figure:
    """Returns the median of the rounds' ratios of p50, with p50 and p99 of all."""
    answered = f"push answered after {median(pushes) * 1e6:,.0f} us"
    value = median(median(a) / median(b) for a, b in zip(figures, echoes, strict=True))
    of = f"{_percentiles(figures)} to {_percentiles(echoes)}; {answered}"
    return Figure(name, value, target, "at most", of=of)


def _percentiles(rounds: list[list[float]]) -> str:
    ordered = quantiles((figure * 1e6 for figures in rounds for figure in figures), n=100)
    return f"p50 {ordered[49]:,.0f} us, p99 {ordered[98]:,.0f} us"


def idle(run: Run) -> list[Figure]:
    """Compares the memory of an idle subscriber of the bus with a connection of a bare trio server, 5,000 of each."""
    rounds = 1 if run.quick else 3
    many = room_for(_CONNECTIONS + 2 * _BEFORE) - 2 * _BEFORE
    ours: list[float] = []
    bare: list[float] = []
    with queue_server(run.folder / "root") as server:
        with Client(server.address) as client:
            client.lines(document(b"new-queue", b"<qid>q</qid>"))
        for _ in range(rounds):
            with queue_bus(run.folder, server.address, "q") as bus:
                ours.append(_bytes_each(bus, many, _subscribe, lambda connections: None))
            with bare_server(run.folder, "fanout") as loop, Client(loop.address) as control:
                settle = partial(_wait_for_tasks, control)
                bare.append(_bytes_each(loop, many, lambda client: None, settle))
    name = f"resident memory of an idle subscriber, {many:,} of them / of a bare trio connection"
    return [ratio(name, ours, bare, 2, "at most", " bytes")]


def _subscribe(client: Client) -> None:
    client.lines(document(b"subscribe", b"<qid>q</qid>"))


def _wait_for_tasks(control: Client, connections: int) -> None:
    """Waits, without sending, until the bus has that many connections."""
    control.lines(b"stream 0 %d 0\n" % connections)


def _bytes_each(
    process: Process, many: int, greet: Callable[[Client], object], settle: Callable[[int], object]
) -> float:
    """Returns the bytes by which the process has grown for each of that many connections."""
    with ExitStack() as stack:

        def connect(count: int) -> None:
            for _ in range(count):
                greet(stack.enter_context(Client(process.address)))

        connect(_BEFORE)
        settle(_BEFORE)
        before = process.resident_bytes()
        connect(many)
        settle(_BEFORE + many)
        return (process.resident_bytes() - before) / many
