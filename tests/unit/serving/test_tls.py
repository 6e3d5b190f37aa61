"""The files of a server's TLS: their use, and the errors about unusable ones."""

import logging
import re
import ssl
from pathlib import Path

import pytest
from support.servers.tls import LOCAL, Certificate, authority, local, shake_hands

from qs_schemas.tls import TlsChannel
from qs_serving.errors import StartError
from qs_serving.tls import ServerTls, TlsFiles


def files(certificate: Certificate, client_ca: Path | None = None) -> TlsFiles:
    return TlsFiles(str(certificate.cert), str(certificate.key), None if client_ca is None else str(client_ca))


def shown(tls: ServerTls) -> tuple[str, ...]:
    """Returns the names in the certificate that a client is shown."""
    context = authority().trusting()
    context.check_hostname = False
    client = TlsChannel(context)
    shake_hands(client, tls.new_channel())
    return client.peer_names()


def test_new_channel_completes_a_session() -> None:
    """A channel completes its handshake with a client that trusts the certificate."""
    tls = ServerTls(files(local()))
    assert shown(tls) == ("localhost",)
    assert tls.warnings == []
    assert f"{local().cert}: a certificate for localhost, 127.0.0.1, 0:0:0:0:0:0:0:1, until 20" in tls.about


def test_reload_takes_one_file_for_certificate_and_key() -> None:
    """Certificate and key may be in one file."""
    both = local().chain
    assert shown(ServerTls(TlsFiles(str(both), str(both)))) == ("localhost",)


def test_context_allows_modern_versions_and_ciphers() -> None:
    """TLS 1.2 or later without renegotiation, compression or tickets; ciphers with forward secrecy."""
    context = ServerTls(files(local()))._context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION, ssl.OP_NO_TICKET):
        assert context.options & option
    assert context.num_tickets == 0
    old = [cipher for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert old
    for cipher in old:
        assert cipher["name"].startswith("ECDHE-")
        assert cipher["aead"]


def _write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_reload_refuses_unusable_files(tmp_path: Path) -> None:
    """One line names the flag and the file, and says what is wrong. It shows nothing of a key."""
    good = files(local())
    missing = str(tmp_path / "missing.pem")
    text = _write(tmp_path / "text.pem", "no certificate\n")
    broken = "-----BEGIN {0}-----\nAAAA\n-----END {0}-----\n"
    bad_cert = _write(tmp_path / "bad.pem", broken.format("CERTIFICATE"))
    bad_key = _write(tmp_path / "bad.key", broken.format("PRIVATE KEY"))
    locked = _write(tmp_path / "locked.key", local().locked_key())
    other = str(authority().sign(*LOCAL).key)
    for bad, says in (
        (TlsFiles(missing, good.key), f"cannot read --tls-cert {missing}: No such file or directory"),
        (TlsFiles(str(tmp_path), good.key), f"cannot read --tls-cert {tmp_path}: Is a directory"),
        (TlsFiles(good.cert, missing), f"cannot read --tls-key {missing}: No such file or directory"),
        (TlsFiles(good.cert, good.key, missing), f"cannot read --tls-client-ca {missing}: No such file or directory"),
        (TlsFiles(text, good.key), f"--tls-cert {text} has no certificate in PEM form"),
        (TlsFiles(good.cert, text), f"--tls-key {text} has no private key in PEM form"),
        (TlsFiles(good.cert, good.key, text), f"--tls-client-ca {text} has no certificate in PEM form"),
        (TlsFiles(bad_cert, good.key), f"cannot use --tls-cert {bad_cert} with --tls-key {good.key}: "),
        (TlsFiles(good.cert, bad_key), f"cannot use --tls-cert {good.cert} with --tls-key {bad_key}: "),
        (TlsFiles(good.cert, good.key, bad_cert), f"cannot use --tls-client-ca {bad_cert}: "),
        (TlsFiles(good.cert, locked), f"--tls-key {locked} has a password: "),
        (TlsFiles(good.cert, other), f"--tls-key {other} is not the key of the certificate in --tls-cert {good.cert}"),
    ):
        with pytest.raises(StartError) as caught:
            ServerTls(bad)
        assert str(caught.value).startswith(says)
        assert "\n" not in str(caught.value)


def test_reload_refuses_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that only root can read is refused too."""

    def refuse(path: str, mode: str) -> object:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(StartError, match=r"^cannot read --tls-cert .*: Permission denied$"):
        ServerTls(files(local()))


@pytest.mark.parametrize(
    ("names", "days", "use", "says"),
    [
        (LOCAL, -1, "serverAuth", "the certificate has expired on 20"),
        (LOCAL, 29, "serverAuth", "the certificate expires on 20"),
        ((), 365, "serverAuth", "the certificate has no names"),
        (LOCAL, 365, "clientAuth", "clients will not accept this certificate: .*purpose"),
    ],
)
def test_reload_warns_of_what_clients_refuse(
    names: tuple[str, ...], days: int, use: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate that clients will refuse, or soon, is used, and logged."""
    ServerTls(files(authority().sign(*names, days=days, use=use)))
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert re.search(says, record.getMessage())


def test_new_channel_requires_client_certificates() -> None:
    """With a CA for clients, their names are known; each of its files is read anew by a reload."""
    tls = ServerTls(files(local(), authority().cert))
    server = tls.new_channel()
    client = TlsChannel(authority().trusting(authority().sign("DNS:billing.example")), host="localhost")
    shake_hands(client, server)
    assert server.peer_names() == ("billing.example",)


def test_reload_keeps_the_old_files_after_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """New files are for new sessions; those that exist go on. Files that cannot be used change nothing."""
    path = tmp_path / "both.pem"
    path.write_bytes(local().chain.read_bytes())
    tls = ServerTls(TlsFiles(str(path), str(path)))
    client, server = TlsChannel(authority().trusting(), host="localhost"), tls.new_channel()
    shake_hands(client, server)
    path.write_bytes(authority().sign("DNS:new.example").chain.read_bytes())
    assert shown(tls) == ("localhost",)
    tls.reload()
    assert shown(tls) == ("new.example",)
    path.write_text("nothing")
    with pytest.raises(StartError, match="has no certificate"):
        tls.reload()
    assert shown(tls) == ("new.example",)
    assert "new.example" in tls.about
    server.send(b"x")
    assert client.receive(server.take()) == b"x"
    assert caplog.records == []
