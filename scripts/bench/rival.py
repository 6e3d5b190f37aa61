"""Defines what `rivals` measures, and what each system has to offer for that."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Protocol

Publish = Callable[[Sequence[bytes]], Awaitable[float]]
"""Publishes messages together, as is usual with the client. Returns when the system has taken them, in the way that it
promises; what it returns is the clock from just before the first call."""
Received = Callable[[int], None]
"""Is told the number of a subscriber each time that it gets a message; from any thread."""


class Rival(Protocol):
    """A system that takes a message and gives it to every subscriber."""

    name: str
    survives: str
    """Which messages are still there after a crash of the system, or a power loss, with these settings."""

    def started(self, folder: Path) -> AbstractContextManager[None]:
        """Runs it on loopback with all its files in the folder, which exists."""
        ...

    def subscribed(self, subscribers: int, received: Received) -> AbstractAsyncContextManager[Publish]:
        """So many subscribers with a connection each, which all get every message from now on, and a publisher."""
        ...
