"""TLS for tests: certificates made by the command openssl, servers, pairs of connected sockets, and clients."""

import socket
import ssl
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from qs_schemas.tls import TlsChannel
from qs_serving.transport import Transport
from support.servers.processes import Listening, Wire

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
        """Returns one file with the key and the certificate."""
        path = self.cert.with_suffix(".both.pem")
        path.write_text(self.key.read_text() + self.cert.read_text())
        return path

    def locked_key(self) -> str:
        """Returns the key as PEM, encrypted with a password."""
        path = self.key.with_suffix(".locked")
        _openssl("pkey", "-in", self.key, "-aes256", "-passout", "pass:secret", "-out", path)
        return path.read_text()


class Authority:
    """A private CA in a directory. `cert` is the file for clients that trust the CA."""

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
        """Makes a certificate. names: in openssl's form, "DNS:localhost"; common: its common name, none if empty; days:
        negative ones for a certificate that has expired; use: its extended key usage."""
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
        """Returns a client's context that trusts this CA alone. certificate: the one it shows to servers that ask."""
        context = ssl.create_default_context(cafile=str(self.cert))
        if certificate is not None:
            context.load_cert_chain(certificate.cert, certificate.key)
        return context


_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@cache
def _kept() -> TemporaryDirectory[str]:
    """Returns a directory that lasts until the test run ends."""
    return TemporaryDirectory(prefix="qs-certificates-")


@cache
def authority(name: str = "qs tests CA") -> Authority:
    """Returns the CA of this name, made once a test run, in a temporary directory."""
    return Authority(Path(_kept().name) / name.replace(" ", "-"), name)


@cache
def local() -> Certificate:
    """Returns a certificate of the tests' CA for a server on loopback."""
    return authority().sign(*LOCAL)


def serving_context(certificate: Certificate | None = None, clients_of: Authority | None = None) -> ssl.SSLContext:
    """Returns a server's context. clients_of: the CA of the client certificates that it asks for."""
    certificate = certificate or local()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert, certificate.key)
    if clients_of is not None:
        context.load_verify_locations(clients_of.cert)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TlsEnd:
    """A blocking client socket with TLS, with the methods that tests use."""

    def __init__(self, connected: socket.socket, channel: TlsChannel) -> None:
        self.socket = connected
        self.channel = channel

    @classmethod
    def connect(cls, process: Listening) -> "TlsEnd":
        """Connects to a process and completes the handshake."""
        end = cls(process.connect(), TlsChannel(authority().trusting(), host="localhost"))
        while not end.channel.established:
            end.socket.sendall(end.channel.take())
            end.channel.receive(end.socket.recv(65536))
        end.socket.sendall(end.channel.take())
        return end

    def send(self, data: bytes) -> int:
        self.channel.send(data)
        self.socket.sendall(self.channel.take())
        return len(data)

    def recv(self, most: int) -> bytes:
        """Returns some plaintext, of any length, or b"" at the end."""
        while not self.channel.ended:
            if plain := self.channel.receive(self.socket.recv(65536)):
                return plain
        return b""

    def shutdown(self, how: int) -> None:
        """Ends this side's TLS stream. The socket stays open for writing."""
        assert how == socket.SHUT_WR
        self.channel.close()
        self.socket.sendall(self.channel.take())

    def setblocking(self, flag: bool) -> None:
        self.socket.setblocking(flag)

    def close(self) -> None:
        self.socket.close()


def shake_hands(client: TlsChannel, server: TlsChannel) -> None:
    """Completes the handshake of two channels in memory."""
    while not (client.established and server.established):
        server.receive(client.take())
        if data := server.take():
            client.receive(data)


