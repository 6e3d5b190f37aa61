"""The queue server is gone, stuck, stopping or full: the page says so, soon, and comes back by itself."""

import re
import time
from pathlib import Path

import httpx
from support.clients.documents import new_queue
from support.faults import pass_time
from support.servers.processes import FAST, ServerProcess, Wire, serving
from support.servers.web import visitor, web_serving

SOON = 2.0
"""Seconds within which a page says that something is wrong."""


def trouble(answer: httpx.Response) -> str:
    return "".join(re.findall(r'<p id="trouble" role="alert">(.*?)</p>', answer.text))


def timed(browser: httpx.Client, path: str) -> tuple[httpx.Response, float]:
    begun = time.monotonic()
    answer = browser.get(path)
    return answer, time.monotonic() - begun


def until_503(browser: httpx.Client, path: str) -> httpx.Response:
    """Asks now and then until the page says that something is wrong: what it shows may be a second old."""
    begun = time.monotonic()
    while (answer := browser.get(path)).status_code == 200:
        assert time.monotonic() - begun < 2 * SOON
        pass_time(0.05)
    return answer


def test_a_server_that_comes_back(tmp_path: Path) -> None:
    """While nothing listens, every page is a 503 that says so and asks again by itself; then all is as before."""
    with serving(tmp_path / "root", *FAST) as server, web_serving(tmp_path, server) as web, visitor(web) as browser:
        with Wire(server) as wire:
            wire.ask(new_queue("q"))
        assert browser.get("/").status_code == 200
        server.kill()
        until_503(browser, "/")
        for path in ("/", "/queue?q=q", "/message?q=q&id=1", "/server"):
            answer, took = timed(browser, path)
            assert answer.status_code == 503
            assert took < SOON
            assert f"127.0.0.1:{server.port}" in trouble(answer)
            assert '<meta http-equiv="refresh" content="2">' in answer.text
            assert answer.headers["retry-after"] == "2"
        action = browser.post("/push", params={"q": "q"}, data={"payload": "x"})
        assert action.status_code == 503
        assert "refresh" not in action.text
        assert "Whether the action was carried out is not known" in action.text
        server.start()
        assert browser.get("/").status_code == 200
        assert browser.get("/queue?q=q").status_code == 200


def test_a_server_that_is_stuck(tmp_path: Path) -> None:
    """Within 2 s, the page says that a server does not answer, also while an old answer is at hand."""
    with serving(tmp_path / "root", *FAST) as server, web_serving(tmp_path, server) as web, visitor(web) as browser:
        with Wire(server) as wire:
            wire.ask(new_queue("q"))
        assert browser.get("/").status_code == 200
        with server.freeze():
            for path in ("/queue?q=q", "/server"):
                answer, took = timed(browser, path)
                assert (answer.status_code, took < SOON) == (503, True)
                assert trouble(answer) == f"The queue server at 127.0.0.1:{server.port} does not answer."
            assert trouble(until_503(browser, "/")) == f"The queue server at 127.0.0.1:{server.port} does not answer."
        begun = time.monotonic()
        while browser.get("/").status_code != 200:  # the connection of the first try may have to time out
            assert time.monotonic() - begun < 30
            pass_time(0.05)


def test_a_stop_while_the_server_is_stuck(tmp_path: Path) -> None:
    """The page stops although the queue server does not answer it."""
    with serving(tmp_path / "root", *FAST) as server, web_serving(tmp_path, server) as web, visitor(web) as browser:
        assert browser.get("/").status_code == 200
        with server.freeze():
            until_503(browser, "/")
            assert web.stop() == 0


def test_something_else_listens(shared_server: ServerProcess, tmp_path: Path) -> None:
    """The page says that the other side is not a queue server."""
    with web_serving(tmp_path, shared_server) as other, web_serving(tmp_path, other) as web, visitor(web) as browser:
        answer = browser.get("/")
        assert answer.status_code == 503
        assert trouble(answer)


def test_a_page_that_stops(shared_server: ServerProcess, tmp_path: Path) -> None:
    """SIGTERM ends the page with exit code 0, with browsers connected too."""
    with web_serving(tmp_path, shared_server) as web, visitor(web) as browser:
        assert browser.get("/").status_code == 200
        assert web.stop() == 0
