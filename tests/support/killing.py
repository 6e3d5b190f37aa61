"""Clients at work on a queue `q` until the server is killed, and what is there after it."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from support.documents import mids, request
from support.serving import Gone, MortalWire, ServerProcess


@dataclass
class Seen:
    """The observations of one client in one round; trouble: what should not have been."""

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
    """Lets every client work, each with a record of its own, until the server is killed; number: of the round."""
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
    """The ids of the messages of the queue in that state, oldest first."""
    found: list[int] = []
    while page := mids(
        wire.ask(request("list-messages", "<qid>q</qid>", state=state, after=found[-1] if found else 0))
    ):
        found += page
    return found
