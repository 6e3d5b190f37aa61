"""TLS between the session of a client and its socket. No I/O. Imported only by clients with TLS."""

import ssl
import threading

from qs_schemas.tls import TlsChannel, TlsError

from .stream_errors import TlsFailed


class TlsLayer:
    """One TLS session, for several threads: OpenSSL's objects are not for more than one at a time.

    Methods raise TlsFailed; `encrypt` may then still have an alert that tells the server why.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """host: the name or address that the server's certificate has to be for."""
        self._lock = threading.Lock()
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
