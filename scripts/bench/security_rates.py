"""Measures TLS 1.3, and checking rights: two servers, with and without, in one run.

The two are measured alternately, round by round; the result is the median of the rounds' ratios. The load comes from
one process, which encrypts too.
"""

import selectors
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

from credentials import make_certificate, write_access
from load import Client, TlsClient, document, push_document
from machine import room_for
from measuring import Figure, Run, ratio
from processes import Process, queue_server

#!/usr/bin/env python3
"""Measures what TLS 1.3 costs: python scripts/bench/tls_rates.py --help

Two servers, one with TLS, are measured in this very run, alternately, round by round; what is shown is the median of
the rounds' ratios. The load comes from one process, which encrypts too. All files are in a temporary folder that is
removed at the end.
"""


CONNECTIONS = 32
PIPELINE = 32
PARTS = 10
"""Parts of a round."""
SIZE = 1024
IDLE = 10_000
_WAIT = 60
_CHUNK = 64 * 1024
_BEFORE = 100
_BARE = """
import re, ssl, sys
from pathlib import Path
cert, key, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
serving.load_cert_chain(cert, key)
serving.options |= ssl.OP_NO_TICKET
serving.num_tickets = 0
asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
asking.check_hostname, asking.verify_mode = False, ssl.CERT_NONE
def session():
    one, other, there, back = (ssl.MemoryBIO() for _ in range(4))
    server, client = serving.wrap_bio(one, other, server_side=True), asking.wrap_bio(there, back)
    done = set()
    while len(done) < 2:
        for each in (client, server):
            try:
                each.do_handshake()
                done.add(each)
            except ssl.SSLWantReadError:
                pass
            one.write(back.read())
            there.write(other.read())
    return server, one, other
def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
held = [session() for _ in range(100)]
before = resident()
held += [session() for _ in range(count)]
print((resident() - before) / count)
"""
"""Prints the bytes that a server's session takes after its handshake, with its two buffers."""

_TOKEN = "qs_benchmark"
_RIGHTS = [f'{right} = ["orders-*", "invoices-??", "q*"]' for right in ("read", "write", "configure")]
_PRINCIPALS = 20


def drive(clients: Sequence[Client], request: bytes, answers: int, seconds: float) -> tuple[int, float]:
    """Returns answers, and the seconds that they took, when each client sends the request again once all its answers
    have come."""
    with selectors.DefaultSelector() as selector:
        missing = {}
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            missing[client] = answers
            client.socket.sendall(request)
        done = 0
        started = ended = time.perf_counter()
        until = started + seconds
        while missing:
            for key, _ in selector.select(_WAIT):
                client = key.data
                data = client.socket.recv(_CHUNK)
                if b'type="error"' in data or not data:
                    raise RuntimeError(f"expected answers, got {data[:500]!r}")
                count = data.count(b"\n")
                done += count
                missing[client] -= count
                ended = time.perf_counter()
                if not missing[client]:
                    if ended < until:
                        missing[client] = answers
                        client.socket.sendall(request)
                    else:
                        del missing[client]
    return done, ended - started


def rates(both: list[list[Client]], request: bytes, answers: int, seconds: float) -> list[float]:
    """Returns answers a second of both sets of clients. The sets take turns in short parts, so that other work of the
    machine hits both."""
    done, spent = [0, 0], [0.0, 0.0]
    for number in range(PARTS):
        for which in (0, 1) if number % 2 else (1, 0):
            count, took = drive(both[which], request, answers, seconds / PARTS)
            done[which] += count
            spent[which] += took
    return [count / took for count, took in zip(done, spent, strict=True)]


