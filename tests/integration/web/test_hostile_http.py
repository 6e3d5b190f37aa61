"""Requests that no browser sends: smuggled, too large, too slow, cut off. They are refused within bounds, and others
are answered meanwhile."""

import socket
import ssl
import struct
from pathlib import Path

import httpx
import pytest
from support.servers.processes import ServerProcess
from support.servers.tls import authority, tls_flags
from support.servers.web import WebProcess, visitor, web_serving


def raw(web: WebProcess, *parts: bytes) -> bytes:
    """Sends bytes, and returns all that comes until the other side closes."""
    with web.connect() as connected:
        try:
            for part in parts:
                connected.sendall(part)
            connected.shutdown(socket.SHUT_WR)
        except OSError:  # it was refused before all was sent
            pass
        return read_all(connected)


def read_all(connected: socket.socket) -> bytes:
    got = b""
    try:
        while part := connected.recv(65536):
            got += part
    except ConnectionResetError:
        pass
    return got


HOST = b"Host: localhost\r\n"
CLOSE = b"Connection: close\r\n"
FORM = b"Content-Type: application/x-www-form-urlencoded\r\n"
SMUGGLED = b"GET /queue?q=smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("request_", [
    b"GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n0\r\n\r\n" + SMUGGLED,
    b"POST /queues HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: 4\r\nContent-Length: 400\r\n\r\na=bc" + SMUGGLED,
    b"POST /queues HTTP/1.1\r\n" + HOST + FORM + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    b"POST /queues HTTP/1.1\r\n" + HOST + FORM + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    b"POST /queues HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: +4\r\n\r\na=bc" + SMUGGLED,
    b"POST /queues HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: -1\r\n\r\n" + SMUGGLED,
    b"POST /queues HTTP/1.1\r\n" + HOST + FORM + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n" + SMUGGLED,
    b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b" folded: yes\r\n\tx\0y: z\r\n\r\n",
    b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    b"GET\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
    b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 100_000 + b"\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 40_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 3_000 + b"\r\n",
    b"GET /?" + b"a" * 40_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
], ids=range(19))  # fmt: skip
def test_refused_requests(web: WebProcess, browser: httpx.Client, request_: bytes) -> None:
    """A request that could be read in two ways, or is too large, is refused, and nothing behind it is answered."""
    answer = raw(web, request_)
    assert answer == b"" or answer.split()[1] in {b"400", b"431", b"413", b"501", b"505"}, answer[:200]
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert b"smuggled" not in answer
    assert browser.get("/").status_code == 200


