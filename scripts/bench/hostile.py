"""Clients that work while others attack the server, with half handshakes or with wrong tokens.

Rounds of peace and of attack take turns on one server. The attacker is a process of its own; on two cores it takes a
part of the load's core, which counts against the server. Run as a program, this module is the attacker, which prints a
line when the attack has begun and ends when its stdin does: hostile.py handshakes HOST PORT COUNT, or hostile.py tokens
HOST PORT RATE
"""

import contextlib
import re
import secrets
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from credentials import make_certificate, write_access
from load import Client, TlsClient, document, push_document, rate_of_many
from machine import room_for
from measuring import Figure, Run, ratio
from processes import Assistant, Process, queue_server

_CLIENTS = 100
_HANDSHAKES = 2000
_TOKENS = 10_000
_TARGET = 0.9
_PUSH = push_document("q", 1024)
_FLAGS = ("--durability", "none")

_TOGETHER = 10
"""Wrong tokens that a connection sends at once: after that many, the server closes the connection."""

_STEP = 0.01
_BURST = 50
"""Connections that are begun between two looks at the answers."""


def hostile(run: Run) -> list[Figure]:
    """Compares pushes of 100 clients beside 2,000 half handshakes, and beside 10,000 wrong tokens a second, with
    peace."""
    rounds, seconds = (3, 2.0) if run.quick else (7, 5.0)
    return [_beside_handshakes(run.folder, rounds, seconds), _beside_tokens(run.folder, rounds, seconds)]


def _beside_handshakes(folder: Path, rounds: int, seconds: float) -> Figure:
    tls = make_certificate(folder)
    with ExitStack() as stack:
        server = stack.enter_context(queue_server(folder / "tls", *_FLAGS, *tls.flags))
        clients = [stack.enter_context(TlsClient(server.address, tls.context)) for _ in range(_CLIENTS)]
        clients[0].lines(document(b"new-queue", b"<qid>q</qid>"))
        attacked, calm = _in_turns(server, clients, ("handshakes", _HANDSHAKES), rounds, seconds)
    name = f"pushes over TLS, {_CLIENTS} clients, beside {_HANDSHAKES:,} half handshakes / alone"
    return ratio(name, attacked, calm, _TARGET)


def _beside_tokens(folder: Path, rounds: int, seconds: float) -> Figure:
    token = f"qs_{secrets.token_urlsafe(32)}"
    access = write_access(folder, token)
    with ExitStack() as stack:
        server = stack.enter_context(queue_server(folder / "access", *_FLAGS, *access))
        clients = [stack.enter_context(Client(server.address)) for _ in range(_CLIENTS)]
        for client in clients:
            client.lines(document(b"authenticate", b"<token>%s</token>" % token.encode()))
        clients[0].lines(document(b"new-queue", b"<qid>q</qid>"))
        attacked, calm = _in_turns(server, clients, ("tokens", _TOKENS), rounds, seconds)
    name = f"pushes, {_CLIENTS} clients, beside {_TOKENS:,} wrong tokens a second / alone"
    figure = ratio(name, attacked, calm, _TARGET)
    counted = sum(int(count) for count in re.findall(r"(\d+) wrong tokens", (folder / "access.log").read_text()))
    return replace(figure, of=f"{figure.of}; {counted:,} wrong tokens were looked up, others waited for their turn")


def _in_turns(
    server: Process, clients: list[Client], attack: tuple[str, int], rounds: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Returns the rates under attack, and the rates in peace."""
    rate_of_many(clients, _PUSH, 1)
    attacked, calm = [], []
    for _ in range(rounds):
        calm.append(rate_of_many(clients, _PUSH, seconds))
        with _attacking(server, *attack):
            attacked.append(rate_of_many(clients, _PUSH, seconds))
    return attacked, calm


@contextmanager
def _attacking(server: Process, kind: str, number: int) -> Iterator[None]:
    """Attacks the server inside the block."""
    with Assistant("hostile.py", kind, *server.address, number) as attacker:
        yield
        attacker.finish()


def half_handshake() -> bytes:
    """Returns the first half of the bytes with which a client begins."""
    written = ssl.MemoryBIO()
    channel = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), written, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        channel.do_handshake()
    hello = written.read()
    return hello[: len(hello) // 2]


def handshakes(address: tuple[str, int], count: int) -> None:
    """Opens the connections, one after the other, and keeps them open."""
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
    """Connections that send wrong tokens, a given number a second in all."""

    def __init__(self, address: tuple[str, int], rate: int) -> None:
        self._address = address
        self._rate = rate
        self._batch = b"".join(document(b"authenticate", b"<token>qs_%040d</token>" % i) for i in range(_TOGETHER))
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin, selectors.EVENT_READ)

    def run(self) -> None:
        """Attacks until stdin ends. Each connection sends `_TOGETHER` tokens; connections that cannot be begun in time
        are left out."""
        started = due = time.monotonic()
        most = room_for(self._rate)
        told = False
        while not self._read():
            now = time.monotonic()
            for _ in range(_BURST):
                if due > now or len(self._selector.get_map()) > most:
                    break
                self._begin()
                due += _TOGETHER / self._rate
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
        """Reads stdin. Returns True when it has ended."""
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
    """Attacks as the arguments say."""
    kind, host, port, number = sys.argv[1:]
    if kind == "handshakes":
        handshakes((host, int(port)), int(number))
    else:
        _Tokens((host, int(port)), int(number)).run()


if __name__ == "__main__":
    main()
