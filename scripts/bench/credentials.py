"""A certificate, and an access file with a token, for servers that are measured with TLS and rights."""

import hashlib
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_COMMAND = (
    "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
)  # fmt: skip


class Tls(NamedTuple):
    """A certificate for a server and its clients. flags: the server's; context: the client's."""

    flags: tuple[str, ...]
    context: ssl.SSLContext
    cert: Path
    key: Path


def make_certificate(folder: Path) -> Tls:
    """Makes a certificate that is its own CA, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run([*_COMMAND, "-keyout", key, "-out", cert], check=True, capture_output=True)
    flags = ("--tls-cert", str(cert), "--tls-key", str(key))
    return Tls(flags, ssl.create_default_context(cafile=str(cert)), cert, key)


def write_access(
    folder: Path, token: str, rights: Sequence[str] = ("admin = true",), others: int = 0
) -> tuple[str, str]:
    """Writes an access file, and returns the server's flag that names the file.

    token: the last principal's; rights: its lines in the file, and the other principals'; others: principals before it,
    whose tokens are never used: a server looks through them.
    """
    lines = []
    for number in range(others + 1):
        digest = hashlib.sha256((token if number == others else f"another {number}").encode()).hexdigest()
        lines += [f"[principals.p{number}]", f'tokens = ["sha256:{digest}"]', *rights]
    path = folder / "access.toml"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)  # the server refuses one that others may read
    return "--access", str(path)
