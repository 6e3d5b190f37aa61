"""A page for a whole file, and a browser that looks at it."""

from collections.abc import Iterator

import httpx
import pytest
from support.serving import ServerProcess
from support.web_serving import WebProcess, visitor, web_serving


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
