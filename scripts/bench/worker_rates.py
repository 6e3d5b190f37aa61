"""Measures one worker alone: the jobs a second that one process takes from a queue and acknowledges, one by one, beside
greenstalk's reserve and delete, and redis-py's XREADGROUP, XACK and XDEL. Every server syncs what it has answered."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from measuring import Figure, Run, in_turn, ratio
from processes import beanstalkd, queue_server, redis_server

from qs_client import QueueClient

_SIZE = 100
_PREFETCH = 100
_GROUP = "workers"


def _per_second(jobs: int, fill: Callable[[int], None], work: Callable[[int], None]) -> float:
    """Fills the queue, and returns the jobs a second of the work that empties it."""
    fill(jobs)
    began = time.perf_counter()
    work(jobs)
    return jobs / (time.perf_counter() - began)


def _fill(client: QueueClient, jobs: int) -> None:
    client.push_many("jobs", [b"x" * _SIZE] * jobs)


def _subscribe(client: QueueClient, jobs: int, *, handling: bool) -> None:
    """Acknowledges each message, and waits for the answer: with `delete`, or with `handling`."""
    with client.subscribe("jobs", prefetch=_PREFETCH) as messages:
        for done, message in enumerate(messages, 1):
            if handling:
                with client.handling(message):
                    pass
            else:
                client.delete(message)
            if done == jobs:
                break


def _fill_beanstalkd(port: int, jobs: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"put 65536 0 60 %d\r\n%s\r\n" % (_SIZE, b"x" * _SIZE) * jobs)
        answers = 0
        while answers < jobs:
            answers += raw.recv(65536).count(b"\n")


def _reserve(client: Any, jobs: int) -> None:
    for _ in range(jobs):
        client.delete(client.reserve())


def _fill_redis(client: Any, jobs: int) -> None:
    pipeline = client.pipeline(transaction=False)
    for _ in range(jobs):
        pipeline.xadd("jobs", {"payload": b"x" * _SIZE})
    pipeline.execute()


def _read_group(client: Any, jobs: int) -> None:
    """Reads one entry at a time. An acknowledged entry would stay, so it is deleted in the same round trip."""
    for _ in range(jobs):
        [(_, [(entry, _)])] = client.xreadgroup(_GROUP, "one", {"jobs": ">"}, count=1)
        pipeline = client.pipeline(transaction=False)
        pipeline.xack("jobs", _GROUP, entry)
        pipeline.xdel("jobs", entry)
        pipeline.execute()


def worker_rates(run: Run) -> list[Figure]:
    """Compares one worker alone, in jobs a second: subscribe with delete and with handling, greenstalk, redis-py."""
    import greenstalk  # noqa: PLC0415 - run.py says what is missing
    import redis  # noqa: PLC0415

    rounds, jobs = (3, 500) if run.quick else (7, 3000)
    folders = [run.folder / name for name in ("beanstalkd", "redis")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as stack:
        qs = stack.enter_context(queue_server(run.folder / "root", "--durability", "always"))
        beans = stack.enter_context(beanstalkd(folders[0], "-f", "0"))
        streams = stack.enter_context(
            redis_server(folders[1], "--appendonly", "yes", "--save", "", "--appendfsync", "always")
        )
        client = stack.enter_context(QueueClient(*qs.address))
        client.new_queue("jobs")
        tube = stack.enter_context(greenstalk.Client(("127.0.0.1", beans.port), encoding=None))
        line = stack.enter_context(redis.Redis(port=streams.port, protocol=2))
        line.xgroup_create("jobs", _GROUP, id="0", mkstream=True)
        sides = {
            "delete": partial(_per_second, jobs, partial(_fill, client), partial(_subscribe, client, handling=False)),
            "handling": partial(_per_second, jobs, partial(_fill, client), partial(_subscribe, client, handling=True)),
            "greenstalk": partial(_per_second, jobs, partial(_fill_beanstalkd, beans.port), partial(_reserve, tube)),
            "redis-py": partial(_per_second, jobs, partial(_fill_redis, line), partial(_read_group, line)),
        }
        rates = in_turn(sides, rounds)
    one = "one worker alone, jobs:"
    return [
        ratio(f"{one} subscribe and delete / greenstalk", rates["delete"], rates["greenstalk"], 0.7),
        ratio(f"{one} subscribe and handling / greenstalk", rates["handling"], rates["greenstalk"]),
        ratio(f"{one} subscribe and delete / redis-py", rates["delete"], rates["redis-py"]),
    ]
