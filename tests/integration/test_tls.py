"""TLS of real processes, of the server and of the bus, spoken to by openssl: what gets in, and what does not."""

import ssl
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from support.servers.processes import FAST, Listening, ServerProcess, Wire, bus_serving, run_bus, run_server, serving
from support.servers.tls import (
    LOCAL,
    PING,
    Authority,
    Certificate,
    OpenSslClient,
    TlsWire,
    authority,
    hello,
    openssl,
    speak_raw,
    tls_flags,
)

WEAK = (
    "AES128-SHA", "AES256-SHA256", "AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA", "ECDHE-RSA-AES256-SHA384",
    "DHE-RSA-AES128-GCM-SHA256", "ADH-AES128-GCM-SHA256", "AECDH-AES128-SHA", "NULL-SHA256", "PSK-AES128-GCM-SHA256",
)  # fmt: skip
"""Ciphers of TLS 1.2 without forward secrecy, without authenticated encryption, or without authentication."""


@cache
def rsa() -> Certificate:
    return authority().sign(*LOCAL, rsa=True)


@pytest.fixture(scope="module", params=["server", "bus"])
def secure(request: pytest.FixtureRequest, shared_server: ServerProcess) -> Iterator[Listening]:
    """A server or a bus that speaks TLS, with a key that all ciphers can use."""
    flags = (*tls_flags(rsa()), "-vv")
    if request.param == "bus":
        with bus_serving(shared_server, *flags) as bus:
            yield bus
    else:
        with serving(shared_server.root.parent / "secure", *FAST, *flags) as server:
            yield server


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_versions(secure: Listening, version: str) -> None:
    """TLS 1.2 and 1.3 are spoken."""
    answer, code, said = openssl(secure, version)
    assert answer.startswith("<qs "), said
    assert code == 0


@pytest.mark.parametrize("cipher", ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"])
def test_good_ciphers(secure: Listening, cipher: str) -> None:
    """Connections with these ciphers of TLS 1.2 are accepted."""
    assert openssl(secure, "-tls1_2", "-cipher", cipher)[0].startswith("<qs ")


@pytest.mark.parametrize("cipher", WEAK)
def test_weak_ciphers(secure: Listening, cipher: str) -> None:
    """A client that can do no better is refused."""
    psk = ("-psk", "00") if cipher.startswith("PSK") else ()
    answer, code, said = openssl(secure, "-tls1_2", "-cipher", f"{cipher}:@SECLEVEL=0", *psk)
    assert (answer, code) == ("", 1)
    assert "handshake failure" in said


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_old_versions(secure: Listening, version: str) -> None:
    """Older versions are refused."""
    answer, code, said = openssl(secure, version, "-cipher", "ALL:@SECLEVEL=0")
    assert (answer, code) == ("", 1)
    assert "alert protocol version" in said


@pytest.mark.parametrize("version", [(3, 0), (3, 1), (3, 2)])
def test_hellos_of_old_programs(secure: Listening, version: tuple[int, int]) -> None:
    """Programs that know nothing later than SSL 3, TLS 1.0 or 1.1 get an alert that says so, and the end."""
    answer = speak_raw(secure, hello(version))
    assert answer[0] == 21
    assert answer[5:] in (b"\x02\x28", b"\x02\x46")  # fatal: handshake failure, protocol version


def test_no_tls(secure: Listening) -> None:
    """A client that speaks something else is disconnected at once without an answer."""
    for data in (PING.encode(), b"GET / HTTP/1.1\r\n\r\n", b"\x80\x2e\x01\x00\x02\x00", bytes(100)):
        assert speak_raw(secure, data) == b""
    assert openssl(secure)[0].startswith("<qs ")


def test_the_log_of_handshakes(secure: Listening) -> None:
    """With -vv, a line names each refused client, and the reason."""
    with secure.connect() as connected:
        port = connected.getsockname()[1]
        connected.sendall(b"GET")
        assert connected.recv(1) == b""
    assert f"127.0.0.1:{port}: no TLS handshake: the client does not speak TLS" in secure.log()


def test_what_the_client_does_not_accept(secure: Listening, tmp_path: Path) -> None:
    """`openssl` finds the wrong CA and the wrong name; other clients are served on."""
    with TlsWire(secure) as other:
        stranger = Authority(tmp_path / "other", "another CA")
        for flags, says in (
            (("-CAfile", stranger.cert), "unable to get local issuer certificate"),
            (("-verify_hostname", "example.org"), "hostname mismatch"),
        ):
            answer, code, said = openssl(secure, *flags)
            assert (answer, code) == ("", 1)
            assert says in said.lower()
        assert other.ask().startswith("<qs ")


def test_renegotiation(secure: Listening) -> None:
    """A renegotiation of a TLS 1.2 client is refused."""
    client = OpenSslClient(secure, "-tls1_2", "-CAfile", authority().cert)
    client.ask("R\n")
    code, said = client.end()
    assert code == 1
    assert "no renegotiation" in said
    assert openssl(secure)[0].startswith("<qs ")


def test_nothing_that_could_be_resumed_later(secure: Listening) -> None:
    """There are no tickets, whose key would outlive sessions, and no compression."""
    for version in ("-tls1_2", "-tls1_3"):
        client = OpenSslClient(secure, version, "-CAfile", authority().cert, "-no_ign_eof")
        _, said = client.end()
        assert "Verify return code: 0 (ok)" in said
        assert "session ticket:" not in said.lower()
        assert "Compression: NONE" in said


def test_an_oversized_record(secure: Listening) -> None:
    """A record that is longer than TLS allows ends its connection, whatever it says of its length; nothing else."""
    context = authority().trusting()
    for size in (16 * 1024 + 2048 + 1, 65535):
        with secure.connect() as connected, TlsWire(secure) as other:
            wrapped = context.wrap_socket(connected.dup(), server_hostname="localhost")
            connected.sendall(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size))
            with wrapped, pytest.raises(ssl.SSLError, match="RECORD_OVERFLOW"):
                wrapped.recv(100)
            assert other.ask().startswith("<qs ")


