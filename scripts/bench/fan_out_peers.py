"""qs's bus beside what somebody would take instead, each as Debian installs it and with its usual Python client.

The same for all: one publisher, subscribers with a connection each, messages of 1 KiB, all clients in one process,
this one: what a Python program gets is measured, and mostly its client is what takes the time. Messages are published
32 together, and at most 64 ahead of the slowest subscriber. Each subscriber has to get each message. Latency is from
before the call that publishes to the moment that the one subscriber's program has the message, on an idle system. All
systems run all the time and are measured in turn, round by round; figures are medians. What a crash of the system or a
power loss leaves is what its documentation says of these settings; it is not measured.

    apt-get install redis-server nats-server rabbitmq-server
    pip install '.[bench]'

Debian starts the three as services, which are not needed here: each is started anew, on a free port of loopback, with
a temporary directory. What is not installed is shown as such. Nothing else needs any of them.
"""

import asyncio
import importlib.util
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from statistics import median

from machine import room_for
from measuring import Figure, Run, ratio
from peer import FanOutPeer, Publish
from processes import RABBITMQ

_SYSTEMS = {
    "peer_qs": ("", "qs_client", "pip install -e '.[bench]'"),
    "peer_redis": ("redis-server", "redis", "apt-get install redis-server; pip install 'redis[hiredis]'"),
    "peer_rabbitmq": (RABBITMQ, "pika", "apt-get install rabbitmq-server; pip install pika"),
    "peer_nats": ("nats-server", "nats", "apt-get install nats-server; pip install nats-py"),
}
"""The systems, by their module here: the program and the Python package that each needs, and how to install them."""
_OURS = "qs bus"
_TARGETS = {
    "Redis Streams, appendfsync always": 1.0,
    "NATS JetStream, file storage": 1.5,
    "RabbitMQ, persistent, confirms": 3.0,
}
"""The systems that the bus is to deliver faster than, with the least ratio."""
_PAYLOAD = b"x" * 1024
_FEW, _MANY = 10, 100
_TITLE = f"1 KiB to {_FEW} subscribers, Python clients: {{}}"
_TOGETHER = 32
_AHEAD = 64
_PAUSE = 0.005
_TIMEOUT = 60


def fan_out_peers(run: Run) -> list[Figure]:
    """Measures deliveries a second and latency of the bus, Redis, NATS and RabbitMQ, each with its own Python
    client."""
    rounds, seconds, samples = (1, 0.5, 60) if run.quick else (3, 2.0, 200)
    room_for(10 * _MANY)
    peers = list(_installed())
    figures: dict[FanOutPeer, list[tuple[float, float, float]]] = {peer: [] for peer in peers}
    failed: list[Figure] = []
    with ExitStack() as stack:
        for number, peer in enumerate(peers):
            own = run.folder / str(number)
            own.mkdir()
            stack.enter_context(peer.started(own))
        for _ in range(rounds):
            for peer in list(figures):
                try:
                    latency = asyncio.run(_latency(peer, samples))
                    few, many = [asyncio.run(_rate(peer, subscribers, seconds)) for subscribers in (_FEW, _MANY)]
                except RuntimeError as error:  # it costs the others nothing
                    failed.append(Figure(_TITLE.format(peer.name), None, of=str(error)))
                    del figures[peer]
                else:
                    figures[peer].append((few, many, latency))
    return [
        *(_figure(peer, found) for peer, found in figures.items()),
        *failed,
        *(figure for name, target in _TARGETS.items() for figure in _against(name, target, figures)),
        *_not_installed(),
    ]


def _is_installed(program: str, package: str) -> bool:
    return (not program or shutil.which(program) is not None) and importlib.util.find_spec(package) is not None


def _installed() -> Iterator[FanOutPeer]:
    for name, (program, package, _) in _SYSTEMS.items():
        if _is_installed(program, package):
            yield from importlib.import_module(name).fan_out_peers()


def _not_installed() -> Iterator[Figure]:
    for name, (program, package, install) in _SYSTEMS.items():
        if not _is_installed(program, package):
            yield Figure(_TITLE.format(name.removeprefix("peer_")), None, of=f"not installed: {install}")


def _against(
    name: str, target: float, figures: Mapping[FanOutPeer, Sequence[tuple[float, float, float]]]
) -> Iterator[Figure]:
    """Yields the ratios of the bus to a system that was measured, to few and to many subscribers."""
    by_name = {peer.name: found for peer, found in figures.items()}
    ours, theirs = by_name.get(_OURS), by_name.get(name)
    if ours and theirs:
        for at, subscribers in enumerate((_FEW, _MANY)):
            title = f"deliveries to {subscribers} Python subscribers: bus / {name}"
            yield ratio(title, [each[at] for each in ours], [each[at] for each in theirs], target)


def _figure(peer: FanOutPeer, figures: Sequence[tuple[float, float, float]]) -> Figure:
    few, many, latency = (median(column) for column in zip(*figures, strict=True))
    of = f"to {_MANY}: {many:,.0f}/s; latency p50 {latency * 1e6:,.0f} us; kept: {peer.survives}"
    return Figure(_TITLE.format(peer.name), few, unit="/s", of=of, digits=0)


async def _rate(peer: FanOutPeer, subscribers: int, seconds: float) -> float:
    """Returns deliveries a second, after a fifth of the time has passed."""
    counts = [0] * subscribers

    def received(number: int) -> None:
        counts[number] += 1

    async with peer.subscribed(subscribers, received) as publish:
        published = await _publish_for(seconds / 5, publish, counts, 0)
        before, started = sum(counts), time.perf_counter()
        published = await _publish_for(seconds, publish, counts, published)
        rate = (sum(counts) - before) / (time.perf_counter() - started)
        until = time.monotonic() + _TIMEOUT
        while min(counts) < published and time.monotonic() < until:
            await asyncio.sleep(_PAUSE)
        await asyncio.sleep(_PAUSE)
        if set(counts) != {published}:
            raise RuntimeError(f"{peer.name}: {published} messages, {min(counts)} to {max(counts)} deliveries")
        return rate


async def _publish_for(seconds: float, publish: Publish, counts: list[int], published: int) -> int:
    """Publishes for that many seconds. Returns how many messages have been published by then."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if published - min(counts) > _AHEAD - _TOGETHER:
            await asyncio.sleep(0.001)  # subscribers may be threads, which cannot wake us for nothing
        else:
            await publish([_PAYLOAD] * _TOGETHER)
            published += _TOGETHER
    return published


async def _latency(peer: FanOutPeer, samples: int) -> float:
    """Returns the median latency in seconds, after some messages to warm up."""
    at: list[float] = []
    times: list[float] = []
    async with peer.subscribed(1, lambda number: at.append(time.perf_counter())) as publish:
        for sample in range(samples // 10 + samples):
            started = await publish([_PAYLOAD])
            until = time.monotonic() + _TIMEOUT
            while len(at) <= sample:
                if time.monotonic() > until:
                    raise RuntimeError(f"{peer.name}: a message did not arrive within {_TIMEOUT} s")
                await asyncio.sleep(0.0005)
            times.append(at[sample] - started)
            await asyncio.sleep(_PAUSE)
    return median(times[samples // 10 :])
