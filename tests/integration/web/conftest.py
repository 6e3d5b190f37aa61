"""A page for a whole file, and a browser that looks at it."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from support.servers.processes import ServerProcess
from support.servers.web import WebProcess, visitor, web_serving


@pytest.fixture(scope="module")
def web(shared_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """One page for all tests of a file, of the shared server: everybody may do everything."""
    with web_serving(tmp_path_factory.mktemp("web"), shared_server) as process:
        yield process


@pytest.fixture
def browser(web: WebProcess) -> Iterator[httpx.Client]:
    """A browser that has not been anywhere yet."""
    with visitor(web) as client:
        yield client


@pytest.fixture
def look(browser: httpx.Client, qid: str) -> Callable[..., str]:
    """Returns the page of all queues as it is now. Without an action of the same visitor it may be a second old."""

    def queues(**query: str) -> str:
        assert browser.post("/queues", data={"do": "resume", "q": qid}).status_code == 303
        return browser.get("/", params=query).text

    return queues
