"""Certificates for tests, made by the command openssl: authorities, and what they sign."""

import ssl
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

LOCAL = ("DNS:localhost", "IP:127.0.0.1", "IP:::1")
"""The names of a server on loopback."""


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, in files. `chain` has both."""

    cert: Path
    key: Path

    @property
    def chain(self) -> Path:
        """One file with the key and the certificate."""
        path = self.cert.with_suffix(".both.pem")
        path.write_text(self.key.read_text() + self.cert.read_text())
        return path

    def locked_key(self) -> str:
        """The key as PEM, with a password."""
        path = self.key.with_suffix(".locked")
        _openssl("pkey", "-in", self.key, "-aes256", "-passout", "pass:secret", "-out", path)
        return path.read_text()


class Authority:
    """A private CA in a directory. `cert` is the file that others trust."""

    def __init__(self, folder: Path, name: str = "qs tests CA") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._count = 0
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            "req", "-x509", *_EC, "-keyout", self._key, "-out", self.cert, "-subj", f"/CN={name}", "-days", "3650",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def sign(
        self, *names: str, common: str = "", days: int = 365, use: str = "serverAuth,clientAuth", rsa: bool = False
    ) -> Certificate:
        """Makes a certificate. names: as openssl has them, "DNS:localhost"; common: its common name, none if empty;
        days: negative ones for a certificate that has expired; use: what it may be used for."""
        self._count += 1
        base = self.folder / f"{self._count}"
        made = Certificate(base.with_suffix(".pem"), base.with_suffix(".key"))
        request, extensions = base.with_suffix(".csr"), base.with_suffix(".ext")
        lines = [f"extendedKeyUsage={use}", *([f"subjectAltName={','.join(names)}"] if names else [])]
        extensions.write_text("\n".join(lines) + "\n")
        subject = f"/CN={common}" if common else "/O=tests"
        kind = ("-newkey", "rsa:2048", "-nodes") if rsa else _EC
        _openssl("req", *kind, "-keyout", made.key, "-out", request, "-subj", subject)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.cert, "-CAkey", self._key, "-CAcreateserial",
            "-days", str(days), "-extfile", extensions, "-out", made.cert,
        )  # fmt: skip
        return made

    def trusting(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """A client's context that trusts this CA alone. certificate: is shown to servers that ask for one."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if certificate is not None:
            context.load_cert_chain(certificate.cert, certificate.key)
        return context


_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@cache
def _kept() -> TemporaryDirectory[str]:
    """A directory that is there until the test run ends."""
    return TemporaryDirectory(prefix="qs-certificates-")


@cache
def authority(name: str = "qs tests CA") -> Authority:
    """The CA of this name, made once a test run, in a temporary directory."""
    return Authority(Path(_kept().name) / name.replace(" ", "-"), name)


@cache
def local() -> Certificate:
    """A certificate for a server on loopback, of qs tests CA."""
    return authority().sign(*LOCAL)


def serving_context(certificate: Certificate | None = None, clients_of: Authority | None = None) -> ssl.SSLContext:
    """A server's context. clients_of: asks for client certificates of this CA."""
    certificate = certificate or local()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    if clients_of is not None:
        context.load_verify_locations(clients_of.cert)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
