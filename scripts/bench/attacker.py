"""A hostile client of `hostile`: holds half handshakes open, or sends wrong tokens. Ends when its stdin does.

Usage: attacker.py handshakes HOST PORT COUNT, or attacker.py tokens HOST PORT RATE. Prints a line when it is at it.
"""

import contextlib
import selectors
import socket
import ssl
import sys
import time

from load import document
from open_files import room_for

_TOKENS = 10
"""Wrong tokens that a connection sends at once: after so many, the server closes it."""
_STEP = 0.01
_BURST = 50
"""Connections that are begun between two looks at the answers."""


def half_handshake() -> bytes:
    """The first half of what a client sends first."""
    written = ssl.MemoryBIO()
    channel = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), written, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        channel.do_handshake()
    hello = written.read()
    return hello[: len(hello) // 2]


def handshakes(address: tuple[str, int], count: int) -> None:
    """Opens the connections, one after the other, and holds them."""
    hello = half_handshake()
    held = []
    for _ in range(room_for(count)):
        held.append(socket.create_connection(address))
        held[-1].sendall(hello)
    print("ready", flush=True)
    sys.stdin.read()
    for each in held:
        each.close()


class _Tokens:
    """Connections that send wrong tokens, so many a second in all."""

    def __init__(self, address: tuple[str, int], rate: int) -> None:
        self._address = address
        self._rate = rate
        self._batch = b"".join(document(b"authenticate", b"<token>qs_%040d</token>" % i) for i in range(_TOKENS))
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def run(self) -> None:
        """Attacks until stdin ends. Each connection is as many tokens; what cannot be begun in time is left out."""
        started = due = time.monotonic()
        most = room_for(self._rate)
        told = False
        while not self._read():
            now = time.monotonic()
            for _ in range(_BURST):
                if due > now or len(self._selector.get_map()) > most:
                    break
                self._begin()
                due += _TOKENS / self._rate
            due = max(due, now - _STEP)
            if not told and now - started > 2:
                print("ready", flush=True)
                told = True

    def _begin(self) -> None:
        connection = socket.create_connection(self._address)
        connection.setblocking(False)
        connection.send(self._batch)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self) -> bool:
        """Returns True when stdin has ended."""
        for key, _ in self._selector.select(_STEP):
            connection = key.fileobj
            if not isinstance(connection, socket.socket):
                return True
            try:
                data = connection.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                self._selector.unregister(connection)
                connection.close()
        return False


def main() -> None:
    kind, host, port, number = sys.argv[1:]
    if kind == "handshakes":
        handshakes((host, int(port)), int(number))
    else:
        _Tokens((host, int(port)), int(number)).run()


if __name__ == "__main__":
    main()
