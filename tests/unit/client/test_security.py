"""TLS and tokens as clients are given them: what is taken, what is refused, and that no text shows a token."""

import copy
import pickle
import ssl
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from support.servers.tls import authority

from qs_client import AsyncBusClient, AsyncQueueClient, Authenticate, BusClient, QueueClient
from qs_client.security import PLAIN, Security, Token, read_token, security
from qs_client.tls import client_context, show_certificate, unverified_context

SECRET = "qs_MARKED-a-secret"
CA = str(authority().cert)
CLIENTS = [QueueClient, AsyncQueueClient, BusClient, AsyncBusClient]


def _nothing(text: str) -> None:
    raise AssertionError(f"there is nothing to warn about: {text}")


@pytest.mark.parametrize("make", CLIENTS)
def test_token_is_shown_nowhere(make: type[QueueClient]) -> None:
    """Neither a client nor its settings nor the request shows the token; a pickle would."""
    client = make(token=SECRET)
    for each in (client, client.security, client.token, vars(client), Authenticate(SECRET), Security(None, Token("x"))):
        assert "MARKED" not in repr(each)
        assert "MARKED" not in str(each)
    assert client.token == Token(SECRET)
    assert client.token != Token("other")
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="token is not pickled") as raised:
            write(client.security)
        assert "MARKED" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "text", ["", "MARKED" * 200, "MARKED secret", "MARKED\n", "MARKED\x00", "MARKED\u2028", b"MARKED", 1]
)
def test_token_malformed(text: object) -> None:
    """A token is text of 1 to 1024 characters, none of them a space; the error does not show it."""
    with pytest.raises((ValueError, TypeError), match="token") as raised:
        QueueClient(token=text)  # type: ignore[arg-type]
    assert "MARKED" not in str(raised.value)


def test_read_token(tmp_path: Path) -> None:
    """A token file holds the token, and maybe line ends; one that everybody can read is worth a warning."""
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o640)
    assert read_token(path, _nothing).reveal() == SECRET
    path.chmod(0o644)
    warned: list[str] = []
    assert read_token(path, warned.append).reveal() == SECRET
    assert warned == [f"everybody on this machine can read the token in {path}: chmod 600 {path}"]


@pytest.mark.parametrize("data", [b"", b"\n", b"MARKED\nanother\n", b"MARKED\xff", b"MARKED" * 1000])
def test_read_token_from_a_file_without_one(tmp_path: Path, data: bytes) -> None:
    """An error names the file and shows nothing of it."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=str(path)) as raised:
        read_token(path, _nothing)
    assert "MARKED" not in "".join(traceback.format_exception(raised.value))
    with pytest.raises(FileNotFoundError, match="missing"):
        read_token(tmp_path / "missing", _nothing)


def test_client_context_verifies(tmp_path: Path) -> None:
    """Every context that is made verifies certificates and names, but for the one that says so."""
    assert security(None, None) == security(False, None) == PLAIN
    hashed = tmp_path / "cas"
    hashed.mkdir()
    for tls in (True, authority().cert, str(authority().cert), hashed):
        context = client_context(tls)
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert client_context(context) is context
    assert not unverified_context().check_hostname


def test_client_context_with_files_without_certificates(tmp_path: Path) -> None:
    """An error names the file, and what it should hold."""
    path, certificate, other = tmp_path / "x.pem", authority().sign("DNS:me"), authority().sign("DNS:other")
    context = client_context(True)
    with pytest.raises(FileNotFoundError, match=r"x\.pem"):
        QueueClient(tls=path)
    with pytest.raises(FileNotFoundError, match=r"x\.pem"):
        show_certificate(context, str(certificate.cert), str(path))
    path.write_text("no certificate")
    with pytest.raises(ValueError, match=r"x\.pem: no CA certificates in PEM format"):
        QueueClient(tls=path)
    with pytest.raises(ValueError, match=r"x\.pem: no certificate with its key"):
        show_certificate(context, str(path), None)
    with pytest.raises(ValueError, match="does not belong to the certificate"):
        show_certificate(context, str(certificate.cert), str(other.key))
    subprocess.run(
        ["openssl", "ec", "-in", str(other.key), "-aes256", "-passout", "pass:x", "-out", str(path)],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="has a passphrase"):
        show_certificate(context, str(other.cert), str(path))
    show_certificate(context, str(certificate.chain), None)
    with pytest.raises(TypeError, match="tls is True, a path"):
        QueueClient(tls=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", CLIENTS)
def test_settings_with_a_scheme(make: type[QueueClient]) -> None:
    """The host may be an address with a scheme; its port counts, and contradictions are refused."""
    client = make("qss://example.org:7")
    assert (client.host, client.port) == ("example.org", 7)
    assert client.security.context is not None
    assert make("qs://[::1]", 8).port == 8
    assert make("qs://[::1]", tls=False).security == PLAIN
    for host, tls in (("qs://h", True), ("qss://h", False)):
        with pytest.raises(ValueError, match="write qs"):
            make(host, tls=tls)
    for host in ("http://h", "qss://h/path", "qss://h:x", "qss://user:MARKED@h", "qs://"):
        with pytest.raises(ValueError, match=r"qss?://|password|HOST:PORT") as raised:
            make(host)
        assert "MARKED" not in str(raised.value)
    with pytest.raises(ValueError, match=r"only a new client|no user"):
        client.host = "qss://user:MARKED@h"


@pytest.mark.parametrize(
    "program",
    [
        "import qs_client; qs_client.QueueClient(token='x')",
        "from qs_client.command import main; main(['token'])",
        "from qs_client.command import main; main(['-s', '127.0.0.1:1', 'ping'])",
    ],
)
def test_import_without_tls_leaves_ssl_out(program: str) -> None:
    """`ssl` takes long to import: a client without TLS does not, and neither does qs."""
    check = f"{program}; import sys; sys.exit('ssl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
