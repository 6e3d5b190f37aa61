"""A page that browsers reach by a name and without TLS: there they do not say `Sec-Fetch-Site`."""

from pathlib import Path

import pytest
from support.clients.access import principal, write_access
from support.servers.processes import FAST, serving
from support.servers.web import NAME, chromium, web_serving

pytestmark = pytest.mark.slow  # some 10 s: a browser starts


def test_forms(tmp_path: Path) -> None:
    """The forms of the page are known as its own: a visitor signs in, and makes a queue."""
    access = write_access(tmp_path / "access.toml", [principal("ops", admin=True)])
    with (
        serving(tmp_path / "root", *FAST, "--access", str(access)) as server,
        web_serving(tmp_path, server, "--allow-host", NAME) as web,
        chromium(f"http://{NAME}:{web.port}") as window,
    ):
        window.open("/sign-in")
        window.fill("#token", "ops-token")
        window.one("main button").click()
        window.until_text("There are no queues yet")
        window.one("summary").click()
        window.fill("#new-name", "orders")
        window.press("Create")
        window.until_text("Created the queue.")
