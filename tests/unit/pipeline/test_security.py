"""TLS and tokens of Spark's processes: what they read and show, and errors about files that cannot be used."""

import pickle
from argparse import Namespace
from pathlib import Path

import pytest
from support.servers.tls import authority, local

from qs_pipeline.arguments import parse
from qs_pipeline.errors import UsageError
from qs_pipeline.options import parse_options
from qs_pipeline.security import OPEN, QueueServer, Security, security_of
from qs_schemas.addresses import server_address

TOKEN = "qs_" + "0123456789" * 4


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    """A file with the token, for its owner only."""
    path = tmp_path / "job.token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables with tokens and CAs, so that there are only those that a test sets."""
    for name in ("QS_TOKEN", "QS_TOKEN_FILE", "QS_CA"):
        monkeypatch.delenv(name, raising=False)


def token_of(server: QueueServer) -> str | None:
    """The token that the server's client has."""
    token = server.client().token
    return None if token is None else token.reveal()


@pytest.mark.parametrize(
    "security",
    [
        OPEN,
        Security(tls=True),
        Security(ca="ca.pem", token_file="t"),
        Security(True, "ca.pem", "c.pem", "c.key", "t", True),
    ],
)
def test_options_round_trip(security: Security) -> None:
    """The options that lead to a server are read as the same server."""
    server = QueueServer("h", 7, security)
    assert parse_options({"queue": "q", **server.options()}).server == server


def test_security_of_flags() -> None:
    """`qs-pipeline`'s flags and the scheme of its address say the same as the options."""
    given = ["--ca", "ca.pem", "--cert", "c.pem", "--client-key", "c.key", "--token-file", "t"]
    arguments = parse(["archive", "q", "--to", "d", "-s", "qss://h:7", *given])
    assert arguments.server == ("h", 7)
    assert arguments.security == Security(True, "ca.pem", "c.pem", "c.key", "t")
    assert parse(["archive", "q", "--to", "d"]).security == OPEN


def test_parse_refuses_key_without_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    """A key without its certificate is wrong usage, found before Spark starts."""
    with pytest.raises(SystemExit):
        parse(["archive", "q", "--to", "d", "--client-key", "c.key"])
    assert "give --cert too" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["archive", "q", "--to", "d", "--key", "k"], ["--key", "k", "archive", "q", "--to", "d"]]
)
def test_parse_refuses_flag_key(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--key is wrong usage, and the error names the flag of a certificate's key."""
    with pytest.raises(SystemExit):
        parse(argv)
    assert "is --client-key FILE" in capsys.readouterr().err


def test_security_of_no_flags() -> None:
    """A caller without these flags means no TLS, unless the address asks for it."""
    assert security_of(Namespace(), server_address("h:7", 1)) == OPEN
    assert security_of(Namespace(), server_address("qss://h:7", 1)) == Security(tls=True)


def test_client_takes_token_of_file_or_environment(
    token_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token comes from the file of the option; else from the process's own QS_TOKEN, or the file that its
    QS_TOKEN_FILE names."""
    assert token_of(QueueServer()) is None
    assert token_of(QueueServer(security=Security(token_file=token_file))) == TOKEN
    other = tmp_path / "other"
    other.write_text("qs_other")
    other.chmod(0o600)
    monkeypatch.setenv("QS_TOKEN_FILE", str(other))
    assert token_of(QueueServer()) == "qs_other"
    monkeypatch.setenv("QS_TOKEN", "qs_variable")
    assert token_of(QueueServer()) == "qs_variable"
    assert token_of(QueueServer(security=Security(token_file=token_file))) == TOKEN


def test_repr_and_pickle_have_no_token(token_file: str) -> None:
    """Neither repr nor pickle of the objects that Spark passes on has the token."""
    server = QueueServer(security=Security(ca=str(authority().cert), token_file=token_file))
    options = parse_options({"queue": "q", **server.options()})
    client = server.client()
    shown = repr([server, options, server.options(), client, vars(client), client.token]).encode()
    assert TOKEN.encode() not in shown + pickle.dumps([server, options])
    with pytest.raises(TypeError):
        pickle.dumps(client.token)


@pytest.mark.parametrize(
    ("security", "said"),
    [
        (Security(token_file="/nowhere/t"), "/nowhere/t: No such file or directory"),
        (Security(token_file="TWO"), "TWO: a token has no spaces, line ends"),
        (Security(ca="/nowhere/ca.pem"), "/nowhere/ca.pem: No such file or directory"),
        (Security(ca="TWO"), "TWO: no CA certificates in PEM format"),
        (Security(cert="CERT", client_key="OTHER"), "the key does not belong to the certificate"),
        (Security(cert="CERT", client_key="/nowhere/k"), "/nowhere/k: No such file or directory"),
    ],
)
def test_client_names_unusable_file(security: Security, said: str, tmp_path: Path) -> None:
    """The error names the file, and shows nothing of it."""
    two = tmp_path / "TWO"
    two.write_text(f"{TOKEN}\n{TOKEN}\n")
    two.chmod(0o600)
    paths = {"TWO": str(two), "CERT": str(local().cert), "OTHER": str(authority().sign("DNS:other").key)}
    files = {name: getattr(security, name) for name in ("ca", "cert", "client_key", "token_file")}
    given = Security(**{name: paths.get(path, path) for name, path in files.items()})
    with pytest.raises(UsageError) as raised:
        QueueServer(security=given).client()
    assert said in str(raised.value)
    assert TOKEN not in str(raised.value)


def test_client_warns_of_readable_token_file(token_file: str, caplog: pytest.LogCaptureFixture) -> None:
    """A warning says so; the token works."""
    Path(token_file).chmod(0o644)
    assert token_of(QueueServer(security=Security(token_file=token_file))) == TOKEN
    assert "everybody on this machine can read the token" in caplog.text
    assert TOKEN not in caplog.text
