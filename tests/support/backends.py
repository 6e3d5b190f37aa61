"""The async clients run on trio and on asyncio; so do their tests."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import pytest

from support.scripted_server import GIVE_UP

T = TypeVar("T")

both = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def run(backend: str, main: Callable[[], Awaitable[T]]) -> T:
    """Runs it, for as long as tests have patience."""

    async def bounded() -> T:
        with anyio.fail_after(GIVE_UP):
            return await main()

    return anyio.run(bounded, backend=backend)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the other tasks run until it is true."""
    while not condition():
        await anyio.lowlevel.checkpoint()
