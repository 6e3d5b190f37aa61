"""`kill -9` of a server, and of workers, that acknowledge behind: nothing is lost, and no more comes twice than was
open."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.servers.processes import ServerProcess, lasting_port

from qs_client import QueueClient
from qs_testing.programs import READY_WITHIN, until

JOBS = 1500
PREFETCH = 40

_WORKER = """
import os, signal, sys
import anyio
from qs_client import AsyncQueueClient, QueueClient
kind, port, prefetch, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def do(message):
    os.write(notes, message.payload + b"\\n")

def work():
    with QueueClient("127.0.0.1", port) as client:
        messages = client.subscribe("jobs", prefetch=prefetch, ack="behind")
        signal.signal(signal.SIGTERM, lambda *_: messages.close())
        for message in messages:
            with client.handling(message):
                do(message)

async def awork():
    async with AsyncQueueClient("127.0.0.1", port) as client, anyio.create_task_group() as tasks:
        messages = client.subscribe("jobs", prefetch=prefetch, ack="behind")

        async def loop():
            async for message in messages:
                async with client.handling(message):
                    do(message)

        tasks.start_soon(loop)
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                await messages.aclose()
                break

if kind == "sync":
    work()
else:
    anyio.run(awork, backend=kind)
"""


class Worker:
    """A worker as a process. It notes each job in a file, with one write, before it acknowledges it."""

    def __init__(self, kind: str, port: int, notes: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", _WORKER, kind, str(port), str(PREFETCH), str(notes)])

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(READY_WITHIN)


def done(notes: Path) -> "Counter[str]":
    return Counter(notes.read_text().split())


def check(notes: Path, kills: int) -> None:
    """Each job was done, and at most a prefetch of them twice for each kill."""
    counts = done(notes)
    assert set(counts) == {str(number) for number in range(JOBS)}
    assert sum(counts.values()) - JOBS <= kills * PREFETCH


def after(notes: Path, jobs: int) -> Callable[[], bool]:
    return lambda: notes.exists() and notes.read_bytes().count(b"\n") >= jobs


def fill(port: int) -> None:
    with QueueClient("127.0.0.1", port) as client:
        client.new_queue("jobs")
        client.push_many("jobs", [b"%d" % number for number in range(JOBS)])


def check_empty(port: int) -> None:
    """The server deleted everything: what the worker was told is confirmed is so."""
    with QueueClient("127.0.0.1", port) as client:
        [figures] = client.stats("jobs")
        assert (figures.ready, figures.in_flight) == (0, 0)


@pytest.mark.slow  # some 4 s each
@pytest.mark.parametrize("kind", ["sync", "trio", "asyncio"])
def test_killed_server(kind: str, tmp_path: Path) -> None:
    """The server is killed again and again while a worker goes on: each job is done, few twice, and none is left."""
    port, notes = lasting_port(), tmp_path / "notes"
    server = ServerProcess(tmp_path / "root", port=port)
    fill(port)
    worker = Worker(kind, port, notes)
    try:
        for moment in (1, 200, 201, 700, JOBS - 5):
            until(after(notes, moment), tmp_path)
            server.kill()
            server.start()
        until(lambda: len(done(notes)) == JOBS, tmp_path)
        worker.end(signal.SIGTERM)
        assert worker.process.returncode == 0
        check(notes, kills=5)
        check_empty(port)
    finally:
        worker.process.kill()
        worker.process.wait()
        server.stop()


@pytest.mark.slow  # some 6 s each
@pytest.mark.parametrize("kind", ["sync", "trio"])
def test_killed_worker(kind: str, tmp_path: Path) -> None:
    """Workers are killed at any point: the next one gets what was not acknowledged, and at most a prefetch of it was
    done before."""
    notes = tmp_path / "notes"
    server = ServerProcess(tmp_path / "root")
    fill(server.port)
    worker = Worker(kind, server.port, notes)
    try:
        for moment in (1, 150, 400, 900):
            until(after(notes, moment), tmp_path)
            worker.end(signal.SIGKILL)
            worker = Worker(kind, server.port, notes)
        until(lambda: len(done(notes)) == JOBS, tmp_path)
        worker.end(signal.SIGTERM)
        assert worker.process.returncode == 0
        check(notes, kills=4)
        check_empty(server.port)
    finally:
        worker.process.kill()
        worker.process.wait()
        server.stop()


def test_stopped_server(tmp_path: Path) -> None:
    """A server that stops as asked, and begins again, costs no more than a killed one."""
    port, notes = lasting_port(), tmp_path / "notes"
    server = ServerProcess(tmp_path / "root", port=port)
    fill(port)
    worker = Worker("sync", port, notes)
    try:
        for moment in (100, 600):
            until(after(notes, moment), tmp_path)
            assert server.stop() == 0
            server.start()
        until(lambda: len(done(notes)) == JOBS, tmp_path)
        worker.end(signal.SIGTERM)
        check(notes, kills=2)
        check_empty(port)
    finally:
        worker.process.kill()
        worker.process.wait()
        server.stop()
