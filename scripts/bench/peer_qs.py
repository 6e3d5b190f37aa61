"""qs with its own Python client, and with ready-made documents on raw sockets as any language would send them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import document, mid_in, push_document
from peer import QUEUE, Exchange, Peer, Running, Script, Target
from processes import queue_server
from raw_load import Pushes

from qs_client import Delivery, Draft, PushMessage, QueueClient
from qs_schemas import serialize

_QID = b"<qid>" + QUEUE.encode() + b"</qid>"


class QsClient:
    """A list is one `push_many`, `receive` and `delete_many`."""

    def __init__(self, target: Target) -> None:
        self._client = QueueClient(*target["address"], timeout=60)
        self._client.connect()

    async def push(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            self._client.push(QUEUE, payloads[0])
        else:
            self._client.push_many(QUEUE, payloads)

    async def receive(self, count: int) -> list[Delivery]:
        return self._client.receive(QUEUE, max=count, wait=1)

    async def delete(self, received: Sequence[Delivery]) -> None:
        if len(received) == 1:
            self._client.delete(received[0])
        else:
            self._client.delete_many(received)

    async def close(self) -> None:
        self._client.disconnect()


async def connect(target: Target) -> QsClient:
    return QsClient(target)


def pushes(size: int, together: int) -> Script:
    """Documents of one push each; several are sent together, and each is answered (pipelining)."""
    return Pushes(push_document(QUEUE, size) * together, together, together)


def lists(size: int, batch: int) -> Script:
    """A list of messages in one document."""
    push = serialize(PushMessage(QUEUE, messages=[Draft(b"x" * size)] * batch))
    return Pushes(push, 1, batch)


class _Cycle:
    """A push, a receive, a delete: three round trips."""

    worth = 1

    def __init__(self, size: int) -> None:
        self._push = push_document(QUEUE, size)
        self._receive = document(b"receive-message", _QID, b' wait="1"')

    def round(self) -> Iterator[Exchange]:
        yield self._push, 1
        answer = yield self._receive, 1  # type: ignore[misc]
        yield document(b"delete-message", _QID + b"<mid>" + mid_in(answer) + b"</mid>"), 1


def script(target: Target, work: str, size: int, batch: int) -> Script:
    """Returns the requests of a raw connection, by the work."""
    if work == "cycle":
        return _Cycle(size)
    return lists(size, batch) if target["lists"] else pushes(size, batch)


@dataclass(frozen=True)
class Qs(Peer):
    """settings: storage. flags: of the server."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        root = folder / "root"
        with queue_server(root, *self.flags) as server:
            with QueueClient(*server.address) as client:
                client.new_queue(QUEUE, exist_ok=True)
            target: dict[str, Any] = {"module": "peer_qs", "address": server.address, "lists": True, **self.settings}
            yield Running(target, server.process.pid)


def peers(storage: str) -> list[Peer]:
    """With that engine. Durability `none` is measured as it is the like of what others do without syncs."""
    kept = "what was answered"
    shown = f"qs ({storage})"
    engine = ("--storage", storage)
    always = (*engine, "--durability", "always")
    common: dict[str, Any] = {"client": "qs_client", "many_files": True, "versions": ("qsbus",)}
    raw = {**common, "client": "raw sockets", "raw": True, "deep": False}
    return [
        Qs("qs", f"{shown}, always", "always", kept, flags=always, **common),
        Qs("qs-raw", f"{shown}, always, raw sockets", "always", kept, flags=always, **raw),
        Qs(
            "qs-interval", f"{shown}, interval", "interval", "all but the last 50 ms",
            flags=(*engine, "--durability", "interval"), **common,
        ),
        Qs(
            "qs-none", f"{shown}, none", "none", "what the kernel has written",
            flags=(*engine, "--durability", "none"), deep=False, **common,
        ),
    ]  # fmt: skip
