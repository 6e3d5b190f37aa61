"""Every client against everything that can go wrong with a connection: each raises what the table says, and goes on."""

import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from support.client_scenarios import BOUND, SCENARIOS, TIMEOUT, Scenario, healthy
from support.scripted_server import GIVE_UP, scripted

from qs_client import AsyncBusClient, AsyncQueueClient, BusClient, ProtocolMismatch, QueueClient, TooLarge

Outcome = str | type[Exception] | None
"""The text of the message that a client took, or the type of what it raised."""


def _queue(client: QueueClient) -> str | None:
    return client.receive("q")[0].text


def _bus(client: BusClient) -> str | None:
    with client.subscribe("q") as messages:
        return next(messages).text


async def _async_queue(client: AsyncQueueClient) -> str | None:
    return (await client.receive("q"))[0].text


async def _async_queue_wait(client: AsyncQueueClient) -> str | None:
    return (await client.receive("q", wait=0.01))[0].text


async def _async_bus(client: AsyncBusClient) -> str | None:
    async with client.subscribe("q") as messages:
        return (await messages.__anext__()).text


def _sync(make: Callable[..., Any], take: Callable[[Any], str | None]) -> Callable[..., list[Outcome]]:
    def play(timeouts: tuple[float, ...], **options: Any) -> list[Outcome]:
        client, outcomes = make(**options), list[Outcome]()
        for timeout in timeouts:
            client.timeout = timeout
            try:
                outcomes.append(take(client))
            except Exception as error:
                outcomes.append(type(error))
        if isinstance(client, QueueClient):
            client.disconnect()
        return outcomes

    return play


def _async(
    backend: str, make: Callable[..., Any], take: Callable[[Any], Awaitable[str | None]]
) -> Callable[..., list[Outcome]]:
    def play(timeouts: tuple[float, ...], **options: Any) -> list[Outcome]:
        client, outcomes = make(**options), list[Outcome]()

        async def main() -> None:
            for timeout in timeouts:
                client.timeout = timeout
                try:
                    outcomes.append(await take(client))
                except Exception as error:
                    outcomes.append(type(error))
            if isinstance(client, AsyncQueueClient):
                await client.disconnect()

        anyio.run(main, backend=backend)
        return outcomes

    return play


CLIENTS: dict[str, Callable[..., list[Outcome]]] = {
    "QueueClient": _sync(QueueClient, _queue),
    "BusClient": _sync(BusClient, _bus),
}
for _backend in ("trio", "asyncio"):
    CLIENTS |= {
        f"AsyncQueueClient-{_backend}": _async(_backend, AsyncQueueClient, _async_queue),
        f"AsyncQueueClient-wait-{_backend}": _async(_backend, AsyncQueueClient, _async_queue_wait),
        f"AsyncBusClient-{_backend}": _async(_backend, AsyncBusClient, _async_bus),
    }
"""Each is made with the options and takes one message with each of the timeouts."""


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port of loopback where nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.what.replace(" ", "-"))
def test_what_is_raised(name: str, scenario: Scenario, nobody: int) -> None:
    """What is raised is of the type of the table, and the next call of the same client works."""
    options: dict[str, Any] = {"max_document": BOUND} | ({"reconnect": False} if "Bus" in name else {})
    if scenario.script is None:
        assert CLIENTS[name]((TIMEOUT,), port=nobody, **options) == [scenario.raises]
    elif scenario.raises is None:
        with scripted(scenario.script) as server:
            assert CLIENTS[name]((TIMEOUT,), port=server.port, **options) == ["x"]
    else:
        with scripted(scenario.script, healthy) as server:
            assert CLIENTS[name]((TIMEOUT, GIVE_UP), port=server.port, **options) == [scenario.raises, "x"]


@pytest.mark.parametrize("name", [name for name in CLIENTS if "Bus" in name])
@pytest.mark.parametrize(
    "scenario",
    [each for each in SCENARIOS if each.script is not None and each.raises is not None],
    ids=lambda scenario: scenario.what.replace(" ", "-"),
)
def test_a_bus_client_goes_on_by_itself(name: str, scenario: Scenario) -> None:
    """With reconnect, a bus client comes back after everything that another attempt may cure, and raises the rest."""
    assert scenario.script is not None
    expected = scenario.raises if scenario.raises in (ProtocolMismatch, TooLarge) else "x"
    with scripted(scenario.script, healthy) as server:
        options = {"max_document": BOUND, "on_trouble": lambda text: None}
        assert CLIENTS[name]((TIMEOUT,), port=server.port, **options) == [expected]
