"""Measures one worker alone: the jobs a second that one process takes from a queue and acknowledges, one by one, with
nothing to do for each. Beside qs, with its acknowledgements waited for and behind, and `qs work`: greenstalk's reserve
and delete, redis-py's XREADGROUP, XACK and XDEL, and the workers of RQ and dramatiq over Redis. Every server syncs what
it has answered."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from measuring import Figure, Run, in_turn, ratio
from processes import beanstalkd, queue_server, redis_server

from qs_client import QueueClient

_SIZE = 100
_PREFETCH = 100
_GROUP = "workers"
_PAYLOAD = "x" * _SIZE


def _per_second(jobs: int, fill: Callable[[int], None], work: Callable[[int], None]) -> float:
    """Fills the queue, and returns the jobs a second of the work that empties it."""
    fill(jobs)
    began = time.perf_counter()
    work(jobs)
    return jobs / (time.perf_counter() - began)


def _fill(client: QueueClient, jobs: int) -> None:
    client.push_many("jobs", [b"x" * _SIZE] * jobs)


def _subscribe(client: QueueClient, jobs: int, *, handling: bool, ack: Literal["wait", "behind"]) -> None:
    """Acknowledges each message with `delete`, or with `handling`. The end of the block confirms all."""
    with client.subscribe("jobs", prefetch=_PREFETCH, ack=ack) as messages:
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


class _Work:
    """`qs work` with one process, which waits for messages of a paused queue. Its function has nothing to do."""

    def __init__(self, client: QueueClient, qid: str) -> None:
        self._client = client
        self._qid = qid

    def fill(self, jobs: int) -> None:
        self._client.pause(self._qid)
        self._client.push_many(self._qid, [b"x" * _SIZE] * jobs)
        self._before = self._client.stats(self._qid)[0].deleted or 0

    def work(self, jobs: int) -> None:
        self._client.resume(self._qid)
        while (self._client.stats(self._qid)[0].deleted or 0) < self._before + jobs:
            time.sleep(0.005)  # the worker tells nobody


@contextmanager
def _qs_work(client: QueueClient, address: tuple[str, int], folder: Path, qid: str, *flags: str) -> Iterator[_Work]:
    """Runs `qs work` for a queue of its own. flags: of the command."""
    client.new_queue(qid)
    (folder / "nothing.py").write_text("def do(message):\n    pass\n")
    command = [str(Path(sys.executable).parent / "qs"), "work", qid, "nothing:do", *flags]
    environment = {**os.environ, "QS_SERVER": f"{address[0]}:{address[1]}"}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            while not client.stats(qid)[0].subscribers:
                time.sleep(0.02)
            yield _Work(client, qid)
        finally:
            process.terminate()


def nothing(payload: str) -> None:
    """Is the job of the workers that name a function."""


def _fill_rq(queue: Any, jobs: int) -> None:
    queue.enqueue_many([queue.prepare_data(nothing, (_PAYLOAD,), result_ttl=0) for _ in range(jobs)])


def _work_rq(queue: Any, jobs: int) -> None:
    """Runs RQ's SimpleWorker, which makes no process for each job, until the queue is empty."""
    from rq import SimpleWorker  # noqa: PLC0415

    SimpleWorker([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")


class _Dramatiq:
    """An actor, and a worker with one thread."""

    def __init__(self, port: int) -> None:
        import dramatiq  # noqa: PLC0415
        from dramatiq.brokers.redis import RedisBroker  # noqa: PLC0415

        self._dramatiq = dramatiq
        self._new_broker = partial(RedisBroker, port=port)
        self._left = 0
        self._all_done = threading.Event()

    def _do(self, payload: str) -> None:
        self._left -= 1
        if not self._left:
            self._all_done.set()

    def fill(self, jobs: int) -> None:
        self._broker = self._new_broker(middleware=[])  # a worker adds its own to it, which may not be there twice
        actor = self._dramatiq.actor(self._do, broker=self._broker, actor_name="nothing")
        for _ in range(jobs):
            actor.send(_PAYLOAD)

    def work(self, jobs: int) -> None:
        self._left = jobs
        self._all_done.clear()
        worker = self._dramatiq.Worker(self._broker, worker_threads=1)
        worker.start()
        self._all_done.wait()
        worker.stop()  # acknowledges the last ones


def worker_rates(run: Run) -> list[Figure]:
    """Compares one worker alone, in jobs a second: subscribe with ack="wait" and "behind", qs work, greenstalk,
    redis-py, RQ, dramatiq."""
    import greenstalk  # noqa: PLC0415 - run.py says what is missing
    import redis  # noqa: PLC0415
    import rq  # noqa: PLC0415

    rounds, jobs = (3, 500) if run.quick else (7, 3000)
    few = jobs // 3  # of the sides that wait for the disk several times a job
    folders = [run.folder / name for name in ("beanstalkd", "redis", "work")]
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
        rq_queue = rq.Queue(connection=line)
        dramatiq = _Dramatiq(streams.port)
        work = stack.enter_context(_qs_work(client, qs.address, folders[2], "work"))
        ahead = stack.enter_context(_qs_work(client, qs.address, folders[2], "ahead", "--prefetch", f"{_PREFETCH}"))

        def subscribing(*, handling: bool, ack: Literal["wait", "behind"]) -> Callable[[], float]:
            work = partial(_subscribe, client, handling=handling, ack=ack)
            return partial(_per_second, jobs, partial(_fill, client), work)

        sides = {
            "delete": subscribing(handling=False, ack="wait"),
            "handling": subscribing(handling=True, ack="wait"),
            "behind": subscribing(handling=False, ack="behind"),
            "handling behind": subscribing(handling=True, ack="behind"),
            "qs work": partial(_per_second, jobs, work.fill, work.work),
            "qs work ahead": partial(_per_second, jobs, ahead.fill, ahead.work),
            "greenstalk": partial(_per_second, jobs, partial(_fill_beanstalkd, beans.port), partial(_reserve, tube)),
            "redis-py": partial(_per_second, jobs, partial(_fill_redis, line), partial(_read_group, line)),
            "RQ": partial(_per_second, few, partial(_fill_rq, rq_queue), partial(_work_rq, rq_queue)),
            "dramatiq": partial(_per_second, few, dramatiq.fill, dramatiq.work),
        }
        rates = in_turn(sides, rounds)
    one = "one worker alone, jobs:"
    return [
        ratio(f"{one} subscribe and delete / greenstalk", rates["delete"], rates["greenstalk"], 0.7),
        ratio(f"{one} subscribe and handling / greenstalk", rates["handling"], rates["greenstalk"]),
        ratio(f'{one} ack="behind" and delete / greenstalk', rates["behind"], rates["greenstalk"], 2),
        ratio(f'{one} ack="behind" and handling / greenstalk', rates["handling behind"], rates["greenstalk"]),
        ratio(f"{one} subscribe and delete / redis-py", rates["delete"], rates["redis-py"]),
        ratio(f'{one} ack="behind" and delete / redis-py', rates["behind"], rates["redis-py"]),
        ratio(f"{one} qs work / RQ", rates["qs work"], rates["RQ"]),
        ratio(f"{one} qs work / dramatiq", rates["qs work"], rates["dramatiq"]),
        ratio(f"{one} qs work --prefetch {_PREFETCH} / RQ", rates["qs work ahead"], rates["RQ"]),
        ratio(f"{one} qs work --prefetch {_PREFETCH} / dramatiq", rates["qs work ahead"], rates["dramatiq"]),
    ]
