"""Tests what keeps other sites, other machines and proxies from misusing the page: headers, names, paths, TLS."""

import ssl
from pathlib import Path

import httpx
import pytest
from support.servers.processes import ServerProcess
from support.servers.tls import authority, local
from support.servers.web import WebProcess, visitor, web_serving

from qs_client import QueueClient
from qs_testing.programs import StartFailedError


@pytest.mark.parametrize("path", ["/", "/queue?q=missing", "/sign-in", "/static/page.js", "/nothing", "/static/none"])
def test_headers_of_every_answer(browser: httpx.Client, path: str) -> None:
    """Every answer forbids what a page of this kind never does."""
    headers = browser.get(path).headers
    assert headers["content-security-policy"] == (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers


def test_a_refused_form_does_not_end_the_connection(web: WebProcess) -> None:
    """The rest of a refused body is read, so that the next request on the connection is answered. A body that does not
    come ends the connection, and the answer says so."""
    head = b"POST /nothing HTTP/1.1\r\nHost: %s\r\nContent-Length: 4\r\n\r\n" % web.url.partition("//")[2].encode()
    with web.connect() as connection:
        for body in (b"a=bc", b""):
            connection.sendall(head)
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(20)
            connection.sendall(body)
            answer = b""
            while b"</html>" not in answer:
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 404")
            assert (b"connection: close" in answer) is (not body)


def test_what_browsers_keep(browser: httpx.Client) -> None:
    """Pages are kept nowhere. The script and the style sheet are kept under an address that changes with them."""
    page = browser.get("/")
    assert page.headers["cache-control"] == "no-store"
    (style,) = [part.split('"')[0] for part in page.text.split('rel="stylesheet" href="')[1:]]
    assert browser.get(style).headers["cache-control"] == "public, max-age=31536000, immutable"
    assert browser.get(style.partition("?")[0]).headers["cache-control"] == "no-cache"


def test_nothing_inline(browser: httpx.Client, client: QueueClient, qid: str) -> None:
    """The pages have no script, style or handler in them, as the policy wants it, and name no other host."""
    mid = client.push(qid, "x")
    for path in ("/", f"/queue?q={qid}", f"/message?q={qid}&id={mid}", "/server", "/sign-in"):
        page = browser.get(path).text
        assert " style=" not in page
        assert "<style" not in page
        assert " onclick=" not in page
        assert page.count("<script") == page.count('<script src="/static/') == 1
        assert "http://" not in page
        assert "https://" not in page


@pytest.mark.parametrize(("headers", "status"), [
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site"}, 403),
    ({"sec-fetch-site": "none"}, 403),
    ({"sec-fetch-site": "same-origin", "origin": "http://evil.example"}, 303),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://127.0.0.1:1"}, 403),
    ({"origin": "http://["}, 403),
    ({"sec-fetch-site": "same-origin"}, 303),
    ({}, 303),
])  # fmt: skip
def test_requests_of_other_sites(browser: httpx.Client, qid: str, headers: dict[str, str], status: int) -> None:
    """A form that another site has sent is refused."""
    answer = browser.post("/queues", data={"do": "pause", "q": qid}, headers=headers)
    assert answer.status_code == status


def test_our_own_origin(browser: httpx.Client, qid: str) -> None:
    """A browser without Sec-Fetch-Site is known by its origin."""
    answer = browser.post(
        "/queues", data={"do": "pause", "q": qid}, headers={"origin": str(browser.base_url).rstrip("/")}
    )
    assert answer.status_code == 303


@pytest.mark.parametrize(("host", "status"), [
    ("evil.example", 421), ("evil.example:80", 421), ("127.0.0.1.evil.example", 421), ("", 421), ("[::1", 421),
    ("localhost", 200), ("LOCALHOST:1234", 200), ("127.0.0.1", 200), ("[::1]:9880", 200), ("10.0.0.1", 421),
    ("localhost:1@evil.example", 421), ("localhost:x", 421),
])  # fmt: skip
def test_wrong_names(browser: httpx.Client, host: str, status: int) -> None:
    """The page answers only to names that it listens on: a name of another site that leads here is none."""
    assert browser.get("/sign-in", headers={"host": host}).status_code == status
    assert browser.get("/livez", headers={"host": host}).status_code in {status, 404}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "FOO"])
def test_methods(browser: httpx.Client, method: str) -> None:
    """GET, HEAD and POST, and nothing else."""
    assert browser.request(method, "/").status_code == 405


