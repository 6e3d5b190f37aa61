"""Idle means idle: with no page open and no scrape, nothing wakes up."""

import pytest
from support.servers.processes import ServerProcess, settled
from support.servers.web import WebProcess, visitor

pytestmark = pytest.mark.slow  # 15 to 30 s: connections and threads of the last page end after 10 s


def test_nothing_wakes(web: WebProcess, shared_server: ServerProcess) -> None:
    """After the last page has been looked at, neither the page nor the server wakes up for 12 s."""
    with visitor(web) as browser:
        for path in ("/", "/queue?q=missing", "/server"):
            browser.get(path)
    settled(web.process.pid, shared_server.process.pid, seconds=12, tries=4)