@cache
def _contexts(version: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    client, server = authority().trusting(), serving_context()
    client.maximum_version = ssl.TLSVersion[version]
    return client, server


def channels(version: str = "TLSv1_3") -> tuple[TlsChannel, TlsChannel]:
    """Returns a client's and a server's channel, after their handshake."""
    contexts = _contexts(version)
    client = TlsChannel(contexts[0], host="localhost")
    server = TlsChannel(contexts[1], server_side=True)
    shake_hands(client, server)
    server.take()
    return client, server


def connected(tls: str | None) -> tuple[socket.socket, TlsChannel | None, "socket.socket | TlsEnd"]:
    """Returns a socket for a transport, its channel, and the other end. tls: None, or a version in Python's form."""
    ours, theirs = socket.socketpair()
    if tls is None:
        return ours, None, theirs
    client, server = channels(tls)
    return ours, server, TlsEnd(theirs, client)


class Reading:
    """Keeps the bytes of a transport for the test. failed: the error with which reading ended, None without one."""

    def __init__(self, transport: Transport) -> None:
        self.failed: Exception | None = None
        self.parts: list[bytes] = []
        self._transport = transport
        self._changed = trio.Event()
        transport.start(self._take, self._fail)

    def _take(self, data: bytes) -> None:
        self.parts.append(data)
        self._changed.set()

    def _fail(self, error: Exception) -> None:
        self.failed = error
        self._changed.set()

    async def some(self) -> bytes:
        """Takes out the bytes of one read, none at the end of the stream. Raises the error with which reading ended."""
        while not self.parts:
            if self.failed is not None:
                raise self.failed
            self._changed = trio.Event()
            await self._changed.wait()
        return self.parts.pop(0)

    async def bytes(self, count: int) -> bytes:
        """Takes out that many bytes, which have to end with the end of a read."""
        got = b""
        while len(got) < count:
            got += await self.some()
        assert len(got) == count
        return got


PING = '<qs xmlns="http://purl.oclc.org/DEFUZE/qs"><op><ping/></op></qs>\n'
"""A request that both the server and the bus answer, differently."""
WITHIN = 30
"""Seconds that a command may take."""


def tls_flags(certificate: Certificate | None = None, clients_of: Authority | None = None) -> tuple[str, ...]:
    """Returns the flags of a server or a bus with TLS. certificate: without one, the tests' CA's for loopback."""
    certificate = certificate or local()
    asks = () if clients_of is None else ("--tls-client-ca", str(clients_of.cert))
    return ("--tls-cert", str(certificate.cert), "--tls-key", str(certificate.key), *asks)


class TlsWire(Wire):
    """A connection with TLS, line by line."""

    def __init__(self, process: Listening, context: ssl.SSLContext | None = None) -> None:
        context = context or authority().trusting()
        super().__init__(process, context.wrap_socket(process.connect(), server_hostname="localhost"))

    def ask(self, *documents: str | bytes) -> str:
        """Sends the documents, a ping without any. Returns the answer to the last one."""
        return super().ask(*(documents or (PING,)))


class OpenSslClient:
    """`openssl s_client` over a connection, or its error if there is no connection."""

    def __init__(self, process: Listening, *flags: str | Path) -> None:
        command = ["openssl", "s_client", "-connect", f"{process.host}:{process.port}", *map(str, flags)]
        pipe = subprocess.PIPE
        self._client = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def ask(self, document: str = PING) -> str:
        """Sends a document and returns its answer, an empty one if the connection ends."""
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        try:
            self._client.stdin.write(document)
            self._client.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._client.stdout.readline()

    def end(self) -> tuple[int, str]:
        """Waits for the process, which ends with its connection. Returns its exit code and both outputs."""
        try:
            out, errors = self._client.communicate(timeout=WITHIN)
        finally:
            self._client.kill()
        return self._client.returncode, out + errors


def openssl(process: Listening, *flags: str | Path) -> tuple[str, int, str]:
    """Connects with openssl, asks once, and ends. Returns the answer, the exit code, and the rest of the output. Trusts
    the tests' CA alone, and expects the server to be localhost."""
    common = ("-quiet", "-no_ign_eof", "-CAfile", authority().cert, "-verify_return_error", "-verify_hostname")
    client = OpenSslClient(process, *common, "localhost", *flags)
    answer = client.ask()
    return answer, *client.end()


def speak_raw(process: Listening, data: bytes) -> bytes:
    """Sends bytes. Returns everything that comes until the other side closes."""
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
    """Returns a ClientHello of a program that knows no later version than this one: (3, 0) is SSL 3."""
    suites = b"\x00\x2f\x00\x35\x00\x05\x00\x0a\xc0\x09\xc0\x13"
    body = bytes(version) + bytes(range(32)) + b"\0" + len(suites).to_bytes(2, "big") + suites + b"\x01\x00"
    handshake = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16" + bytes(version) + len(handshake).to_bytes(2, "big") + handshake


def half_handshake(process: Listening) -> socket.socket:
    """Yields a connection whose handshake has begun and does not continue."""
    connected = process.connect()
    connected.sendall(hello((3, 3))[:-1])
    return connected
