"""Answers of the server while the package dirq purges its queues, or somebody else removes files from them."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path

import pytest
from support.clients.documents import code, new_queue, push, push_list
from support.servers.memory import Clock, clock_of, serving
from support.servers.processes import serving as server_process
from support.storage.directories import LAYOUTS, Foreign

from qs_client import QueueClient
from qs_storage.disk import Disk


class Losing(Disk):
    """Loses something after the next payload has been written."""

    lose: Callable[[], object] | None = None

    def _write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        written = os.write(fd, data)
        lose, self.lose = self.lose, None
        if lose is not None:
            lose()
        return written


@pytest.mark.parametrize("storage", ["files", *LAYOUTS])
async def test_what_is_said_of_a_missing_file(tmp_path: Path, storage: str, autojump_clock: Clock) -> None:
    """A push whose file somebody removes before it is visible is refused with 500, and not as if the queue were
    missing: 404 is for a queue whose directory is gone. The next push is taken."""
    disk = Losing()
    async with serving(tmp_path / "root", clock_of(autojump_clock), disk=disk, queues=()) as running:
        client = running.connect()
        path = running.root / "q"
        assert code(await client.ask(new_queue("q", f'<options storage="{storage}"/>'))) == 0
        for documents in (push("q", "x"), push_list("q", "x", "y"), push("q", "x", delay=5)):
            disk.lose = lambda: lose_what_is_written(path)
            answer = await client.ask(documents)
            assert code(answer) == 500, answer
            assert "nothing was changed" in answer
            assert code(await client.ask(push("q", "y"))) == 0
        disk.lose = lambda: shutil.rmtree(path)
        answer = await client.ask(push("q", "x"))
        assert code(answer) == 404
        assert "the directory of the queue is gone" in answer


def lose_what_is_written(path: Path) -> None:
    """Removes the files being written, like a purge that takes them for left behind."""
    for above, names, files in os.walk(path):
        for name in files:
            if name.endswith((".new", ".tmp")):
                os.unlink(f"{above}/{name}")
        if os.path.basename(above) == "temporary":
            for name in names:
                shutil.rmtree(f"{above}/{name}")


# -- through the server -----------------------------------------------------------------------------------------------

PURGER = """
import sys, time
from dirq.queue import Queue
from dirq.QueueSimple import QueueSimple
kind = {"dirq-simple": QueueSimple, "dirq": Queue}[sys.argv[1]]
queues = [kind(path) for path in sys.argv[2:]]
print(flush=True)
while True:
    for queue in queues:
        try:
            queue.purge()
        except OSError:
            pass
"""


@contextlib.contextmanager
def purging(layout: str, *paths: Path) -> Iterator[None]:
    """The package's purge of these directories, again and again, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-c", PURGER, layout, *map(str, paths)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"\n"
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


QUEUES = ("q", "later", "copies")


def held(client: QueueClient, qid: str) -> int:
    """Returns how many messages there are, in whatever state."""
    [figures] = client.stats(qid)
    return (figures.ready or 0) + (figures.in_flight or 0) + (figures.delayed or 0)


class Producer:
    """Pushes singly and in lists to `q`, and delayed to `later`. Notes what was answered; any error is raised."""

    def __init__(self, client: QueueClient) -> None:
        self._client = client
        self.pushed: list[str] = []
        self.delayed = 0

    def run(self, seconds: float) -> None:
        numbers = map(str, count())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            payloads = list(islice(numbers, 4))
            self._client.push("q", payloads[0])
            self._client.push_many("q", payloads[1:])
            self.pushed += payloads
            self._client.push("later", "x", delay=600)
            self.delayed += 1


class Consumer:
    """Receives, extends, copies to `copies`, releases and deletes. Notes what it has had; any error is raised."""

    def __init__(self, client: QueueClient) -> None:
        self._client = client
        self.had: list[str] = []
        self.copied = 0

    def run(self, is_last: Callable[[], bool]) -> None:
        while not is_last() or held(self._client, "q"):
            for number, message in enumerate(self._client.receive("q", max=100, wait=0.1)):
                if message.receives == 1 and number % 20 == 0:
                    self._client.extend(message, visibility=60)
                    self._client.copy("q", message.mid, ["copies"])
                    self.copied += 1
                    self._client.release(message)
                else:
                    self._client.delete(message)
                    self.had.append(message.text)


def check_beside_purges(layout: str, root: Path, seconds: float) -> None:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(server_process(root, "--storage", layout))
        clients = [stack.enter_context(QueueClient(server.host, server.port, timeout=20)) for _ in range(2)]
        for qid in QUEUES:
            clients[0].new_queue(qid)
        stack.enter_context(purging(layout, *(root / qid for qid in QUEUES)))
        producer, consumer = Producer(clients[0]), Consumer(clients[1])
        with ThreadPoolExecutor() as threads:
            produced = threads.submit(producer.run, seconds)
            consumer.run(produced.done)
            produced.result()
        assert held(clients[0], "copies") == consumer.copied > 0
        assert held(clients[0], "later") == producer.delayed > 0
        assert Foreign(layout, root / "later").consume() == []
    assert Counter(consumer.had) == Counter(producer.pushed)
    assert server.log() == ""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pushes_beside_purges(tmp_path: Path, layout: str) -> None:
    """Beside a process that only purges, every request is done, each message is received once, no delayed one can be
    taken by another program, and nothing is logged."""
    check_beside_purges(layout, tmp_path / "root", 1)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pushes_beside_purges_for_longer(tmp_path: Path, layout: str) -> None:
    """Pushes beside purges hold for 20 seconds of each kind; a minute in all."""
    check_beside_purges(layout, tmp_path / "root", 20)
