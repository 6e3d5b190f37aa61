"""Faults around a server: a process that stands still or is killed, a disk that is really full."""

import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from support.clients.documents import mids, request
from support.servers.processes import Gone, MortalWire, ServerProcess


def pass_time(seconds: float) -> None:
    """Sleeps, so that something stands still for that long. Not for waiting until something has happened."""
    select.select([], [], [], seconds)


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """Mounts a tmpfs of that size (as mount has it: 512k) on a directory, which is made, for the length of a with
    block. Skips the test, with the reason, where nothing can be mounted."""
    directory.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"A REALLY FULL DISK WAS NOT TESTED: no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@dataclass
class Seen:
    """The observations of one client in one round. trouble: observations that should not have been made."""

    trouble: list[str] = field(default_factory=list)


Record = TypeVar("Record", bound=Seen)
Client = Callable[[MortalWire, Record, str], None]
"""Works with its record, under a name, until the server is gone."""


def load(
    clients: Sequence[Client[Record]],
    new_record: Callable[[], Record],
    server: ServerProcess,
    number: int,
    seconds: float,
) -> list[Record]:
    """Lets every client work, each with a record of its own, until the server is killed. number: the round's number."""
    records = [new_record() for _ in clients]

    def run(client: Client[Record], record: Record, name: str) -> None:
        wire = None
        try:
            wire = MortalWire(server)
            client(wire, record, name)
        except Gone:
            pass
        except Exception as error:
            record.trouble.append(repr(error))
        finally:
            if wire is not None:
                wire.close()

    threads = [
        threading.Thread(target=run, args=(client, record, f"{number}-{index}"))
        for index, (client, record) in enumerate(zip(clients, records, strict=True))
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    server.kill()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return records


def listed(wire: MortalWire, state: str) -> list[int]:
    """Returns the ids of the messages of the queue in that state, oldest first."""
    found: list[int] = []
    while page := mids(
        wire.ask(request("list-messages", "<qid>q</qid>", state=state, after=found[-1] if found else 0))
    ):
        found += page
    return found
