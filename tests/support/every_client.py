"""Every client, sync and async, of a server and of a bus, as one function: what it gets, or what it raises."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from qs_client import AsyncBusClient, AsyncQueueClient, BusClient, QueueClient

Outcome = str | Exception | None
"""The text of the message that a client took, or what it raised."""


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
                outcomes.append(error)
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
                    outcomes.append(error)
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


def kinds(outcomes: list[Outcome]) -> list[str | type[Exception] | None]:
    """The outcomes, with the types of what was raised."""
    return [type(outcome) if isinstance(outcome, Exception) else outcome for outcome in outcomes]
