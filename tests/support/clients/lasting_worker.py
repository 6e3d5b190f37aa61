"""README's worker, and its twins for asyncio and trio: does jobs until SIGTERM, and notes each in a file.

Run as `python -m support.clients.lasting_worker KIND HOST:PORT QUEUE FILE`, with KIND sync, asyncio or trio, or as `qs
work QUEUE support.clients.lasting_worker:do`, with FILE in the variable DONE. A job is a line `NUMBER SECONDS`; one
whose number ends with 7 raises. FILE gets a line for each job that was done.
"""

import functools
import os
import signal
import sys
import time
from collections.abc import Callable

import anyio

from qs_client import AsyncQueueClient, GetMessage, QueueClient


class Work:
    """Does jobs and notes each done job with one write of a line, so that a kill leaves the line whole or not there."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def begin(self, text: str) -> tuple[str, float]:
        """Returns the job's number and how long it takes. Raises ValueError for a bad job."""
        number, seconds = text.split()
        if number.endswith("7"):
            raise ValueError(f"job {number} is bad")
        return number, float(seconds)

    def done(self, number: str) -> None:
        os.write(self._file, f"{number}\n".encode())


@functools.cache
def _jobs() -> Work:
    return Work(os.environ["DONE"])


def do(message: GetMessage) -> None:
    """Does one job, for `qs work`."""
    number, seconds = _jobs().begin(message.text)
    time.sleep(seconds)
    _jobs().done(number)


def work(host: str, port: int, queue: str, jobs: Work) -> None:
    with QueueClient(host, port) as client:
        messages = client.subscribe(queue, prefetch=1)
        signal.signal(signal.SIGTERM, lambda *_: messages.close())
        for message in messages:
            try:
                with client.handling(message):
                    number, seconds = jobs.begin(message.text)
                    time.sleep(seconds)
                    jobs.done(number)
            except ValueError:
                pass


async def async_work(host: str, port: int, queue: str, jobs: Work) -> None:
    async with AsyncQueueClient(host, port) as client, anyio.create_task_group() as tasks:
        subscriptions = [client.subscribe(queue, prefetch=1) for _ in range(4)]
        for subscription in subscriptions:
            tasks.start_soon(_one, client, subscription, jobs)
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                break
        for subscription in subscriptions:
            await subscription.aclose()


async def _one(client: AsyncQueueClient, messages: object, jobs: Work) -> None:
    async for message in messages:  # type: ignore[attr-defined]
        try:
            async with client.handling(message):
                number, seconds = jobs.begin(message.text)
                await anyio.sleep(seconds)
                jobs.done(number)
        except ValueError:
            pass


def main(kind: str, place: str, queue: str, path: str) -> None:
    host, _, port = place.partition(":")
    jobs = Work(path)
    run: Callable[[], object] = lambda: work(host, int(port), queue, jobs)  # noqa: E731
    if kind != "sync":
        run = lambda: anyio.run(async_work, host, int(port), queue, jobs, backend=kind)  # noqa: E731
    run()


if __name__ == "__main__":
    main(*sys.argv[1:])
