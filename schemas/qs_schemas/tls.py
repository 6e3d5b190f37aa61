"""Implements one side of a TLS session: ciphertext in, plaintext out, and the reverse. No socket and no waiting.

The server, the bus and the clients all use this channel, so TLS is the same wherever the bytes come from. The package
does not import this module: importing `ssl` would delay the start of a program that uses no TLS.
"""

import ssl
from contextlib import suppress
from typing import Any, NoReturn, TypeAlias

Data: TypeAlias = bytes | bytearray | memoryview
PeerNames: TypeAlias = tuple[str, ...]
"""The names in a verified certificate, in its order: DNS names, e-mail addresses and URIs; without any of these, the
common name."""

_RECORD = 16 * 1024
"""The most bytes of plaintext in one record. OpenSSL's buffers never shrink, so they are filled with no more at
once."""
_FIRST_BYTES = (b"\x15", b"\x16")
"""The first byte of a TLS stream: an alert or a handshake record."""
_KINDS = {"DNS", "email", "URI"}

_NO_TLS = "the other side does not speak TLS"
_VERSIONS = "the other side speaks no version of TLS that is allowed here: 1.2 and 1.3 are"
_CIPHERS = "the other side allows no cipher that is allowed here"
_WANTED = "the other side asks for a client certificate, and got none"
_UNKNOWN_CA = "the other side does not know the authority (CA) of this side's certificate"
_REFUSED = "the other side does not accept this side's certificate"
_TEXTS = {
    "HTTP_REQUEST": _NO_TLS,
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "UNSUPPORTED_PROTOCOL": _VERSIONS,
    "TLSV1_ALERT_PROTOCOL_VERSION": _VERSIONS,
    "WRONG_SSL_VERSION": _VERSIONS,
    "NO_SHARED_CIPHER": _CIPHERS,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side refuses the handshake: it allows no cipher that is allowed here, "
    "or asks for a client certificate",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has sent no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _WANTED,
    "TLSV1_ALERT_UNKNOWN_CA": _UNKNOWN_CA,
    "SSLV3_ALERT_BAD_CERTIFICATE": _REFUSED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _REFUSED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": _REFUSED,
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the other side says that this side's certificate is revoked",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side says that this side's certificate has expired",
}


class TlsError(Exception):
    """Reports that the session cannot begin, or cannot go on. The text says in one line what is wrong: for usual
    mistakes in words for the person who made the certificates, otherwise in OpenSSL's words."""


class TlsChannel:
    """Keeps one side of a TLS session.

    1. Plaintext that is given to `send` before the handshake is complete is sent after it.
    2. OpenSSL's buffers never hold more than a record, however much the caller gives at once.
    3. After a TlsError the session is over. `take` may still have an alert that tells the other side.

    Only one thread may use a channel at a time.
    """

    __slots__ = ("_begun", "_closed", "_incoming", "_kept", "_outgoing", "_sealed", "_tls", "ended", "established")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool = False, host: str | None = None) -> None:
        """host: the name or the address that the server's certificate has to be for. Raises TlsError if the text is
        neither a name nor an address."""
        self.established = False
        """True once the handshake is complete."""
        self.ended = False
        """True once the other side has said that it sends no more, or the ciphertext has ended."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._begun = False  # something has been received
        self._closed = False
        self._kept = bytearray()  # plaintext to send after the handshake
        self._sealed: list[bytes] = []  # records that `take` gives before those in `_outgoing`
        try:
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side, host)
        except ValueError:
            raise TlsError(f"{host!r} is neither a host name nor an address") from None
        if not server_side:
            self._shake_hands()

    def receive(self, data: Data) -> bytes:
        """Takes ciphertext from the socket, b"" at the end of the stream. Returns the plaintext that is now complete,
        maybe b"". Raises TlsError if the ciphertext is not TLS, not intact, not acceptable, or ends before the
        handshake does."""
        if not data:
            self.ended = True
            if not self.established:
                raise TlsError("the other side has closed the connection during the TLS handshake")
            return b""
        if not self._begun:
            self._begun = True
            if bytes(data[:1]) not in _FIRST_BYTES:
                raise TlsError(_NO_TLS)
        if len(data) <= _RECORD:
            return self._decrypt(data)
        view = memoryview(data)
        return b"".join([self._decrypt(view[at : at + _RECORD]) for at in range(0, len(view), _RECORD)])

    def send(self, data: Data) -> None:
        """Encrypts plaintext for `take`, or keeps it until the handshake is complete. Raises TlsError after `close`."""
        if not self.established:
            self._kept += data
            return
        try:
            if len(data) <= _RECORD:
                self._tls.write(data)
                return
            view = memoryview(data)
            for at in range(0, len(view), _RECORD):
                self._tls.write(view[at : at + _RECORD])
                self._sealed.append(self._outgoing.read())  # record by record, or the buffer would grow to all of it
        except ssl.SSLError as error:
            _fail(error)

    def take(self) -> bytes:
        """Returns ciphertext to write to the socket, each byte once, maybe b""."""
        if not self._sealed:
            return self._outgoing.read()
        self._sealed.append(self._outgoing.read())
        taken = b"".join(self._sealed)
        self._sealed.clear()
        return taken

    def close(self) -> None:
        """Says to the other side that nothing more is sent. Receiving goes on."""
        if not self._closed:
            self._closed = True
            with suppress(ssl.SSLError):  # raised while the other side has not ended, or after a failure
                self._tls.unwrap()

    def peer_names(self) -> PeerNames:
        """Returns the names in the other side's certificate. Returns none if the other side sent no certificate, or was
        not asked for one."""
        found = self.peer_certificate()
        names = tuple(name for kind, name in found.get("subjectAltName", ()) if kind in _KINDS)
        common = tuple(value for part in found.get("subject", ()) for key, value in part if key == "commonName")
        return names or common[-1:]

    def peer_certificate(self) -> dict[str, Any]:
        """Returns the other side's verified certificate in the form of `ssl.SSLSocket.getpeercert`; an empty dict if
        there is none."""
        return self._tls.getpeercert() or {}

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            _fail(error)
        self.established = True
        if self._kept:
            kept, self._kept = self._kept, bytearray()
            self.send(kept)

    def _decrypt(self, data: Data) -> bytes:
        incoming = self._incoming
        incoming.write(data)
        if not self.established:
            self._shake_hands()
            if not self.established or not incoming.pending:
                return b""
        parts: list[bytes] = []
        try:
            # b"" says that the other side sends no more. Without new bytes, `read` raises SSLWantReadError instead.
            while plain := self._tls.read(_RECORD):
                if not incoming.pending and not parts:
                    return plain  # the usual case
                parts.append(plain)
                if not incoming.pending:
                    break
            self.ended = not plain
        except ssl.SSLWantReadError:
            pass  # the rest of a record is still to come
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            if not self._closed:  # after `close`, bytes that still arrive are of no use
                _fail(error)
        return b"".join(parts)


def _fail(error: ssl.SSLError) -> NoReturn:
    """Raises TlsError in place of an OpenSSL error, with a text for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = str(error.verify_message).rstrip(".")
        raise TlsError(f"the other side's certificate is not accepted: {text}") from None
    reason = error.reason or "unknown error"
    raise TlsError(_TEXTS.get(reason) or reason.lower().replace("_", " ")) from None