def test_read_only(shared_server: ServerProcess, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """--read-only shows everything and changes nothing: there are no forms, and what sends one is refused."""
    mid = client.push(qid, "x")
    with web_serving(tmp_path, shared_server, "--read-only") as web, visitor(web) as browser:
        for path in ("/", f"/queue?q={qid}", f"/message?q={qid}&id={mid}"):
            page = browser.get(path)
            assert page.status_code == 200
            assert 'method="post"' not in page.text
            assert "read-only" in page.text
        for path in (
            "/queues",
            "/new",
            f"/push?q={qid}",
            f"/options?q={qid}",
            f"/redrive?q={qid}",
            f"/messages?q={qid}",
        ):
            answer = browser.post(path, data={"do": "delete", "q": qid, "id": str(mid), "sure": "yes"})
            assert answer.status_code == 403
            assert "read-only" in answer.text
        assert list(client.list_messages(qid)) == [mid]


def test_under_a_path(shared_server: ServerProcess, client: QueueClient, qid: str, tmp_path: Path) -> None:
    """Behind a proxy, under a path and another name: every link, form and redirect stays under the path."""
    client.push(qid, "x")
    flags = ("--path", "/ops/queues/", "--allow-host", "queues.example", "--allow-host", "other.example:8443")
    with web_serving(tmp_path, shared_server, *flags) as web, visitor(web) as browser:
        browser.headers["host"] = "queues.example"
        page = browser.get("/ops/queues/")
        assert page.status_code == 200
        shown = browser.get("/ops/queues/queue", params={"q": qid}).text
        for text in (page.text, shown):
            for attribute in (' href="', ' action="', ' src="'):
                for part in text.split(attribute)[1:]:
                    assert part.startswith(("/ops/queues/", "#")), part[:60]
        answer = browser.post("/ops/queues/queues", data={"do": "pause", "q": qid})
        assert answer.headers["location"].startswith("/ops/queues/?done=paused")
        assert browser.get("/ops/queues").headers["location"] == "/ops/queues/"
        assert browser.get("/").status_code == 404
        assert browser.get("/ops/queues/", headers={"host": "other.example:8443"}).status_code == 200
        assert browser.get("/ops/queues/", headers={"host": "other.example"}).status_code == 421


def test_tls(shared_server: ServerProcess, tmp_path: Path) -> None:
    """With a certificate the page speaks TLS and nothing else."""
    flags = ("--tls-cert", str(local().cert), "--tls-key", str(local().key))
    with web_serving(tmp_path, shared_server, *flags) as web:
        url = f"https://localhost:{web.port}"
        context = authority().trusting()
        context.set_alpn_protocols(["h2", "http/1.1"])
        with httpx.Client(base_url=url, verify=context, timeout=20) as browser:
            assert browser.get("/").status_code == 200
            answer = browser.post("/queues", data={"do": "pause"}, headers={"origin": url})
            assert answer.status_code == 303
            assert browser.post("/queues", data={"do": "pause"}, headers={"origin": "https://x"}).status_code == 403
        with pytest.raises(httpx.HTTPError), httpx.Client(base_url=f"http://localhost:{web.port}") as plain:
            plain.get("/")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.set_ciphers("AES128-SHA:@SECLEVEL=0")
        with web.connect() as raw, pytest.raises(ssl.SSLError):
            old.wrap_socket(raw)


def test_a_new_certificate(shared_server: ServerProcess, tmp_path: Path) -> None:
    """SIGHUP reads the certificate again, for connections that begin after it."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(local().cert.read_bytes())
    key.write_bytes(local().key.read_bytes())
    with web_serving(tmp_path, shared_server, "-v", "--tls-cert", str(cert), "--tls-key", str(key)) as web:

        def serial() -> str:
            with authority().trusting().wrap_socket(web.connect(), server_hostname="localhost") as connected:
                found = connected.getpeercert()
                assert found is not None
                return str(found["serialNumber"])

        before = serial()
        new = authority().sign("DNS:localhost")
        cert.write_bytes(new.cert.read_bytes())
        key.write_bytes(new.key.read_bytes())
        web.process.send_signal(1)
        web.until_logged("after SIGHUP")
        assert serial() != before


@pytest.mark.parametrize("flags", [
    ["--path", "queues"], ["--path", "/a/../b"], ["--path", "/a b"], ["--allow-host", "http://x"], ["--tls-cert", "x"],
    ["--server-token", "secret"], ["--bus", "nowhere:port"], ["--server-key", "k"],
])  # fmt: skip
def test_wrong_flags(shared_server: ServerProcess, tmp_path: Path, flags: list[str]) -> None:
    """A wrong flag ends the command at once, with a line."""
    with pytest.raises(StartFailedError, match=r"queue-web\.py: "), web_serving(tmp_path, shared_server, *flags):
        pass


def test_other_machines_sign_in(shared_server: ServerProcess, tmp_path: Path) -> None:
    """A page that other machines reach shows nothing before a sign-in, unless --open says that it may."""
    host = ("--host", "0.0.0.0")
    with web_serving(tmp_path, shared_server, *host) as web, here(web) as browser:
        assert browser.get("/").status_code == 401
        assert browser.post("/new", data={"q": "x"}).status_code == 401
        assert browser.get("/", headers={"host": "evil.example"}).status_code == 421
        assert browser.get("/", headers={"host": "192.0.2.7:9880"}).status_code == 401
    with web_serving(tmp_path, shared_server, *host, "--open") as web, here(web) as browser:
        assert browser.get("/").status_code == 200


def here(web: WebProcess) -> httpx.Client:
    """A browser on the machine of a page that listens on all its addresses."""
    return httpx.Client(base_url=f"http://127.0.0.1:{web.port}", timeout=20)
