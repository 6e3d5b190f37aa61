"""Deliveries through server and bus to many subscribers, beside a bare loop that sends the same bytes to as many.

All send to a process of subscribers of the same kind, which only counts. The loops have their bytes ready; one sends
with trio's `send_all`, one with hardly more than the system call, which is as cheap as it gets when each delivery is
sent by itself; the bus may join those that wait for the same subscriber. It gets each message from a queue server that
stores it with its default durability, pushed while the others are delivered, and deletes it there. Rates are taken at
the subscribers, from the steady part of each run: neither the first messages count nor the bus's last, when nothing is
pushed any more. A subscriber that misses a message, or gets one twice, is an error.
"""

import selectors
from collections.abc import Callable
from pathlib import Path
from statistics import linear_regression

from load import Client, document, push_document
from open_files import room_for
from processes import bare_fanout, queue_bus, queue_server
from subscribers import Subscribers
from table import Row, ratio_row

_SUBSCRIBERS = 1000
_SIZE = 1024
_AHEAD = 16
"""Messages that have been pushed and not been delivered to everybody: enough that the bus never waits for one."""
_FIRST = 8
"""Messages at the beginning of a run that do not count. At the end of the bus's runs it is those that are ahead."""
_LEAST = _FIRST + 24
_TIMEOUT = 60
_SUBSCRIBE = document(b"subscribe", b"<qid>q</qid>")
_TARGET = 0.5


def measure(folder: Path, quick: bool) -> list[Row]:
    """deliveries a second to 1,000 subscribers of the bus against a bare trio loop that sends the same bytes"""
    rounds, seconds = (2, 1.5) if quick else (7, 5.0)
    room_for(_SUBSCRIBERS + 10)
    rates: dict[str, list[float]] = {"bus": [], "stream": [], "socket": []}
    with queue_server(folder / "root") as server, Client(server.address) as publisher:
        publisher.lines(document(b"new-queue", b"<qid>q</qid>"))
        with queue_bus(folder, server.address, "q") as bus, bare_fanout(folder) as loop:
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
                counts = {name: max(_LEAST, int(run(_LEAST) * seconds / _SUBSCRIBERS)) for name, run in runs.items()}
                for _ in range(rounds):
                    for name, run in runs.items():
                        rates[name].append(run(counts[name]))
    name = f"deliveries by server and bus to {_SUBSCRIBERS:,} subscribers"
    row = ratio_row(f"{name} / trio loop of send_all", rates["bus"], rates["stream"], _TARGET)
    return [
        row._replace(figures=f"{row.figures}; {len(delivery):,} bytes each; durability always, the default"),
        ratio_row(f"{name} / loop of socket.send", rates["bus"], rates["socket"], _TARGET),
    ]


def one_delivery(publisher: Client, bus: tuple[str, int]) -> bytes:
    """The bytes in which a message comes to a subscriber."""
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
    """Pushes so many and those that are ahead at the end, pipelined, and never too far ahead of the subscribers."""
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
    """Checks that what is compared has the same size."""
    _, _, got = subscribers.line().partition(b"done ")
    each = int(got) / (messages * subscribers.many)
    if abs(each / size - 1) > 0.01:
        raise RuntimeError(f"a delivery had {each:.1f} bytes instead of {size}")


def _steady(marks: list[float], many: int) -> float:
    """Deliveries a second: the slope of all the marks but the first, because the bus may send many at once.

    marks: when as many as there are subscribers had come, then twice as many …
    """
    steady = marks[_FIRST:]
    return linear_regression(steady, range(len(steady))).slope * many
