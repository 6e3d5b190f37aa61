"""Signing in with a real browser: refused, accepted, limited to what the token may, signed out."""

from pathlib import Path

import pytest
from support.clients.access import principal, write_access
from support.servers.processes import FAST, serving
from support.servers.web import chromium, web_serving

from qs_client import QueueClient

pytestmark = pytest.mark.slow  # some 10 s: a browser starts


def test_sign_in(tmp_path: Path) -> None:
    """A visitor signs in for the page that was asked for, sees and does what the token may, and signs out."""
    access = write_access(
        tmp_path / "access.toml", [principal("ops", admin=True), principal("reader", read=["orders"])]
    )
    with serving(tmp_path / "root", *FAST, "--access", str(access)) as server:
        with QueueClient(server.host, server.port, token="ops-token") as client:
            client.new_queue("orders")
            client.new_queue("secret")
        with web_serving(tmp_path, server) as web, chromium(web.url) as window:
            window.open("/queue?q=orders")
            window.until_text("With a token of the queue server's access file.")
            assert window.one("#token").get_attribute("type") == "password"
            window.fill("#token", "wrong")
            window.one("main button").click()
            window.until_text("The queue server does not know this token.")
            window.fill("#token", "reader-token")
            window.one("main button").click()
            window.until_text("Push a message")
            assert window.text(".who").startswith("reader")
            assert window.run("return document.cookie") == ""
            window.fill("#payload", "x")
            window.press("Push")
            window.until_text("The queue server answered 403 forbidden.")
            window.open("/")
            assert [row.text for row in window.all("tbody th a")] == ["orders"]
            window.press("Sign out")
            window.until_text("With a token of the queue server's access file.")
            window.fill("#token", "ops-token")
            window.one("main button").click()
            window.until_text("secret")
