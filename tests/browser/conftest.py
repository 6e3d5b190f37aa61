"""A server, a page and a browser for all tests of a file. Without Chromium the tests are skipped, and say so."""

import re
from collections.abc import Iterator

import pytest
from support.servers.processes import FAST, ServerProcess, serving
from support.servers.web import Chromium, WebProcess, chromium, missing, web_serving

from qs_client import QueueClient


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips all of this folder where there is no browser."""
    if text := missing():
        for item in items:
            if "/browser/" in str(item.path):
                item.add_marker(pytest.mark.skip(reason=text))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a file: each has its own queues."""
    with serving(tmp_path_factory.mktemp("server") / "root", *FAST) as process:
        yield process


@pytest.fixture(scope="module")
def web(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One page for all tests of a file."""
    with web_serving(tmp_path_factory.mktemp("web"), server) as process:
        yield process


@pytest.fixture(scope="module")
def window(web: WebProcess) -> Iterator[Chromium]:
    """One browser window for all tests of a file."""
    with chromium(web.url) as browser:
        yield browser


@pytest.fixture
def client(server: ServerProcess) -> Iterator[QueueClient]:
    """A client of the server."""
    with QueueClient(server.host, server.port, timeout=20) as connected:
        yield connected


@pytest.fixture
def qid(client: QueueClient, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own."""
    name = re.sub(r"\W", "-", request.node.name)
    client.new_queue(name)
    return name
