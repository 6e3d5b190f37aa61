"""qs with its own Python client, and with ready-made documents on raw sockets as any language would send them. For
fan-out: the server, the bus and its asyncio client."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import Exchange, Pushes, Script, document, mid_in, push_document
from peer import QUEUE, FanOutPeer, Peer, Publish, Received, Running, Target
from processes import queue_bus, queue_server

from qs_client import AsyncBusClient, AsyncBusMessages, AsyncQueueClient, Delivery, Draft, PushMessage, QueueClient
from qs_schemas import serialize

_QID = b"<qid>" + QUEUE.encode() + b"</qid>"

_TIMEOUT = 60


class QsClient:
    """The client of qs. A list is one `push_many`, `receive` and `delete_many`."""

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
    """Returns documents of one push each; several are sent together, and each is answered (pipelining)."""
    return Pushes(push_document(QUEUE, size) * together, together, together)


def lists(size: int, batch: int) -> Script:
    """Returns the push of a list of messages in one document."""
    push = serialize(PushMessage(QUEUE, messages=[Draft(b"x" * size)] * batch))
    return Pushes(push, 1, batch)


class Cycle:
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
        return Cycle(size)
    return lists(size, batch) if target["lists"] else pushes(size, batch)


@dataclass(frozen=True)
class Qs(Peer):
    """The queue server. settings: the storage; flags: the server's flags."""

    @contextmanager
    def started(self, folder: Path, filling: bool = False) -> Iterator[Running]:
        root = folder / "root"
        with queue_server(root, *self.flags) as server:
            with QueueClient(*server.address) as client:
                client.new_queue(QUEUE, exist_ok=True)
            target: dict[str, Any] = {"module": "peer_qs", "address": server.address, "lists": True, **self.settings}
            yield Running(target, server.process.pid)


def peers(storage: str) -> list[Peer]:
    """Returns the peers with that engine. Durability `none` is measured too, because it promises the same as other
    systems without syncs."""
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


# -- fan-out -----------------------------------------------------------------------------------------------------------


class Bus:
    """The bus. A message is deleted when it has been written to every subscriber's connection."""

    name = "qs bus"
    survives = "what was answered, until it is written to each subscriber"
    _ack = False
    _flags: tuple[str, ...] = ()

    @contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """Runs server and bus with their built-in settings."""
        with queue_server(folder / "root", *self._flags) as server:
            with QueueClient(*server.address) as client:
                client.new_queue("q")
            with queue_bus(folder, server.address, "q") as bus:
                self._server, self._bus = server.address, bus.address
                yield

    @asynccontextmanager
    async def subscribed(self, subscribers: int, received: Received) -> AsyncIterator[Publish]:
        """Publishes a batch as a list; each subscriber loops over its messages."""

        async def listen(messages: AsyncBusMessages, number: int) -> None:
            async for _ in messages:
                received(number)

        async def publish(payloads: Sequence[bytes]) -> float:
            started = time.perf_counter()
            if len(payloads) == 1:
                await publisher.push("q", payloads[0])
            else:
                await publisher.push_many("q", payloads)
            return started

        async with AsyncExitStack() as stack:
            publisher = await stack.enter_async_context(AsyncQueueClient(*self._server))
            group = await stack.enter_async_context(asyncio.TaskGroup())
            bus = await stack.enter_async_context(AsyncBusClient(*self._bus))
            for number in range(subscribers):
                messages = bus.subscribe("q", ack=self._ack)
                await messages.open()
                group.create_task(listen(messages, number))
            yield publish
            await _emptied(publisher)


async def _emptied(client: AsyncQueueClient) -> None:
    """Waits until the queue is empty: handled messages are deleted a moment later."""
    async with asyncio.timeout(_TIMEOUT):
        while True:
            (figures,) = await client.stats("q")
            if not (figures.ready or figures.in_flight):
                return
            await asyncio.sleep(0.02)


class AcknowledgedBus(Bus):
    """The bus with acknowledgements. A message is deleted when every subscriber has acknowledged it, each one by
    itself."""

    name = "qs bus, acknowledged"
    survives = "what was answered, until each subscriber has acknowledged it"
    _ack = True


class FastBus(Bus):
    """The bus with a server that syncs nothing; otherwise a `Bus`."""

    name = "qs bus, durability none"
    survives = "a crash: what was answered; power loss: nothing for sure"
    _flags = ("--durability", "none")


def fan_out_peers() -> list[FanOutPeer]:
    """Returns the bus with its promises."""
    return [Bus(), AcknowledgedBus(), FastBus()]
