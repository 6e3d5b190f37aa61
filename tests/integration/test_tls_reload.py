"""SIGHUP to a real server and a real bus with TLS: new certificates for new connections, and nothing else changes."""

import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.processes import FAST, Listening, ServerProcess, bus_serving, serving
from support.servers.tls import LOCAL, Certificate, TlsWire, authority

READ = "after SIGHUP: the files have been read again"
REFUSED = "what was read before stays in use"


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """The file of certificate and key, as the process starts with it."""
    path = tmp_path / "both.pem"
    path.write_bytes(authority().sign(*LOCAL, "DNS:old.example").chain.read_bytes())
    return path


@pytest.fixture(params=["server", "bus"])
def process(
    request: pytest.FixtureRequest, shared_server: ServerProcess, tmp_path: Path, both: Path
) -> Iterator[Listening]:
    flags = ("-v", "--tls-cert", str(both), "--tls-key", str(both))
    if request.param == "bus":
        with bus_serving(shared_server, *flags, log=tmp_path / "bus.log") as bus:
            yield bus
    else:
        with serving(tmp_path / "root", *FAST, *flags) as server:
            yield server


def names(wire: TlsWire) -> set[str]:
    """The names in the certificate that the client was shown."""
    found = wire.socket.getpeercert()
    assert found is not None
    return {str(name) for kind, name in found["subjectAltName"] if kind == "DNS"}


def replace(both: Path, certificate: Certificate) -> None:
    """Replaces the file in one step, as an operator does."""
    new = both.with_suffix(".new")
    new.write_bytes(certificate.chain.read_bytes())
    new.rename(both)


def test_a_new_certificate(process: Listening, both: Path) -> None:
    """Connections that are open go on; new ones are shown the new certificate."""
    with TlsWire(process) as old:
        assert old.ask().startswith("<qs ")
        replace(both, authority().sign(*LOCAL, "DNS:new.example"))
        with TlsWire(process) as other:
            assert names(other) == {"localhost", "old.example"}
        process.process.send_signal(signal.SIGHUP)
        process.until_logged(READ)
        with TlsWire(process) as new:
            assert names(new) == {"localhost", "new.example"}
            assert new.ask().startswith("<qs ")
        assert old.ask().startswith("<qs ")


def test_a_bad_file(process: Listening, both: Path) -> None:
    """A file that cannot be used changes nothing and is logged in a line; the next good one counts."""
    with TlsWire(process) as old:
        for number, bad in enumerate(("", "-----BEGIN CERTIFICATE-----\nx\n-----END PRIVATE KEY-----\n"), 1):
            both.write_text(bad)
            process.process.send_signal(signal.SIGHUP)
            process.until_logged(REFUSED, number)
            with TlsWire(process) as other:
                assert names(other) == {"localhost", "old.example"}
                assert other.ask().startswith("<qs ")
        [first, *_] = [line for line in process.log().splitlines() if REFUSED in line]
        assert " ERROR " in first
        assert f"--tls-cert {both} has no certificate in PEM form" in first
        both.unlink()
        process.process.send_signal(signal.SIGHUP)
        process.until_logged("No such file or directory; what was read before")
        assert old.ask().startswith("<qs ")
        replace(both, authority().sign(*LOCAL, "DNS:new.example"))
        process.process.send_signal(signal.SIGHUP)
        process.until_logged(READ)
        with TlsWire(process) as new:
            assert names(new) == {"localhost", "new.example"}


def test_another_ca_of_clients(tmp_path: Path, both: Path) -> None:
    """The CA of clients is read again too. A client whose certificate is of no use any more keeps its connection."""
    ca = tmp_path / "clients.pem"
    first, second = authority("first clients"), authority("second clients")
    ca.write_bytes(first.cert.read_bytes())
    contexts = [authority().trusting(each.sign("DNS:a.example")) for each in (first, second)]
    flags = ("-v", "--tls-cert", str(both), "--tls-key", str(both), "--tls-client-ca", str(ca))
    with serving(tmp_path / "root", *FAST, *flags) as server, TlsWire(server, contexts[0]) as old:
        assert old.ask().startswith("<qs ")
        ca.write_bytes(second.cert.read_bytes())
        server.process.send_signal(signal.SIGHUP)
        server.until_logged(READ)
        with TlsWire(server, contexts[1]) as new:
            assert new.ask().startswith("<qs ")
        with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"), TlsWire(server, contexts[0]) as late:
            late.ask()
        assert old.ask().startswith("<qs ")


def test_without_tls(tmp_path: Path) -> None:
    """A server without files that it could read again ends, as it always has."""
    server = ServerProcess(tmp_path / "root", *FAST)
    assert server.stop(signal.SIGHUP) == -signal.SIGHUP
