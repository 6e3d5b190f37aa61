"""`queue-web.py` for tests, and a browser without a screen: requests over HTTP, with cookies."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from support.serving import PROJECT, Address, Listening

SCRIPT = PROJECT / "scripts" / "queue-web.py"
COMMAND = [sys.executable, str(SCRIPT)]


class WebProcess(Listening):
    """`queue-web.py` as a process. `url` is the address of the page, without a slash at the end."""

    name = "page"
    modules = ("qs_web.command", "qs_web.serving")

    def __init__(self, folder: Path, server: Address, *flags: str, port: int = 0) -> None:
        """folder: where its stderr goes."""
        super().__init__(SCRIPT, ("--server", f"{server.host}:{server.port}", *flags), port, folder / "web.log")

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@contextlib.contextmanager
def web_serving(folder: Path, server: Address, *flags: str) -> Iterator[WebProcess]:
    """A page for the length of a with block. Its log must hold no traceback at the end."""
    web = WebProcess(folder, server, *flags)
    try:
        yield web
    finally:
        web.stop()
    assert "Traceback" not in web.log(), web.log()


def visitor(web: WebProcess) -> httpx.Client:
    """A browser that keeps cookies and follows no redirects by itself."""
    return httpx.Client(base_url=web.url, timeout=20)
