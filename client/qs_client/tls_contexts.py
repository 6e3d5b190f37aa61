"""Contexts for TLS: which certificates a client believes, and which one it shows. Imported only by clients with TLS."""

import os
import ssl
from pathlib import Path


def client_context(tls: bool | str | os.PathLike[str] | ssl.SSLContext) -> ssl.SSLContext:
    """Returns a context that verifies the server's certificate and its name. tls: see `security.Tls`; a context is
    returned as it is.

    OSError, with the file's name, when a file cannot be read; ValueError when it holds no certificate.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool | str | os.PathLike):
        raise TypeError(f"tls is True, a path of CA certificates or an ssl.SSLContext, not {tls!r}")
    if tls == "":  # as a path, it would be the current directory
        raise ValueError("tls is an empty path: name a file or a directory of CA certificates")
    context = ssl.create_default_context() if isinstance(tls, bool) else _trusting(Path(tls))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def unverified_context() -> ssl.SSLContext:
    """Returns a context that takes any certificate of any server: whoever is on the way can read everything."""
    context = client_context(True)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def show_certificate(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Makes the context show a certificate to servers that ask for one. cert: a file in PEM format; key: its key, None
    when that is in the same file. OSError, with the file's name; ValueError when the files do not fit."""
    for path in (cert, key or cert):
        _readable(Path(path))

    def no_passphrase() -> str:
        raise ValueError(f"{key or cert}: the key has a passphrase: give a key without one")

    try:
        context.load_cert_chain(cert, key, no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"{key or cert}: the key does not belong to the certificate in {cert}") from None
        raise ValueError(f"{cert}: no certificate with its key in PEM format ({_reason(error)})") from None


def _trusting(path: Path) -> ssl.SSLContext:
    if path.is_dir():
        return ssl.create_default_context(capath=path)
    _readable(path)
    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError as error:
        raise ValueError(f"{path}: no CA certificates in PEM format ({_reason(error)})") from None


def _readable(path: Path) -> None:
    """Raises the OSError with the file's name, which those of `ssl` lack."""
    path.open("rb").close()


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unreadable").lower().replace("_", " ")
