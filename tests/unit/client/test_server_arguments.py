"""The flags and variables for TLS and tokens, which qs, qs-pipeline, queue-bus.py and queue-web.py share."""

import argparse
import ssl
from pathlib import Path

import pytest
from support.servers.tls import authority

from qs_client.security import PLAIN, Security, Token
from qs_client.server_arguments import add_security, check_security, make_security, server

CA = str(authority().cert)


def _made(*argv: str, address: str = "localhost:1", prefix: str = "--", **environ: str) -> tuple[Security, list[str]]:
    """Returns what the flags, an address and the variables make, and the warnings."""
    parser = argparse.ArgumentParser()
    add_security(parser, prefix)
    arguments, warned = parser.parse_args(argv), list[str]()
    check_security(arguments, server(address), prefix, environ)
    return make_security(arguments, server(address), warned.append, prefix=prefix, environ=environ), warned


def _trusts(context: ssl.SSLContext | None) -> int:
    """Returns how many CAs a context trusts."""
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    return context.cert_store_stats()["x509_ca"]


@pytest.mark.parametrize("prefix", ["--", "--server-"])
def test_make_security_with_tls(prefix: str) -> None:
    """TLS is asked for by the address, by a flag, or by QS_CA alone. Without any of them there is none."""
    assert _made(prefix=prefix) == (PLAIN, [])
    assert _made(prefix=prefix, QS_CA="") == (PLAIN, [])
    assert _trusts(_made(prefix=prefix, QS_CA=CA)[0].context) == 1
    assert _trusts(_made(f"{prefix}ca", CA, prefix=prefix)[0].context) == 1
    assert _trusts(_made(f"{prefix}tls", prefix=prefix, QS_CA=CA)[0].context) == 1
    assert _trusts(_made(address="qss://h", prefix=prefix, QS_CA=CA)[0].context) == 1
    assert _trusts(_made(f"{prefix}tls", prefix=prefix, QS_CA="")[0].context) != 1
    assert _trusts(_made(f"{prefix}ca", CA, prefix=prefix, QS_CA="/missing")[0].context) == 1
    certificate = authority().sign("DNS:me")
    key = "--client-key" if prefix == "--" else "--server-key"
    shown, _ = _made(f"{prefix}cert", str(certificate.cert), key, str(certificate.key), prefix=prefix)
    assert shown.context is not None


def test_make_security_insecure_warns() -> None:
    """--tls-insecure verifies nothing, and says so each time."""
    made, warned = _made("--tls-insecure", QS_CA="/missing")
    assert made.context is not None
    assert made.context.verify_mode == ssl.CERT_NONE
    assert len(warned) == 1
    assert "--tls-insecure: the certificate of the server is not verified" in warned[0]


@pytest.mark.parametrize(
    ("address", "warns"),
    [("queues.example", True), ("192.0.2.7", True), ("127.0.0.1", False), ("[::1]", False), ("localhost", False),
     ("qss://queues.example", False)],
)  # fmt: skip
def test_make_security_with_token_in_the_clear_warns(address: str, warns: bool) -> None:
    """A token that others on the way can read is worth a line, which does not show it."""
    _, warned = _made(address=address, QS_TOKEN="SECRET")
    assert [("without TLS" in line, "SECRET" in line) for line in warned] == [(True, False)] * warns


def test_make_security_with_tokens(tmp_path: Path) -> None:
    """A token is that of --token-file, else of QS_TOKEN, else of QS_TOKEN_FILE."""
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("of-the-file\n")
    assert _made("--token-file", str(path), QS_TOKEN="variable") == (Security(token=Token("of-the-file")), [])
    assert _made(QS_TOKEN="variable\n", QS_TOKEN_FILE=str(path)) == (Security(token=Token("variable")), [])
    assert _made(QS_TOKEN="", QS_TOKEN_FILE=str(path)) == (Security(token=Token("of-the-file")), [])
    assert _made(QS_TOKEN=" ", QS_TOKEN_FILE="") == (PLAIN, [])
    with pytest.raises(ValueError, match="QS_TOKEN: a token has no spaces") as raised:
        _made(QS_TOKEN="MARKED secret")
    assert "MARKED" not in str(raised.value)
    with pytest.raises(FileNotFoundError, match="missing"):
        _made(QS_TOKEN_FILE=str(tmp_path / "missing"))
    path.chmod(0o604)
    assert "chmod 600" in _made(QS_TOKEN_FILE=str(path))[1][0]


@pytest.mark.parametrize(
    ("argv", "address", "variables", "says"),
    [
        (["--client-key", "k"], "h", {}, "give --cert too"),
        (["--client-key", "k"], "qs://h", {}, "give --cert too"),
        (["--tls-insecure", "--ca", "x"], "h", {}, "give one of them"),
        (["--tls"], "qs://h", {}, "--tls asks for TLS: write qss://, or leave --tls out"),
        (["--ca", "x"], "qs://h", {}, "--ca asks for TLS: write qss://, or leave --ca out"),
        (["--cert", "x"], "qs://h", {}, "--cert asks for TLS"),
        (["--cert", "x", "--client-key", "k"], "qs://h", {}, "--cert and --client-key ask for TLS"),
        (["--tls-insecure"], "qs://h", {}, "--tls-insecure asks for TLS"),
        ([], "qs://h", {"QS_CA": "x"}, "QS_CA asks for TLS: write qss://, or leave QS_CA out"),
        (["--ca", "x"], "qs://h", {"QS_CA": "x"}, "write qss://, or leave --ca and QS_CA out"),
    ],
)
def test_check_security_with_contradictions(
    argv: list[str], address: str, variables: dict[str, str], says: str
) -> None:
    """Flags and variables that contradict each other or the address are wrong usage; no file is read for that."""
    with pytest.raises(ValueError, match=says):
        _made(*argv, address=address, **variables)
    parser = argparse.ArgumentParser()
    add_security(parser)
    arguments = parser.parse_args(argv)
    with pytest.raises(ValueError, match=says):  # also where nothing was checked before
        make_security(arguments, server(address), print, environ=variables)


@pytest.mark.parametrize("flag", ["--ca", "--cert", "--client-key", "--token-file"])
def test_add_security_with_empty_names(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag with an empty name, as of an unset variable, is wrong usage: it does not turn TLS off."""
    with pytest.raises(SystemExit):
        _made(flag, "")
    assert f"argument {flag}: the name of the file is empty" in capsys.readouterr().err
