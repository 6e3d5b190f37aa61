"""The peers that qs is compared with: a queue with its usual Python client, or with bytes on a raw socket, for
`compare`; a system that gives a message to all, for `fan_out_peers`. Each module `peer_*` has both of one system.

A peer has two sides. `started` runs its server, in the process of the bench. What it yields names a target: a
dictionary that a load process gets as JSON, and from which it makes its clients with the function that the target
names. So a client's package is imported where it is used, and nowhere else.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

QUEUE = "q"
"""The name of the queue, where one has a name."""

Durability = Literal["always", "interval", "none"]
"""Faults that an answered push survives: power loss; power loss but for its last moments; a crash of the server."""

Target = dict[str, Any]
"""module and connect: the function that makes a client of this target; queue; and whatever that function wants."""


Publish = Callable[[Sequence[bytes]], Awaitable[float]]
"""Publishes messages together, as is usual with the client. Returns when the system has taken them, in the way that it
promises; what it returns is the clock from just before the first call."""
Received = Callable[[int], None]
"""Is told the number of a subscriber each time that it gets a message; from any thread."""


class Client(Protocol):
    """One connection, as a Python program has it. A blocking client blocks in these: it is alone in its process.

    It may have a `fill` that does as `push` and is faster: with that a queue is made deep, which is not measured.
    """

    async def push(self, payloads: Sequence[bytes]) -> None:
        """Stores one message, or several in the way that the client has for that; returns when they are stored."""
        ...

    async def receive(self, count: int) -> Sequence[Any]:
        """Returns at most so many messages, as `delete` wants them; none if none came in a second."""
        ...

    async def delete(self, received: Sequence[Any]) -> None:
        """Acknowledges them: they are gone."""
        ...

    async def close(self) -> None: ...


@dataclass
class Running:
    """A server that runs. pid: None for a library; target: of the clients."""

    target: Target
    pid: int | None = None
    drop: Any = None
    """Removes every message. None when a cell gets a server and a folder of its own, which costs less."""


@dataclass(frozen=True)
class Peer:
    """A peer. `start` does what differs between peers.

    name: as the tables show it; survives: which messages are there after a power loss; package: what has to be
    installed; batches: whether the client can push and take several at once; threads: its clients are threads of one
    process, as it does not go with several; many_files: a file for each message, so that the folder is not removed
    before everything is measured; keeps: one server serves all cells, because starting it takes long.
    """

    key: str
    name: str
    durability: Durability
    survives: str
    client: str
    batches: bool = True
    raw: bool = False
    library: bool = False
    threads: bool = False
    many_files: bool = False
    keeps: bool = False
    single: bool = True
    """Its server does its work in one thread: more than one core is nothing to it."""
    missing: str = ""
    """Why it cannot run here, and what would help; "" when it can."""
    versions: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    fills_apart: bool = False
    """True if it is filled in a run of its own, with `filling`."""
    fills_raw: bool = False
    """True if it is filled through raw sockets, as its client has no batches."""
    deep: bool = True
    """True if depths and sizes are measured too."""

    def started(self, folder: Path, filling: bool = False) -> AbstractContextManager[Running]:
        """Runs it with all its files in the folder, which exists. filling: as fast as it can, for what is not measured;
        afterwards it is started again on the same folder."""
        raise NotImplementedError


class FanOutPeer(Protocol):
    """A system that takes a message and gives it to every subscriber, with its usual Python client."""

    name: str
    survives: str
    """Which messages are still there after a crash of the system, or a power loss, with these settings."""

    def started(self, folder: Path) -> AbstractContextManager[None]:
        """Runs it on loopback with all its files in the folder, which exists."""
        ...

    def subscribed(self, subscribers: int, received: Received) -> AbstractAsyncContextManager[Publish]:
        """Connects so many subscribers with a connection each, which all get every message from now on, and a
        publisher."""
        ...
