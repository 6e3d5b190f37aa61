"""Tests how the bus handles the requests of one connection, over streams in memory and without a queue server."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from support.clients.documents import code, req, request
from support.servers.memory import Client, MemoryHub, MemoryListener, adopt

from qs_bus.bus import Bus
from qs_bus.options import BusOptions
from qs_serving.options import ServerLimits


@asynccontextmanager
async def serving(limits: ServerLimits) -> AsyncIterator[tuple[Bus, Callable[[], Client]]]:
    """Runs a bus for the length of a with block. Yields it and a function that connects a client."""
    bus, listener = Bus(BusOptions(limits=limits), hub=MemoryHub(), adopt=adopt), MemoryListener()  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.acceptor.accept, [listener])
        yield bus, lambda: Client(listener.connect())
        bus.stop()


@pytest.mark.parametrize("pipeline", [1, 7, 300])
async def test_small_pipeline_answers_all_in_order(pipeline: int) -> None:
    """However few requests may wait, thousands in one piece are answered in their order."""
    async with serving(ServerLimits(pipeline=pipeline)) as (_, connect):
        client = connect()
        numbers = [str(number) for number in range(3000)]
        await client.send(*(request("ping", req=number) for number in numbers))
        assert [req(line) for line in await client.lines(3000)] == numbers
        await client.hang_up()


async def test_stop_ends_client_that_pipelines() -> None:
    """A client with thousands of requests behind those that have begun is told soon that the bus stops."""
    async with serving(ServerLimits()) as (bus, connect):
        client = connect()
        await client.send(*(request("ping", req=str(number)) for number in range(20_000)))
        await client.line()
        bus.stop()
        answers = await client.rest()
        assert len(answers) < 5000
        assert code(answers[-1]) == 503
        await client.hang_up()
