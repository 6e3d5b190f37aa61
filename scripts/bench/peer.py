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
"""Faults that an answered push survives: power loss; power loss, except for its last moments; a crash of the server."""

Target = dict[str, Any]
"""A server as its clients need it. module and connect: the function that makes a client; queue; and the function's
other arguments."""


Publish = Callable[[Sequence[bytes]], Awaitable[float]]
"""Publishes messages together, in the client's usual way. Returns when the system has confirmed them, in the way that
it promises; the result is the clock from just before the first call."""
Received = Callable[[int], None]
"""Is called with the number of a subscriber each time that the subscriber gets a message; from any thread."""


class Client(Protocol):
    """One connection, as a Python program uses it. The calls of a blocking client block: it is alone in its process.

    A client may have a `fill`, which does the same as `push` and is faster: it makes a queue deep, which is not
    measured.
    """

    async def push(self, payloads: Sequence[bytes]) -> None:
        """Stores one message, or several in the client's way; returns when they are stored."""
        ...

    async def receive(self, count: int) -> Sequence[Any]:
        """Returns at most that many messages, in the form that `delete` takes; none if none came in a second."""
        ...

    async def delete(self, received: Sequence[Any]) -> None:
        """Acknowledges the received messages, which removes them."""
        ...

    async def close(self) -> None: ...


@dataclass
class Running:
    """A server that runs. pid: None for a library; target: for the clients."""

    target: Target
    pid: int | None = None
    drop: Any = None
    """Removes every message. None when each cell gets a server and a folder of its own, which costs less."""


@dataclass(frozen=True)
class Peer:
    """A peer. `start` does what differs between peers.

    name: for the tables; survives: which messages are there after a power loss; package: what has to be installed;
    batches: whether the client can push and take several at once; threads: whether its clients are threads of one
    process, because it does not work with several processes; many_files: whether each message is a file, so that the
    folder is removed only when everything is measured; keeps: whether one server serves all cells, because starting it
    takes long.
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
    """Whether the server does its work in one thread and cannot use more than one core."""
    missing: str = ""
    """The reason why the peer cannot run here, and what would help; "" when it can run."""
    versions: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    fills_apart: bool = False
    """Whether queues are filled in a run of its own, with `filling`."""
    fills_raw: bool = False
    """Whether queues are filled through raw sockets, because the client has no batches."""
    deep: bool = True
    """Whether depths and sizes are measured too."""

    def started(self, folder: Path, filling: bool = False) -> AbstractContextManager[Running]:
        """Runs the server with all its files in the folder, which exists. filling: as fast as possible, because it is
        not measured; afterwards the server is started again on the same folder."""
        raise NotImplementedError


class FanOutPeer(Protocol):
    """A system that gives each message to every subscriber, with its usual Python client."""

    name: str
    survives: str
    """The messages that are still there after a crash of the system, or a power loss, with these settings."""

    def started(self, folder: Path) -> AbstractContextManager[None]:
        """Runs the system on loopback with all its files in the folder, which exists."""
        ...

    def subscribed(self, subscribers: int, received: Received) -> AbstractAsyncContextManager[Publish]:
        """Connects that many subscribers with a connection each, which all get every message from now on, and a
        publisher."""
        ...
