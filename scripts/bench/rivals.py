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
import importlib
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import ModuleType

from open_files import room_for
from rival import Publish, Rival
from systems import RABBITMQ
from table import Row

_SYSTEMS = {
    "rival_qs": ("", "pip install -e '.[bench]'"),
    "rival_redis": ("redis-server", "apt-get install redis-server; pip install 'redis[hiredis]'"),
    "rival_rabbitmq": (
        RABBITMQ,
        "apt-get install rabbitmq-server; pip install pika",
    ),
    "rival_nats": ("nats-server", "apt-get install nats-server; pip install nats-py"),
}
"""By the module here that knows it: a program that it needs, and how to install that and its client."""
_PAYLOAD = b"x" * 1024
_FEW, _MANY = 10, 100
_TOGETHER = 32
_AHEAD = 64
_PAUSE = 0.005
_TIMEOUT = 60


def measure(folder: Path, quick: bool) -> list[Row]:
    """deliveries a second and latency of the bus, Redis, NATS and RabbitMQ, each with its own Python client"""
    rounds, seconds, samples = (1, 0.5, 60) if quick else (3, 2.0, 200)
    room_for(10 * _MANY)
    rivals = list(_installed())
    figures: dict[str, list[tuple[float, float, float]]] = {rival.name: [] for rival in rivals}
    with ExitStack() as stack:
        for number, rival in enumerate(rivals):
            own = folder / str(number)
            own.mkdir()
            stack.enter_context(rival.started(own))
        for _ in range(rounds):
            for rival in rivals:
                latency = asyncio.run(_latency(rival, samples))
                few, many = [asyncio.run(_rate(rival, subscribers, seconds)) for subscribers in (_FEW, _MANY)]
                figures[rival.name].append((few, many, latency))
    return [
        Row(f"1 KiB to {_FEW} subscribers, Python clients", "", "", f"to {_MANY}; latency p50; what is kept"),
        *(_row(rival, figures[rival.name]) for rival in rivals),
        *_not_installed(),
    ]


def _module(name: str, program: str) -> ModuleType | None:
    """None when something is not installed."""
    if program and shutil.which(program) is None:
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def _installed() -> Iterator[Rival]:
    for name, (program, _) in _SYSTEMS.items():
        module = _module(name, program)
        if module is not None:
            yield from module.RIVALS


def _not_installed() -> Iterator[Row]:
    for name, (program, install) in _SYSTEMS.items():
        if _module(name, program) is None:
            yield Row(f"- {name.removeprefix('rival_')}", "-", "", f"not installed: {install}")


def _row(rival: Rival, figures: Sequence[tuple[float, float, float]]) -> Row:
    few, many, latency = (median(column) for column in zip(*figures, strict=True))
    return Row(f"- {rival.name}", f"{few:,.0f}/s", "", f"{many:,.0f}/s; {latency * 1e6:,.0f} us; {rival.survives}")


async def _rate(rival: Rival, subscribers: int, seconds: float) -> float:
    """Deliveries a second, after a fifth of the time has passed."""
    counts = [0] * subscribers

    def received(number: int) -> None:
        counts[number] += 1

    async with rival.subscribed(subscribers, received) as publish:
        published = await _publish_for(seconds / 5, publish, counts, 0)
        before, started = sum(counts), time.perf_counter()
        published = await _publish_for(seconds, publish, counts, published)
        rate = (sum(counts) - before) / (time.perf_counter() - started)
        until = time.monotonic() + _TIMEOUT
        while min(counts) < published and time.monotonic() < until:
            await asyncio.sleep(_PAUSE)
        await asyncio.sleep(_PAUSE)
        if set(counts) != {published}:
            raise RuntimeError(f"{rival.name}: {published} messages, {min(counts)} to {max(counts)} deliveries")
        return rate


async def _publish_for(seconds: float, publish: Publish, counts: list[int], published: int) -> int:
    """Publishes for so many seconds. Returns how many messages have been published now."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if published - min(counts) > _AHEAD - _TOGETHER:
            await asyncio.sleep(0.001)  # subscribers may be threads, which cannot wake us for nothing
        else:
            await publish([_PAYLOAD] * _TOGETHER)
            published += _TOGETHER
    return published


async def _latency(rival: Rival, samples: int) -> float:
    """Seconds: the median, after some to warm up."""
    at: list[float] = []
    times: list[float] = []
    async with rival.subscribed(1, lambda number: at.append(time.perf_counter())) as publish:
        for sample in range(samples // 10 + samples):
            started = await publish([_PAYLOAD])
            until = time.monotonic() + _TIMEOUT
            while len(at) <= sample:
                if time.monotonic() > until:
                    raise RuntimeError(f"{rival.name}: a message did not arrive within {_TIMEOUT} s")
                await asyncio.sleep(0.0005)
            times.append(at[sample] - started)
            await asyncio.sleep(_PAUSE)
    return median(times[samples // 10 :])
