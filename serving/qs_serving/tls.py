"""Sets up the TLS of a server: which certificate it shows, and which client certificates it accepts.

All files are checked when they are read, so that a mistake is a line at the start and not a log full of handshakes that
failed. On SIGHUP the files are read again; open connections keep the settings that they began with.
"""

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qs_schemas.tls import TlsChannel, TlsError

from .errors import StartError

_logger = logging.getLogger(__name__)
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2: authenticated encryption, with keys that a stolen private key does not reveal. TLS 1.3 has no
others."""
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name."""
_OTHER_KEY = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""The reasons that OpenSSL gives for a key that is not the certificate's, of the same kind or of another."""
_DAYS = 30
"""A certificate that expires sooner is worth a warning."""
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Names the PEM files for TLS."""

    cert: str
    """The server's certificate, and those between it and its CA."""
    key: str
    """The private key of the certificate, without a password: there is nobody to type one when a server restarts."""
    client_ca: str | None = None
    """The CA whose client certificates are required, None to ask for none."""


class ServerTls:
    """Makes the TLS channels of a server.

    1. The files are read when an instance is made, and in `reload`. If they cannot be used, nothing changes.
    2. Each `reload` makes a new context, and never changes the context that open connections use.
    3. A certificate that clients will not accept is a warning and not an error: the server may have been started to
       renew the certificate.
    """

    def __init__(self, files: TlsFiles, clock: Callable[[], float] = time.time) -> None:
        """clock: returns seconds since the Epoch. Raises StartError, which names the file, if the files cannot be
        used."""
        self._files = files
        self._clock = clock
        self._context: ssl.SSLContext
        self.about = ""
        """A line that says what the certificate is for, and until when."""
        self.warnings: list[str] = []
        """Lines that say what is wrong with the certificate. They have been logged."""
        self.expires: float | None = None
        """The time at which the certificate expires, in seconds since the Epoch; None if it cannot be read."""
        self.reload()

    def new_channel(self) -> TlsChannel:
        """Makes the server's side of a session."""
        return TlsChannel(self._context, server_side=True)

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context for new connections. Each `reload` replaces it."""
        return self._context

    def reload(self) -> None:
        """Reads the files again, for connections that begin from now on. Raises StartError if they cannot be used, and
        then changes nothing."""
        self._context, self.about, self.warnings, self.expires = self._load()
        for line in self.warnings:
            _logger.warning("%s", line)

    def _load(self) -> tuple[ssl.SSLContext, str, list[str], float | None]:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        # Renegotiation costs the server more than the client. Tickets would have a key that lives as long as the
        # process and decrypts every session.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
        context.num_tickets = 0
        _load_pair(context, files)
        # Before a client CA is set: the client in memory that reads the certificate shows none.
        about, warnings, expires = self._examine(context)
        if files.client_ca is not None:
            _load_client_ca(context, files.client_ca)
        return context, about, warnings, expires

    def _examine(self, context: ssl.SSLContext) -> tuple[str, list[str], float | None]:
        """Returns a line about the certificate, warnings, and the time at which the certificate expires."""
        cert = self._files.cert
        try:
            found = _certificate_of(context, cert)
        except TlsError as error:
            return f"{cert}: a certificate", [f"{cert}: clients will not accept this certificate: {error}"], None
        names = ", ".join(name for _, name in found.get("subjectAltName", ())) or "no names"
        ends = ssl.cert_time_to_seconds(found["notAfter"])
        day = time.strftime("%Y-%m-%d", time.gmtime(ends))
        warnings = []
        if "subjectAltName" not in found:
            warnings.append(f"{cert}: the certificate has no names (subjectAltName), so clients will not accept it")
        if ends <= self._clock():
            warnings.append(f"{cert}: the certificate has expired on {day}, so clients will not accept it")
        elif ends < self._clock() + _DAYS * _DAY:
            warnings.append(f"{cert}: the certificate expires on {day}")
        return f"{cert}: a certificate for {names}, until {day}", warnings, ends


def _read(flag: str, path: str, part: str, what: str) -> None:
    """Checks that a file can be read and has a part such as a certificate. Raises StartError if not."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise StartError(f"cannot read {flag} {path}: {error.strerror}") from None
    if part.encode() not in data:
        raise StartError(f"{flag} {path} has no {what} in PEM form")


def _load_pair(context: ssl.SSLContext, files: TlsFiles) -> None:
    _read("--tls-cert", files.cert, "-----BEGIN CERTIFICATE-----", "certificate")
    _read("--tls-key", files.key, "PRIVATE KEY-----", "private key")
    asked = []

    def password() -> str:  # without it, OpenSSL would ask at the terminal, and a service would wait for ever
        asked.append(True)
        return "none"

    try:
        context.load_cert_chain(files.cert, files.key, password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None) or error
        if asked:
            text = f"--tls-key {files.key} has a password: give a key without one, in a file that only the server reads"
        elif reason in _OTHER_KEY:
            text = f"--tls-key {files.key} is not the key of the certificate in --tls-cert {files.cert}"
        else:
            text = f"cannot use --tls-cert {files.cert} with --tls-key {files.key}: {reason}"
        raise StartError(text) from None


def _load_client_ca(context: ssl.SSLContext, path: str) -> None:
    _read("--tls-client-ca", path, "-----BEGIN", "certificate")
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise StartError(f"cannot use --tls-client-ca {path}: {getattr(error, 'reason', None) or error}") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _certificate_of(context: ssl.SSLContext, cert: str) -> dict[str, Any]:
    """Returns a server's certificate in the form of `SSLSocket.getpeercert`. Raises TlsError if no client would accept
    it."""
    # Python decodes only the certificate of the other side. So this connects a client in memory, which trusts only this
    # certificate and ignores its dates.
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.load_verify_locations(cert)
    trusting.verify_flags |= ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME)
    client, server = TlsChannel(trusting), TlsChannel(context, server_side=True)
    while not client.established:
        server.receive(client.take())
        client.receive(server.take())
    return client.peer_certificate()