def test_tls_on_the_plain_port(shared_server: ServerProcess) -> None:
    """A TLS client on a port without TLS gets an error in XML, and the port serves on."""
    answer = speak_raw(shared_server, hello((3, 3)))
    assert b'type="error"' in answer
    assert b"400" in answer
    with Wire(shared_server) as wire:
        assert "<ping/>" in wire.ask(PING)


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_client_certificates(shared_server: ServerProcess, tmp_path: Path, version: str) -> None:
    """With --tls-client-ca, clients need a certificate of that CA, which has not expired and is for clients."""
    clients = Authority(tmp_path / "clients", "a CA of clients")
    good = clients.sign("DNS:billing.example")
    refused = (
        (Authority(tmp_path / "other", "another CA").sign("DNS:billing.example"), "unknown ca"),
        (clients.sign("DNS:billing.example", days=-1), "certificate expired"),
        (clients.sign("DNS:billing.example", use="serverAuth"), "unsupported certificate"),
    )
    with (
        serving(tmp_path / "root", *FAST, *tls_flags(clients_of=clients)) as server,
        bus_serving(shared_server, *tls_flags(clients_of=clients)) as bus,
    ):
        for process in (server, bus):
            assert openssl(process, version, "-cert", good.cert, "-key", good.key)[0].startswith("<qs ")
            answer, code, said = openssl(process, version)
            assert (answer, code) == ("", 1)
            assert ("certificate required" if version == "-tls1_3" else "handshake failure") in said
            for bad, says in refused:
                answer, code, said = openssl(process, version, "-cert", bad.cert, "-key", bad.key)
                assert (answer, code) == ("", 1)
                assert says in said


def test_an_expired_certificate(tmp_path: Path) -> None:
    """A server with one starts, warns, and clients refuse it."""
    expired = authority().sign(*LOCAL, days=-1)
    with serving(tmp_path / "root", *FAST, *tls_flags(expired)) as server:
        assert "has expired on" in server.log()
        answer, code, said = openssl(server)
    assert (answer, code) == ("", 1)
    assert "certificate has expired" in said


@pytest.mark.parametrize("run", [run_server, run_bus])
def test_unusable_tls_files_end_the_start(tmp_path: Path, run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """A file that cannot be used: one line, exit code 1, and nothing is made. Flags that do not fit: exit code 2."""
    _, cert, _, key = tls_flags()
    root = ("--root", str(tmp_path / "root")) if run is run_server else ()
    missing = str(tmp_path / "missing.pem")
    for flags, code, says in (
        (("--tls-cert", missing, "--tls-key", key), 1, f"cannot read --tls-cert {missing}: No such file"),
        (("--tls-cert", cert, "--tls-key", str(rsa().key)), 1, "is not the key of the certificate"),
        (("--tls-cert", cert), 2, "give both"),
        (("--tls-key", key), 2, "give both"),
        (("--tls-client-ca", cert), 2, "needs --tls-cert"),
        (("--max-handshakes", "0"), 2, "--max-handshakes"),
    ):
        done = run(*root, "--port", "0", *flags)
        assert (done.returncode, done.stdout) == (code, "")
        assert says in done.stderr.splitlines()[-1]
        if code == 1:
            assert done.stderr.count("\n") == 1
    assert not (tmp_path / "root").exists()
