"""TLS of clients. Imported only by clients with TLS."""

import os
import ssl
import threading
from pathlib import Path

from qs_schemas.tls import TlsChannel, TlsError

from .errors import TlsFailed


def client_context(tls: bool | str | os.PathLike[str] | ssl.SSLContext) -> ssl.SSLContext:
    """Returns a context that verifies the server's certificate and its name. tls: see `security.Tls`; a context is
    returned as it is.

    Raises OSError, with the file's name, if a file cannot be read; ValueError if it holds no certificate.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool | str | os.PathLike):
        raise TypeError(f"tls is True, a path of CA certificates or an ssl.SSLContext, not {tls!r}")
    if tls == "":  # as a path, it would be the current directory
        raise ValueError("tls is an empty path: name a file or a directory of CA certificates")
    context = ssl.create_default_context() if isinstance(tls, bool) else _trusting(Path(tls))
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # the servers speak no older one, whatever the system allows
    return context


def unverified_context() -> ssl.SSLContext:
    """Returns a context that takes any certificate of any server: an attacker on the way can read everything."""
    context = client_context(True)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def show_certificate(context: ssl.SSLContext, cert: str, key: str | None) -> None:
    """Makes the context show a certificate to servers that ask for one. cert: a file in PEM format; key: its key, None
    when that is in the same file. Raises OSError, with the file's name; ValueError if the files do not fit."""
    for path in (cert, key or cert):  # first, as the errors of `ssl` name no file
        _readable(Path(path))

    # Without this function OpenSSL would ask on the terminal, where a service waits for ever.
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
    """Raises the OSError of opening the file, with the file's name, which the errors of `ssl` lack."""
    path.open("rb").close()


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unreadable").lower().replace("_", " ")


class TlsLayer:
    """One TLS session between a `Session` and its socket. No I/O.

    Ensures: any thread may use it, as a lock makes them take turns; `farewell` waits for no lock, so a signal handler
    may call it. Methods raise TlsFailed; `encrypt` may then still have an alert that tells the server why.
    Assumes that ciphertext is sent in the order in which it was returned.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """host: the name or address for which the server's certificate has to be valid."""
        self._lock = threading.Lock()  # OpenSSL's objects are not for more than one thread at a time
        self._plain = bytearray()  # decrypted, and not read yet
        try:
            self._channel = TlsChannel(context, host=host.partition("%")[0])  # without the zone of an IPv6 address
        except TlsError as error:
            raise TlsFailed(str(error)) from None

    @property
    def established(self) -> bool:
        """Tells whether the handshake is complete."""
        return self._channel.established

    @property
    def readable(self) -> bool:
        """Tells whether `read` returns something without more ciphertext."""
        return bool(self._plain) or self._channel.ended

    def encrypt(self, data: bytes = b"") -> bytes:
        """Returns the ciphertext to send for the data and for the session itself."""
        with self._lock:
            try:
                if data:
                    self._channel.send(data)
            except TlsError as error:
                raise TlsFailed(str(error)) from None
            return self._channel.take()

    def feed(self, data: bytes) -> None:
        """Takes ciphertext from the socket, b"" at its end."""
        with self._lock:
            try:
                self._plain += self._channel.receive(data)
            except TlsError as error:
                raise TlsFailed(str(error)) from None

    def read(self) -> bytes | None:
        """Returns the plaintext that has come, b"" at its end, None when more ciphertext is needed."""
        with self._lock:
            if self._plain:
                plain = bytes(self._plain)
                self._plain.clear()
                return plain
            return b"" if self._channel.ended else None

    def farewell(self) -> bytes:
        """Returns the ciphertext that says that this side sends no more. Empty when another thread, or the code that a
        signal has interrupted, uses the session."""
        if not self._lock.acquire(blocking=False):
            return b""
        try:
            self._channel.close()
            return self._channel.take() if self.established else b""
        finally:
            self._lock.release()
