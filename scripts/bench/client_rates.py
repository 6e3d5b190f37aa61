"""Measures what a client costs its own process: the processor time of a push, beside clients of other systems."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from measuring import Figure, Run, in_turn, ratio
from processes import beanstalkd, queue_server, redis_server

from qs_client import QueueClient

_QUEUE = "jobs"
_TARGETS = {"greenstalk": 1.3, "redis-py": 0.7}
"""The most that a push of QueueClient may cost, as a multiple of a push of that client."""


def client_costs(run: Run) -> list[Figure]:
    """Compares the client's processor time for a push of 1 KiB: QueueClient, greenstalk and redis-py; one at a time.
    Every server syncs before it answers, as what a client does after a long wait costs more than after a short one."""
    import greenstalk  # noqa: PLC0415 - only the comparisons need it
    import redis  # noqa: PLC0415

    rounds, pushes = (3, 1_000) if run.quick else (9, 4_000)
    payload = "x" * 1024
    with ExitStack() as stack:
        folders = [run.folder / name for name in ("beanstalkd", "redis")]
        for folder in folders:
            folder.mkdir()
        qs = stack.enter_context(queue_server(run.folder / "qs", "--durability", "always"))
        beans = stack.enter_context(beanstalkd(folders[0], "-f", "0"))
        streams = stack.enter_context(
            redis_server(folders[1], "--appendonly", "yes", "--save", "", "--appendfsync", "always")
        )
        client = stack.enter_context(QueueClient(*qs.address))
        client.new_queue(_QUEUE)
        tube = stack.enter_context(greenstalk.Client(("127.0.0.1", beans.port), use=_QUEUE))
        stream = stack.enter_context(redis.Redis(port=streams.port))
        push: dict[str, Callable[[], object]] = {
            "QueueClient": lambda: client.push(_QUEUE, payload),
            "greenstalk": lambda: tube.put(payload),
            "redis-py": lambda: stream.xadd(_QUEUE, {"payload": payload}),
        }
        costs = in_turn({name: partial(_microseconds, once, pushes) for name, once in push.items()}, rounds)
    return [
        ratio(
            f"client's processor time for a push of 1 KiB, QueueClient / {name}",
            costs["QueueClient"],
            costs[name],
            target,
            "at most",
            " us",
        )
        for name, target in _TARGETS.items()
    ]


def _microseconds(once: Callable[[], object], pushes: int) -> float:
    """Returns the processor time of this process for each push."""
    began = time.process_time()
    for _ in range(pushes):
        once()
    return (time.process_time() - began) / pushes * 1_000_000