@pytest.mark.parametrize("target", [
    b"http://evil.example/", b"http://localhost/", b"*", b"//evil.example/%2e%2e", b"/%00", b"/..%2f..%2fetc/passwd",
    b"/static/..%2fapp.py", b"/static/%2e%2e/app.py", b"/./queue?q=x", b"/queue;x=y?q=x", b"/\xc3\xa9",
])  # fmt: skip
def test_odd_paths(web: WebProcess, target: bytes) -> None:
    """A path that is none of the page's leads to nothing."""
    answer = raw(web, b"GET " + target + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
    assert answer.split()[1] in {b"400", b"404", b"421"}
    assert b"root:" not in answer
    assert b"def make_app" not in answer


def test_websockets(web: WebProcess) -> None:
    """A websocket is refused: a proxy would not look into it."""
    answer = raw(
        web, b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )  # fmt: skip
    assert b"<!doctype" not in answer
    assert b"101" not in answer.partition(b"\r\n")[0]


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a client begins HTTP/2 with, and settings, which the server would answer with its own."""


def is_no_http_2(answer: bytes) -> bool:
    """Tells whether an answer to the preface is a refusal. The connection may end before that is read."""
    return answer == b"" or answer.startswith((b"HTTP/1.1 505 ", b"HTTP/1.1 400 "))


def test_no_http_2_upgrade(web: WebProcess) -> None:
    """The wish for an upgrade to HTTP/2, which some clients send with every request, is ignored: the answer is one of
    HTTP/1.1."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    answer = raw(web, b"GET /livez HTTP/1.1\r\n" + HOST + upgrade + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer


def test_no_http_2_without_asking(web: WebProcess) -> None:
    """A client that begins with HTTP/2 at once is refused in HTTP/1.1."""
    assert is_no_http_2(raw(web, _PREFACE))


def test_no_http_2_over_tls(shared_server: ServerProcess, tmp_path: Path) -> None:
    """Over TLS the page chooses HTTP/1.1 from what a client offers, and speaks it whatever the client begins with."""
    with web_serving(tmp_path, shared_server, *tls_flags()) as web:
        context = ssl.create_default_context(cafile=authority().cert)
        for offered in (["h2", "http/1.1"], ["h2"]):
            context.set_alpn_protocols(offered)
            with web.connect() as plain, context.wrap_socket(plain, server_hostname="localhost") as connected:
                assert connected.selected_alpn_protocol() == ("http/1.1" if "http/1.1" in offered else None)
                connected.sendall(_PREFACE)
                assert is_no_http_2(connected.recv(65536))


@pytest.mark.parametrize(("path", "size", "status"), [
    ("/queues", 600_000, 413), ("/sign-in", 600_000, 413), ("/push?q=x", 28_000_000, 413),
])  # fmt: skip
def test_large_forms(browser: httpx.Client, path: str, size: int, status: int) -> None:
    """A form is read up to a bound, however it is sent."""
    head = {"content-type": "application/x-www-form-urlencoded"}

    def chunks() -> list[bytes]:
        return [b"a=" + b"x" * 50_000] * (size // 50_000)

    for content in (b"".join(chunks()), iter(chunks())):
        try:
            answer = browser.post(path, content=content, headers=head)
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            continue  # it was closed before all was sent
        assert answer.status_code == status


def test_many_fields(browser: httpx.Client) -> None:
    """A form has a bounded number of fields."""
    answer = browser.post("/queues", content=b"&".join([b"q=a"] * 5000), headers={
        "content-type": "application/x-www-form-urlencoded"
    })  # fmt: skip
    assert answer.status_code == 400


@pytest.mark.parametrize(("kind", "body", "status"), [
    ("application/json", b"{}", 415), ("multipart/form-data; boundary=x", b"--x--", 415), ("text/plain", b"a=b", 415),
    ("", b"a=b", 415), ("application/x-www-form-urlencoded", b"\xff\xfe=1", 400),
    ("application/x-www-form-urlencoded", b"a=%ff", 400),
])  # fmt: skip
def test_forms_that_are_none(browser: httpx.Client, kind: str, body: bytes, status: int) -> None:
    """Only what a form of the page sends is read."""
    assert browser.post("/queues", content=body, headers={"content-type": kind}).status_code == status


@pytest.mark.slow  # 20 s: how long the page waits for a form
def test_slow_headers_and_a_slow_form(web: WebProcess, browser: httpx.Client) -> None:
    """Connections that do not send a whole request are closed, after 10 s; a form that does not come is refused with
    408. Others are answered meanwhile."""
    with web.connect(timeout=60) as form:
        form.sendall(b"POST /queues HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: 100\r\n\r\nq=")
        waiting = [web.connect(timeout=30) for _ in range(50)]
        for connected in waiting:
            connected.sendall(b"GET / HTTP/1.1\r\n" + HOST)
        assert browser.get("/").status_code == 200
        for connected in waiting:
            assert b"200" not in read_all(connected)[:20]
            connected.close()
        assert form.recv(65536).split()[1] == b"408"


@pytest.mark.slow  # 15 s: how long the page waits for somebody who reads nothing, and some more
def test_nobody_reads(shared_server: ServerProcess, tmp_path: Path) -> None:
    """A browser that does not read its answers holds up nobody, and not the end of the page."""
    with web_serving(tmp_path, shared_server) as web, visitor(web) as browser:
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect((web.host, web.port))
        stuck.settimeout(1)
        try:
            for _ in range(2000):
                stuck.sendall(b"GET /static/page.css HTTP/1.1\r\n" + HOST + b"\r\n")
        except TimeoutError:
            pass  # the page does not read on
        assert browser.get("/").status_code == 200
        assert web.stop() == 0
        stuck.close()


def test_cut_off(web: WebProcess, browser: httpx.Client) -> None:
    """Connections that are reset in the middle of a request leave nothing behind."""
    for data in (b"", b"GET / HT", b"POST /queues HTTP/1.1\r\n" + HOST + FORM + b"Content-Length: 100\r\n\r\nq="):
        connected = web.connect()
        connected.sendall(data)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connected.close()
    assert browser.get("/").status_code == 200
