"""Measures 100 clients while others attack the server, with half handshakes or with wrong tokens.

Rounds of peace and of attack take turns on one server. The attacker is a process of its own; on two cores it takes a
part of the load's core, which counts against the server.
"""

import hashlib
import re
import secrets
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from load import Client, document, push_document, rate_of_many
from processes import Listening, queue_server
from table import Row, ratio_row

_CLIENTS = 100
_HANDSHAKES = 2000
_TOKENS = 10_000
_TARGET = 0.9
_PUSH = push_document("q", 1024)
_FLAGS = ("--durability", "none")
_CERTIFICATE = (
    "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
)  # fmt: skip


def measure(folder: Path, quick: bool) -> list[Row]:
    """pushes of 100 clients beside 2,000 half handshakes that are held open, and beside 10,000 wrong tokens a second"""
    rounds, seconds = (3, 2.0) if quick else (7, 5.0)
    return [_beside_handshakes(folder, rounds, seconds), _beside_tokens(folder, rounds, seconds)]


def _beside_handshakes(folder: Path, rounds: int, seconds: float) -> Row:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run([*_CERTIFICATE, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.create_default_context(cafile=str(cert))
    with ExitStack() as stack:
        flags = ("--tls-cert", str(cert), "--tls-key", str(key))
        server = stack.enter_context(queue_server(folder / "tls", *_FLAGS, *flags))
        clients = [stack.enter_context(_TlsClient(server.address, context)) for _ in range(_CLIENTS)]
        clients[0].lines(document(b"new-queue", b"<qid>q</qid>"))
        attacked, calm = _in_turns(server, clients, ("handshakes", _HANDSHAKES), rounds, seconds)
    name = f"pushes over TLS, {_CLIENTS} clients, beside {_HANDSHAKES:,} half handshakes / alone"
    return ratio_row(name, attacked, calm, _TARGET)


def _beside_tokens(folder: Path, rounds: int, seconds: float) -> Row:
    token = f"qs_{secrets.token_urlsafe(32)}"
    access = folder / "access.toml"
    access.write_text(
        f'[principals.load]\ntokens = ["sha256:{hashlib.sha256(token.encode()).hexdigest()}"]\nadmin = true\n'
    )
    access.chmod(0o600)
    with ExitStack() as stack:
        server = stack.enter_context(queue_server(folder / "access", *_FLAGS, "--access", str(access)))
        clients = [stack.enter_context(Client(server.address)) for _ in range(_CLIENTS)]
        for client in clients:
            client.lines(document(b"authenticate", b"<token>%s</token>" % token.encode()))
        clients[0].lines(document(b"new-queue", b"<qid>q</qid>"))
        attacked, calm = _in_turns(server, clients, ("tokens", _TOKENS), rounds, seconds)
    name = f"pushes, {_CLIENTS} clients, beside {_TOKENS:,} wrong tokens a second / alone"
    row = ratio_row(name, attacked, calm, _TARGET)
    counted = sum(int(count) for count in re.findall(r"(\d+) wrong tokens", (folder / "access.log").read_text()))
    return row._replace(figures=f"{row.figures}; {counted:,} wrong tokens were looked up, others waited for their turn")


class _TlsClient(Client):
    """A blocking connection over TLS. An answer is one record, so a read gives all of it."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        super().__init__(address)
        plain: socket.socket = self.socket
        self.socket = context.wrap_socket(plain, server_hostname="localhost")


def _in_turns(
    server: Listening, clients: list[Client], attack: tuple[str, int], rounds: int, seconds: float
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
def _attacking(server: Listening, kind: str, number: int) -> Iterator[None]:
    """Attacks the server inside the block."""
    host, port = server.address
    command = [sys.executable, str(Path(__file__).with_name("attacker.py")), kind, host, str(port), str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "ready\n"
        yield
        attacker.stdin.close()
        if attacker.wait() != 0:
            raise RuntimeError(f"the attacker ended with {attacker.returncode}")
