"""Conditions of subscriptions from every client of the bus and from `qs tail`, at a real bus."""

from collections.abc import Callable

import pytest
from support.clients.every_client import both, run
from support.servers.processes import BusProcess, ServerProcess

from qs_client import AsyncBusClient, BadRequest, BusClient, Conflict, QueueClient, command

WHERE = "/order[@priority='high']/total > 100"
MATCHING = "<order priority='high'><total>170</total></order>"
OTHERS = ["<order priority='low'><total>170</total></order>", "<order priority='high'><total>17</total></order>", "x"]


def push_all(client: QueueClient, qid: str) -> None:
    client.push_many(qid, [*OTHERS, MATCHING])


def test_a_condition(shared_server: ServerProcess, shared_bus: BusProcess, client: QueueClient, qid: str) -> None:
    """A loop gets what matches alone; the rest is gone from the queue, as it counts as handled."""
    with BusClient(shared_bus.host, shared_bus.port) as bus:
        messages = bus.subscribe(qid, ack=True, where=WHERE)
        messages.open()
        push_all(client, qid)
        message = next(messages)
        assert message.text == MATCHING
        shared_server.until(lambda: list(client.list_messages(qid, state="all")) == [message.mid])
        bus.delete(message)
        shared_server.until(lambda: list(client.list_messages(qid, state="all")) == [])


@both
def test_a_condition_of_an_async_loop(shared_bus: BusProcess, client: QueueClient, qid: str, backend: str) -> None:
    """An async loop gets what matches alone."""
    found: list[str | None] = []

    async def main() -> None:
        async with AsyncBusClient(shared_bus.host, shared_bus.port) as bus:
            messages = bus.subscribe(qid, where=WHERE)
            await messages.open()
            push_all(client, qid)
            async for message in messages:
                found.append(message.text)
                break

    run(backend, main)
    assert found == [MATCHING]


def test_conditions_that_are_refused(shared_bus: BusProcess, qid: str) -> None:
    """A condition that the bus cannot use raises an error with its position; another one for a name than the name has
    is a conflict."""
    with BusClient(shared_bus.host, shared_bus.port) as bus:
        with pytest.raises(BadRequest, match=r"column 8\b"):
            next(bus.subscribe(qid, where="/order["))
        bus.subscribe(qid, name="n", where=WHERE).open()
        for where in ("/order", None):
            with pytest.raises(Conflict, match="where"):
                next(bus.subscribe(qid, name="n", where=where))


def test_tail_with_a_condition(
    shared_bus: BusProcess, client: QueueClient, qid: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`qs tail --where` prints what matches alone. A condition that the bus cannot use is one line with the position,
    and exit code 1."""
    at = f"{shared_bus.host}:{shared_bus.port}"
    push_all(client, qid)
    tail: Callable[..., int] = lambda *more: command.main(["tail", qid, "--bus", at, "-n1", *more])  # noqa: E731
    assert tail("--where", WHERE) == 0
    assert capsys.readouterr().out == f"{MATCHING}\n"
    assert tail("--where", "/order[") == 1
    said = capsys.readouterr().err
    assert (said.startswith("qs: 400 bad-request: "), said.count("\n")) == (True, 1)
    assert "column 8" in said


def test_queues_by_pattern(shared_bus: BusProcess, client: QueueClient, qid: str) -> None:
    """Queues that match a pattern belong to the subscription, also one that appears later."""
    with BusClient(shared_bus.host, shared_bus.port) as bus:
        messages = bus.subscribe(f"{qid}-*", ack=True, match="pattern", where=WHERE)
        messages.open()
        client.new_queue(f"{qid}-later")
        push_all(client, f"{qid}-later")
        message = next(messages)
        assert (message.qid, message.text) == (f"{qid}-later", MATCHING)
        bus.delete(message)
