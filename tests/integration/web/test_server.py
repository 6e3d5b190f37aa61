"""The pages of the server and of the bus, with their connections."""

import html
import platform
import re
from pathlib import Path

import httpx
import pytest
from support.clients.access import authenticate, principal, write_access
from support.clients.documents import PING, code, subscribe
from support.clients.scripted_server import Conversation, Parallel
from support.servers.figures import address
from support.servers.processes import FAST, ServerProcess, Wire, bus_serving, serving
from support.servers.web import visitor, web_serving

from qs_schemas import Figure
from qs_schemas.interpreter import pgo_build
from qs_web.amounts import NONE

_ROW = re.compile(
    r'<tr data-key="([^"]*)">\n<th scope="row">\1</th>\n<td>(?:<bdi>)?(.*?)(?:</bdi>)?</td>\n'
    r'<td class="number">[\d.]+ s</td>\n<td class="number">(\d+)</td>'
)
_DANGEROUS = "<script>alert(1)</script>"


def rows(browser: httpx.Client, path: str) -> dict[str, tuple[str, int]]:
    """The table of connections: address -> principal, subscriptions."""
    page = browser.get(path)
    assert page.status_code == 200, page.text
    assert _DANGEROUS not in page.text
    assert "<code>connection_subscriptions</code>" not in page.text  # the list of all figures has other ones
    return {peer: (html.unescape(name), int(count)) for peer, name, count in _ROW.findall(page.text)}


@pytest.mark.parametrize("path", ["/server", "/bus"])
def test_connections(tmp_path: Path, shared_server: ServerProcess, qid: str, path: str) -> None:
    """A row for each client, with its principal and subscriptions, until it has gone."""
    access = write_access(tmp_path / "access.toml", [principal("ops", admin=True), principal(_DANGEROUS, read=["*"])])
    with (
        serving(tmp_path / "root", *FAST, "--access", str(access)) as server,
        bus_serving(shared_server, "--access", str(access)) as bus,
        web_serving(tmp_path, server, "--bus", f"{bus.host}:{bus.port}") as web,
        visitor(web) as browser,
    ):
        browser.post("/sign-in", data={"token": "ops-token", "after": "/"})
        looked_at = bus if path == "/bus" else server
        with Wire(looked_at) as nobody, Wire(looked_at) as subscriber:
            nobody.ask(PING)
            subscriber.ask(authenticate(html.escape(f"{_DANGEROUS}-token")))
            if path == "/bus":
                assert code(subscriber.ask(subscribe(qid))) == 0
            found = rows(browser, path)
            assert found.pop(address(nobody)) == (NONE, 0)
            assert found.pop(address(subscriber)) == (_DANGEROUS, int(path == "/bus"))
            assert set(found.values()) >= {("ops", 0)}
            own = set(found)
        while rows(browser, path).keys() - own:  # until it has noticed that the two have gone
            pass


_CONDITION = re.compile(
    r'<th scope="row"><bdi>(.*?)</bdi></th>\n<td><code>(.*?)</code></td>\n'
    r'<td class="number">([\d,]+)</td>\n<td class="number">([\d,]+)</td>'
)


def test_conditions(tmp_path: Path, shared_server: ServerProcess) -> None:
    """The page of the bus has a row for each queue and condition: what it let through and kept back. `/metrics` has the
    same as counters. A bus that has no conditions has no table."""
    where = """/order[@priority='high']/total > 100 and $header-a != "<b>\\\""""
    through, back = "condition_let_through_total", "condition_kept_back_total"
    figures = [
        Figure("deliveries_let_through_total", 4321, {}),
        Figure("deliveries_kept_back_total", 7, {}),
        Figure(through, 1234, {"queue": "orders", "where": where}),
        Figure(back, 5, {"queue": "orders", "where": where}),
        Figure(back, 2, {"queue": "invoices", "where": "/a"}),
        Figure(through, 0, {"queue": "invoices", "where": "/a"}),
    ]
    answers = [figures, [], figures]

    def stats(conversation: Conversation) -> None:
        while (request := conversation.read()) is not None:
            conversation.answer(request, figures=answers.pop(0))

    with (
        Parallel(stats) as bus,
        web_serving(tmp_path, shared_server, "--bus", f"{bus.host}:{bus.port}") as web,
        visitor(web) as browser,
    ):
        shown = browser.get("/bus").text
        rows = [tuple(map(html.unescape, row)) for row in _CONDITION.findall(shown)]
        assert rows == [("invoices", "/a", "0", "2"), ("orders", where, "1,234", "5")]
        assert "<b>" not in shown
        facts = re.sub(r"<[^>]*>|\s+", " ", shown)
        assert re.search(r"Let through by conditions +4,321 +Kept back by conditions +7\b", facts)
        assert '<h2 id="conditions">' not in browser.get("/bus").text
        metrics = browser.get("/metrics").text
    escaped = where.replace("\\", r"\\").replace('"', r"\"")
    assert f'qs_bus_condition_let_through_total{{queue="orders",where="{escaped}"}} 1234.0' in metrics
    assert 'qs_bus_condition_kept_back_total{queue="invoices",where="/a"} 2.0' in metrics
    assert "qs_bus_deliveries_kept_back_total 7.0" in metrics


def test_the_interpreter(tmp_path: Path, shared_server: ServerProcess) -> None:
    """The page says which Python the server runs on, and whether it is a PGO build."""
    with web_serving(tmp_path, shared_server) as web, visitor(web) as browser:
        facts = re.sub(r"<[^>]*>|\s+", " ", browser.get("/server").text)
    assert re.search(rf"\bPython +{re.escape(platform.python_version())}\b", facts)
    assert re.search(rf"\bPGO build +{pgo_build()}\b", facts)


def test_a_bus_that_knows_others(tmp_path: Path, shared_server: ServerProcess) -> None:
    """The page says that the bus does not accept the token. The visitor stays signed in at the queue server."""
    known = write_access(tmp_path / "access.toml", [principal("ops", admin=True)])
    others = write_access(tmp_path / "bus.toml", [principal("other", admin=True)])
    with (
        serving(tmp_path / "root", *FAST, "--access", str(known)) as server,
        bus_serving(shared_server, "--access", str(others)) as bus,
        web_serving(tmp_path, server, "--bus", f"{bus.host}:{bus.port}") as web,
        visitor(web) as browser,
    ):
        browser.post("/sign-in", data={"token": "ops-token", "after": "/"})
        refused = browser.get("/bus")
        assert refused.status_code == 403
        assert "The bus does not accept your token, which the queue server does: " in refused.text
        assert browser.get("/server").status_code == 200
