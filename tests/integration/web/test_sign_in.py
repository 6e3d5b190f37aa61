"""Signing in with a token of the server's access file: what the cookie is, what the visitor then sees and may do."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.clients.access import principal, section, write_access
from support.servers.processes import FAST, ServerProcess, bus_serving, serving
from support.servers.web import WebProcess, visitor, web_serving

from qs_client import QueueClient

RIGHTS = {
    "ops": {"admin": True},
    "reader": {"read": ["orders"]},
    "writer": {"read": ["orders"], "write": ["orders"], "configure": ["orders"]},
    "watcher": {"monitor": True},
}


def access(folder: Path, *names: str, anonymous: bool = False) -> Path:
    """Writes the access file with these principals."""
    sections = [principal(name, **RIGHTS[name]) for name in names]
    if anonymous:
        sections.append(section("anonymous", read=["public"]))
    return write_access(folder / "access.toml", sections)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with an access file, and the queues `orders`, `secret` and `public`."""
    folder = tmp_path_factory.mktemp("guarded")
    file = access(folder, *RIGHTS, anonymous=True)
    with serving(folder / "root", *FAST, "--access", str(file)) as server:
        with QueueClient("127.0.0.1", server.port, token="ops-token") as client:
            for qid in ("orders", "secret", "public"):
                client.new_queue(qid)
                client.push(qid, f"payload of {qid}")
        yield server


