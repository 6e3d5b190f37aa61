"""A proxy before PostgreSQL that knows its messages, and cuts a connection, or does something else, at a statement."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from support.storage.postgres import LONG, Postgres

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST."""
_STARTUP = 196608
"""The protocol's version, in the first message of a connection: it is the last one without a letter."""


@dataclass
class _Connection:
    client: socket.socket
    server: socket.socket
    unread: bytearray = field(default_factory=bytearray)
    started: bool = False
    statements: dict[str, str] = field(default_factory=dict)
    """By name: the text of what was prepared."""
    cut: bool = False
    cut_after_sync: bool = False


class StatementProxy:
    """Forwards connections to a server, notes the statements of clients, and cuts the connection of one of them, once.

    The server does what it got before the cut, as long as it takes: meanwhile the client may be back already."""

    def __init__(self, target: Postgres) -> None:
        self._target = target.address
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.sent: list[str] = []
        """The statements that clients have had run since `arm`."""
        self._text: str | None = None
        self._left = 0
        self._passes = False
        self._do: Callable[[], object] | None = None
        self._start(self._accept)

    def arm(
        self,
        text: str | None = None,
        nth: int = 0,
        *,
        passes: bool = False,
        do: Callable[[], object] | None = None,
    ) -> None:
        """Notes statements anew. text: the statement at which its connection is cut, None for no cut; nth: how many of
        the same are let through before. passes: the server still gets the statement and the end of its round trip, and
        only the answers are lost. do: is called before the statement is passed on, instead of a cut."""
        with self._lock:
            self.sent = []
            self._text, self._left, self._passes, self._do = text, nth, passes, do

    def close(self) -> None:
        with self._lock:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LONG)
            assert not thread.is_alive()

    # -- in threads

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, LONG)
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.settimeout(None)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {client, server}
            connection = _Connection(client, server)
            self._start(self._up, connection)
            self._start(self._down, connection)

    def _up(self, connection: _Connection) -> None:
        """Forwards what the client sends, up to the cut."""
        with contextlib.suppress(OSError):
            while data := connection.client.recv(1 << 16):
                connection.unread += data
                passing, cut = self._take(connection)
                if cut:
                    connection.cut = True
                if passing:
                    connection.server.sendall(passing)
                if cut:
                    break
        if connection.cut:
            with contextlib.suppress(OSError):
                connection.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.client.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            connection.server.shutdown(socket.SHUT_WR)

    def _take(self, connection: _Connection) -> tuple[bytes, bool]:
        """Returns the complete messages that may pass, and whether the cut comes after them."""
        passing = b""
        for message in _messages(connection):
            if not connection.started:
                connection.started = message[4:8] == struct.pack("!i", _STARTUP)
                passing += message
                continue
            text = _told(connection, message)
            if text is not None and self._note(text):
                if self._do is not None:
                    connection.server.sendall(passing)
                    passing = b""
                    self._do()
                elif self._passes:
                    connection.cut_after_sync = True
                else:
                    return passing, True
            passing += message
            if connection.cut_after_sync and message[:1] in b"SQ":
                return passing, True
        return passing, False

    def _note(self, text: str) -> bool:
        """Notes a statement. Returns whether it is the one for the cut."""
        with self._lock:
            self.sent.append(text)
            if text != self._text:
                return False
            self._left -= 1
            return self._left == -1

    def _down(self, connection: _Connection) -> None:
        """Forwards what the server sends, and nothing any more after a cut."""
        with contextlib.suppress(OSError):
            while data := connection.server.recv(1 << 16):
                if not connection.cut:
                    connection.client.sendall(data)
        for each in (connection.client, connection.server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._open.discard(each)
            each.close()


def _messages(connection: _Connection) -> Iterator[bytes]:
    """Takes the complete messages off what is unread. `started` has to be right before the next one."""
    unread = connection.unread
    while True:
        letter = 1 if connection.started else 0
        if len(unread) < letter + 4:
            return
        size = letter + int.from_bytes(unread[letter : letter + 4], "big")
        if len(unread) < size:
            return
        message = bytes(unread[:size])
        del unread[:size]
        yield message


def _told(connection: _Connection, message: bytes) -> str | None:
    """Returns the statement that a message has run, None for other messages."""
    kind, words = chr(message[0]), message[5:].split(b"\0")
    if kind == "P":
        connection.statements[words[0].decode()] = words[1].decode()
    if kind == "B":
        return connection.statements.get(words[1].decode(), "")
    return words[0].decode() if kind == "Q" else None


@contextlib.contextmanager
def statements_of(target: Postgres) -> Iterator[StatementProxy]:
    """Runs a proxy for the length of a with block."""
    proxy = StatementProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
