"""The async clients run on trio and on asyncio; so do their tests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import pytest
import sniffio
import trio.testing

from qs_client.async_connection import AsyncConnection
from qs_client.async_opening import open_async_connection
from qs_client.place import Place
from support.scripted_server import GIVE_UP, ScriptedServer

T = TypeVar("T")

both = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def run(backend: str, main: Callable[[], Awaitable[T]]) -> T:
    """Runs it, for as long as tests have patience."""

    async def bounded() -> T:
        with anyio.fail_after(GIVE_UP):
            return await main()

    options = {"clock": trio.testing.MockClock(rate=1)} if backend == "trio" else {}
    return anyio.run(bounded, backend=backend, backend_options=options)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the other tasks run until it is true."""
    while not condition():
        await anyio.lowlevel.checkpoint()


def jump(seconds: float) -> None:
    """The loop's clock goes forward at once: what has its deadline before then is late."""
    if sniffio.current_async_library() == "trio":
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(seconds)
    else:
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + seconds  # type: ignore[method-assign]


async def opened(server: ScriptedServer, timeout: float = GIVE_UP) -> AsyncConnection:
    """A connection to a scripted server."""
    return await open_async_connection(server.host, server.port, Place(f"{server.host}:{server.port}"), timeout)
