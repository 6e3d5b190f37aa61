"""Servers with TLS for tests, and what speaks to them: Python's ssl, and the command openssl."""

import socket
import ssl
import subprocess
from pathlib import Path

from support.certificates import Authority, Certificate, authority, local
from support.serving import Listening, Wire

PING = '<qs xmlns="http://purl.oclc.org/DEFUZE/qs"><op><ping/></op></qs>\n'
"""A request that both the server and the bus answer, each in its way."""
WITHIN = 30
"""Seconds that a command may take."""


def tls_flags(certificate: Certificate | None = None, clients_of: Authority | None = None) -> tuple[str, ...]:
    """The flags of a server or a bus with TLS. certificate: of the tests' CA, for loopback, if none is given."""
    certificate = certificate or local()
    asks = () if clients_of is None else ("--tls-client-ca", str(clients_of.cert))
    return ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key), *asks)


class TlsWire(Wire):
    """A connection with TLS, line by line."""

    def __init__(self, process: Listening, context: ssl.SSLContext | None = None) -> None:
        context = context or authority().trusting()
        super().__init__(process, context.wrap_socket(process.connect(), server_hostname="localhost"))

    def ask(self, *documents: str | bytes) -> str:
        """Returns the answer to the last of the documents; without documents, sends a ping."""
        return super().ask(*(documents or (PING,)))


class OpenSslClient:
    """`openssl s_client` with a connection, or what it says when it gets none."""

    def __init__(self, process: Listening, *flags: str | Path) -> None:
        command = ["openssl", "s_client", "-connect", f"{process.host}:{process.port}", *map(str, flags)]
        pipe = subprocess.PIPE
        self._client = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def ask(self, document: str = PING) -> str:
        """The answer; empty if the connection ends."""
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        try:
            self._client.stdin.write(document)
            self._client.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._client.stdout.readline()

    def end(self) -> tuple[int, str]:
        """Waits for the process, which ends if the connection does; returns its exit code and both outputs."""
        try:
            out, errors = self._client.communicate(timeout=WITHIN)
        finally:
            self._client.kill()
        return self._client.returncode, out + errors


def openssl(process: Listening, *flags: str | Path) -> tuple[str, int, str]:
    """Connects, asks once, and ends: the answer, exit code, and what else was said. Trusts the tests' CA alone, and
    wants the server to be localhost."""
    common = ("-quiet", "-no_ign_eof", "-CAfile", authority().cert, "-verify_return_error", "-verify_hostname")
    client = OpenSslClient(process, *common, "localhost", *flags)
    answer = client.ask()
    return answer, *client.end()


def speak_raw(process: Listening, data: bytes) -> bytes:
    """Sends bytes, and returns what comes until the other side closes."""
    with process.connect() as connected:
        connected.sendall(data)
        got = b""
        try:
            while part := connected.recv(65536):
                got += part
        except ConnectionResetError:  # it has closed before it read everything
            pass
        return got


def hello(version: tuple[int, int]) -> bytes:
    """A ClientHello as programs sent it that knew nothing later than this version: (3, 0) is SSL 3."""
    suites = b"\x00\x2f\x00\x35\x00\x05\x00\x0a\xc0\x09\xc0\x13"
    body = bytes(version) + bytes(range(32)) + b"\0" + len(suites).to_bytes(2, "big") + suites + b"\x01\x00"
    handshake = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16" + bytes(version) + len(handshake).to_bytes(2, "big") + handshake


def half_handshake(process: Listening) -> socket.socket:
    """A connection whose handshake has begun and does not go on."""
    connected = process.connect()
    connected.sendall(hello((3, 3))[:-1])
    return connected
