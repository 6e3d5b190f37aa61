"""The conditions of a bus on its page, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.processes import BusProcess, ServerProcess, bus_serving
from support.servers.web import Chromium, WebProcess, web_serving

from qs_client import BusClient, QueueClient

pytestmark = pytest.mark.slow  # a browser starts


@pytest.fixture(scope="module")
def bus(server: ServerProcess) -> Iterator[BusProcess]:
    """One bus for all tests of this file."""
    with bus_serving(server) as process:
        yield process


@pytest.fixture(scope="module")
def web(server: ServerProcess, bus: BusProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One page, which shows the bus too, for all tests of this file."""
    folder: Path = tmp_path_factory.mktemp("web")
    with web_serving(folder, server, "--bus", f"{bus.host}:{bus.port}") as process:
        yield process


def test_conditions_of_subscriptions(window: Chromium, bus: BusProcess, client: QueueClient, qid: str) -> None:
    """The page of the bus has a row for a condition, with what it let through and kept back, while somebody has it."""
    with BusClient(bus.host, bus.port) as subscriber:
        messages = subscriber.subscribe(qid, where="/order[@priority='high']")
        messages.open()
        client.push_many(qid, ["<order/>", "<order priority='low'/>", "<order priority='high'/>"])
        assert next(messages).text == "<order priority='high'/>"
        window.open("/bus")
        window.until_text("Conditions")
        cells = [cell.text for cell in window.all("section[aria-labelledby=conditions] tbody :is(th, td)")]
        assert cells == [qid, "/order[@priority='high']", "1", "2"]
        window.until_text("Kept back by conditions\n2")
    window.until(lambda: not window.all("section[aria-labelledby=conditions]"))
    window.until_text("Kept back by conditions\n2")
    assert window.errors() == []