@pytest.fixture(scope="module")
def web(guarded: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    """A page of that server."""
    with web_serving(tmp_path_factory.mktemp("web"), guarded) as process:
        yield process


def sign_in(browser: httpx.Client, name: str, after: str = "/") -> httpx.Response:
    return browser.post("/sign-in", data={"token": f"{name}-token", "after": after})


def names(page: str) -> list[str]:
    return re.findall(r'<tr data-key="([^"]*)">', page)


def test_anonymous_visitors(browser: httpx.Client) -> None:
    """A visitor without a sign-in sees what the server shows to anonymous clients."""
    assert names(browser.get("/").text) == ["public"]
    refused = browser.get("/queue", params={"q": "secret"})
    assert refused.status_code == 401
    assert '<h1 id="sign-in">Sign in</h1>' in refused.text


def test_the_cookie(browser: httpx.Client) -> None:
    """The cookie has a random id and no token. Scripts and other sites do not get it."""
    answer = sign_in(browser, "ops", "/queue?q=orders")
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue?q=orders")
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(r"qs-session=[\w-]{43}; HttpOnly; Path=/; SameSite=strict", cookie)
    assert browser.get("/queue", params={"q": "secret"}).status_code == 200
    assert "ops" in browser.get("/").text
    tls = browser.post(
        "/sign-in", data={"token": "ops-token"}, headers={"x-forwarded-proto": "https"}
    ).headers["set-cookie"]  # fmt: skip
    assert "; Secure" in tls


def test_a_session_is_not_taken_over(web: WebProcess) -> None:
    """An id that a browser brings along is not used for the session (fixation), and a new sign-in makes a new one."""
    with visitor(web) as browser:
        browser.cookies.set("qs-session", "a" * 43)
        first = sign_in(browser, "ops").cookies["qs-session"]
        second = sign_in(browser, "reader").cookies["qs-session"]
        assert len({"a" * 43, first, second}) == 3
    for old in ("a" * 43, first):
        with visitor(web) as browser:
            browser.cookies.set("qs-session", old)
            assert names(browser.get("/").text) == ["public"]
    with visitor(web) as browser:
        browser.cookies.set("qs-session", second)
        assert names(browser.get("/").text) == ["orders"]


def test_sign_out(web: WebProcess) -> None:
    """After signing out the id is worth nothing, in any browser."""
    with visitor(web) as browser:
        name = sign_in(browser, "ops").cookies["qs-session"]
        out = browser.post("/sign-out")
        assert out.status_code == 303
        assert 'qs-session=""' in out.headers["set-cookie"]
        assert "Max-Age=0" in out.headers["set-cookie"]
        browser.cookies.set("qs-session", name)
        assert names(browser.get("/").text) == ["public"]


@pytest.mark.parametrize(("token", "said"), [
    ("wrong", "The queue server does not know this token."),
    ("", "That is no token"),
    ("two words", "That is no token"),
    ("x" * 2000, "That is no token"),
    ("<script>", "The queue server does not know this token."),
])  # fmt: skip
def test_refused_tokens(browser: httpx.Client, token: str, said: str) -> None:
    """A wrong token is refused with 401, in words, and is not shown again."""
    answer = browser.post("/sign-in", data={"token": token})
    assert answer.status_code == 401
    assert said in answer.text
    assert "set-cookie" not in answer.headers
    assert not token.strip() or f'value="{token}"' not in answer.text


@pytest.mark.parametrize("after", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:x", ""])
def test_where_a_sign_in_leads(browser: httpx.Client, after: str) -> None:
    """A sign-in leads to a page of this site only."""
    assert sign_in(browser, "ops", after).headers["location"] == "/"


def test_what_a_principal_may(browser: httpx.Client) -> None:
    """Each principal sees its queues. What it may not do is the server's 403, as text."""
    sign_in(browser, "reader")
    assert names(browser.get("/").text) == ["orders"]
    assert "payload of orders" in browser.get("/queue", params={"q": "orders"}).text
    for answer in (
        browser.get("/queue", params={"q": "secret"}),
        browser.get("/queue", params={"q": "not there"}),
        browser.post("/push", params={"q": "orders"}, data={"payload": "x"}),
        browser.post("/queues", data={"do": "pause", "q": "orders"}),
        browser.post("/queues", data={"do": "purge", "q": "orders", "sure": "yes"}),
        browser.post("/redrive", params={"q": "orders"}, data={"sure": "yes"}),
        browser.post("/redrive", params={"q": "secret"}, data={"of": "orders", "sure": "yes"}),
        browser.post("/new", data={"q": "mine"}),
        browser.get("/server"),
    ):
        assert answer.status_code == 403, answer.text
        assert "The queue server answered 403 forbidden." in answer.text
    sign_in(browser, "writer")
    assert browser.post("/push", params={"q": "orders"}, data={"payload": "x"}).status_code == 303


def test_figures_without_payloads(browser: httpx.Client) -> None:
    """A principal with `monitor` sees the figures of every queue and of the server, and no message."""
    sign_in(browser, "watcher")
    assert names(browser.get("/").text) == ["orders", "public", "secret"]
    page = browser.get("/queue", params={"q": "secret"})
    assert page.status_code == 200
    assert "payload of" not in page.text
    assert "The queue server says: " in page.text
    assert browser.get("/server").status_code == 200


def test_a_token_that_is_taken_away(tmp_path: Path) -> None:
    """After the token has gone from the access file, the next request asks to sign in again."""
    file = access(tmp_path, "ops", "reader")
    flags = (*FAST, "-v", "--access", str(file))
    with serving(tmp_path / "root", *flags) as server, web_serving(tmp_path, server) as web, visitor(web) as browser:
        sign_in(browser, "ops")
        assert browser.get("/server").status_code == 200
        access(tmp_path, "reader")
        server.process.send_signal(1)
        server.until_logged("after SIGHUP")
        answer = browser.get("/server")
        assert answer.status_code in {401, 403}
        assert browser.get("/").status_code == 401


def test_a_page_with_a_token_of_its_own(guarded: ServerProcess, tmp_path: Path) -> None:
    """A page that has rights of its own lends them to nobody: visitors sign in, unless --open says otherwise."""
    token = tmp_path / "token"
    token.write_text("ops-token")
    token.chmod(0o600)
    flags = ("--server-token-file", str(token))
    with web_serving(tmp_path, guarded, *flags) as web, visitor(web) as browser:
        for path in ("/", "/queue?q=orders", "/message?q=orders&id=1", "/payload?q=orders&id=1", "/server"):
            answer = browser.get(path)
            assert answer.status_code == 401
            assert "payload of" not in answer.text
        assert browser.post("/push", params={"q": "orders"}, data={"payload": "x"}).status_code == 401
        assert browser.get("/static/page.css").status_code == 200
        sign_in(browser, "reader")
        assert names(browser.get("/").text) == ["orders"]
    with web_serving(tmp_path, guarded, *flags, "--open", "--read-only") as web, visitor(web) as browser:
        assert names(browser.get("/").text) == ["orders", "public", "secret"]


def test_no_access_file(tmp_path: Path) -> None:
    """A server without an access file knows no tokens, and the page says so."""
    with serving(tmp_path / "root", *FAST) as server, web_serving(tmp_path, server) as web, visitor(web) as browser:
        answer = sign_in(browser, "ops")
        assert answer.status_code == 400
        assert "This server has no access file" in answer.text


def test_a_bus_with_other_tokens(guarded: ServerProcess, tmp_path: Path) -> None:
    """A bus that does not know the visitor's token says so on its page, and the visitor stays signed in."""
    other = write_access(tmp_path / "bus.toml", [principal("somebody", admin=True)])
    with serving(tmp_path / "root", *FAST) as server, bus_serving(server, "--access", str(other)) as bus:
        flags = ("--bus", f"{bus.host}:{bus.port}")
        with web_serving(tmp_path, guarded, *flags) as web, visitor(web) as browser:
            sign_in(browser, "ops")
            answer = browser.get("/bus")
            assert answer.status_code == 403
            assert "The bus does not accept your token" in answer.text
            assert browser.get("/server").status_code == 200
            bus.kill()
            gone = browser.get("/bus")
            assert gone.status_code == 503
            assert "The bus: " in gone.text
            assert browser.get("/").status_code == 200