def compare_pushes(
    what: str, both: list[list[Client]], targets: tuple[float, float], rounds: int, seconds: float
) -> list[Figure]:
    """Compares the pushes of two sets of clients, one at a time and pipelined. what: the feature that only the first
    set uses; targets: the least ratio of each."""
    request = push_document("q", SIZE)
    rows = []
    for clients in both:
        clients[0].lines(document(b"new-queue", b"<qid>q</qid>"))
    kinds = (("one at a time", 1), (f"pipelined by {PIPELINE}", PIPELINE))
    for (name, answers), target in zip(kinds, targets, strict=True):
        found: list[list[float]] = [[], []]
        for number in range(rounds + 1):
            for which, one in enumerate(rates(both, request * answers, answers, seconds)):
                if number:  # the first round warms up
                    found[which].append(one)
            for clients in both:  # so that the last round has no deeper queue than the first
                clients[0].lines(document(b"purge-queue", b"<qid>q</qid>"))
        rows.append(ratio(f"{what}: push, {CONNECTIONS} connections, {name} / without", *found, target))
    return rows


def tls(run: Run) -> list[Figure]:
    """Compares pushes by 32 connections with TLS 1.3 and without: one at a time, and pipelined."""
    rounds, seconds = (3, 0.5) if run.quick else (11, 1.5)
    made = make_certificate(run.folder)
    with ExitStack() as stack:
        plain = stack.enter_context(queue_server(run.folder / "plain"))
        secure = stack.enter_context(queue_server(run.folder / "secure", *made.flags))
        both: list[list[Client]] = [
            [stack.enter_context(TlsClient(secure.address, made.context)) for _ in range(CONNECTIONS)],
            [stack.enter_context(Client(plain.address)) for _ in range(CONNECTIONS)],
        ]
        return compare_pushes("TLS", both, (0.75, 0.8), rounds, seconds)


def access(run: Run) -> list[Figure]:
    """Compares pushes by 32 connections with `--access` and without: one at a time, and pipelined."""
    rounds, seconds = (5, 0.5) if run.quick else (15, 1.5)
    flags = write_access(run.folder, _TOKEN, _RIGHTS, others=_PRINCIPALS - 1)
    with ExitStack() as stack:
        guarded = stack.enter_context(queue_server(run.folder / "guarded", *flags))
        free = stack.enter_context(queue_server(run.folder / "free"))
        both = [[stack.enter_context(Client(server.address)) for _ in range(CONNECTIONS)] for server in (guarded, free)]
        for client in both[0]:
            client.lines(document(b"authenticate", b"<token>%b</token>" % _TOKEN.encode()))
        return compare_pushes("--access", both, (0.97, 0.97), rounds, seconds)


def tls_memory(run: Run) -> list[Figure]:
    """Compares the memory of an idle TLS connection, which has been answered once, with a bare session of `ssl`."""
    made = make_certificate(run.folder)
    many = room_for(IDLE + 2 * _BEFORE) - 2 * _BEFORE
    most = ("--max-connections", str(many + _BEFORE))
    found: dict[str, list[float]] = {"TLS": [], "plain": [], "bare": []}
    for number in range(1 if run.quick else 3):
        with queue_server(run.folder / f"idle-{number}", *most, *made.flags) as server:
            found["TLS"].append(_bytes_each(server, many, made.context))
        with queue_server(run.folder / f"plain-{number}", *most) as server:
            found["plain"].append(_bytes_each(server, many, None))
        command = [sys.executable, "-c", _BARE, str(made.cert), str(made.key), str(many)]
        found["bare"].append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    name = f"resident memory of an idle TLS connection, {many:,} of them / of a bare SSLObject"
    figure = ratio(name, found["TLS"], found["bare"], unit=" bytes")
    return [replace(figure, of=f"{figure.of}; without TLS {median(found['plain']):,.0f} bytes")]


def _bytes_each(server: Process, many: int, context: ssl.SSLContext | None) -> float:
    with ExitStack() as stack:

        def connect(count: int) -> None:
            for _ in range(count):
                client = Client(server.address) if context is None else TlsClient(server.address, context)
                stack.enter_context(client).lines(document(b"ping"))

        connect(_BEFORE)
        before = server.resident_bytes()
        connect(many)
        return (server.resident_bytes() - before) / many
