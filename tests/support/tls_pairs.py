"""Two ends of a connection, as a test of a transport needs them: a socket for the transport, and what a client has."""

import socket
import ssl
from functools import cache

from qs_schemas.tls import TlsChannel
from support.certificates import authority, serving_context
from support.serving import Listening


class TlsEnd:
    """A blocking socket of a client with TLS, as far as tests use one."""

    def __init__(self, connected: socket.socket, channel: TlsChannel) -> None:
        self.socket = connected
        self.channel = channel

    @classmethod
    def connect(cls, process: Listening) -> "TlsEnd":
        """Connects to a process, and completes the handshake."""
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
        """Some plaintext, however much, or b"" at the end."""
        while not self.channel.ended:
            if plain := self.channel.receive(self.socket.recv(65536)):
                return plain
        return b""

    def shutdown(self, how: int) -> None:
        """Ends this side, as TLS does it. The socket stays open for writing."""
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
    """A client's and a server's channel, after their handshake."""
    contexts = _contexts(version)
    client = TlsChannel(contexts[0], host="localhost")
    server = TlsChannel(contexts[1], server_side=True)
    shake_hands(client, server)
    server.take()
    return client, server


def connected(tls: str | None) -> tuple[socket.socket, TlsChannel | None, "socket.socket | TlsEnd"]:
    """A socket for a transport, its channel, and the other end. tls: None, or a version as Python names it."""
    ours, theirs = socket.socketpair()
    if tls is None:
        return ours, None, theirs
    client, server = channels(tls)
    return ours, server, TlsEnd(theirs, client)
