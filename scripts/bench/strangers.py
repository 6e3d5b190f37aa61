"""Measures what clients without a token cost the server and the bus. docs/security.md has the table.

For each kind of attack, a server and a bus of their own are attacked with so many sockets or documents. The figure is
the processor time of one of them; beside it stands the memory of one: the largest resident memory meanwhile, less what
it was before, divided by the number of sockets. A client with a token pings meanwhile; its longest wait is shown, in
which the attacker, the client and the server share the machine.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from credentials import make_certificate, write_access
from hostile import half_handshake
from load import document
from machine import room_for
from measuring import Figure, Run
from processes import Process, queue_bus, queue_server

#!/usr/bin/env python3
"""Measures what clients without a token cost: python scripts/bench/strangers.py --help

For each kind of attack, a server and a bus of their own are attacked with so many sockets or documents. The table shows
the processor time of one of them, and the memory of one: the largest resident memory meanwhile, less what it was
before, divided by the number of sockets. A client with a token pings meanwhile; the last column has its longest wait,
in which the attacker, the client and the server share the machine. docs/security.md has the table. All files are in a
temporary folder that is removed at the end.
"""


_TOKEN = "qs_benchmark"
_SIGN_IN = document(b"authenticate", b"<token>%b</token>" % _TOKEN.encode())
_PING = document(b"ping")
_WRONG = document(b"authenticate", b"<token>qs_%040d</token>" % 7)
_LARGEST = 64 * 1024
_WAIT = 120
_NAMESPACE = b' xmlns="http://purl.oclc.org/DEFUZE/qs"'
_PAUSE = 0.02
_REST, _RESTS, _IDLE = 0.4, 3, 0.02
"""Seconds of a rest, number of rests, and seconds of processor time: a process that has taken less time than that in
each of the last rests has nothing to do but the pings."""


class Target(NamedTuple):
    """A server or a bus that is attacked. trusting: the context of a client, None without TLS."""

    process: Process
    trusting: ssl.SSLContext | None

    def connect(self) -> socket.socket:
        """Returns a connection, without a TLS handshake."""
        return socket.create_connection(self.process.address, _WAIT)


Attack = Callable[[Target, int, list[socket.socket]], int]
"""Attacks with that many sockets or documents, and keeps the sockets that stay open in the list. Returns how many units
of the measured kind that was."""


def _silent(target: Target, count: int, held: list[socket.socket]) -> int:
    held += [target.connect() for _ in range(count)]
    return count


def _slow_bytes(target: Target, count: int, held: list[socket.socket]) -> int:
    """Sends nearly 64 KiB of a document on each socket, and then byte by byte."""
    begun = document(b"push-message", b"<qid>q</qid><payload>" + b"x" * (_LARGEST - 1000))[:-100]
    held += [target.connect() for _ in range(count)]
    for each in held:
        each.sendall(begun)
    for _ in range(20):
        for each in held:
            each.sendall(b"x")
    return 20 * count


def _half_handshakes(target: Target, count: int, held: list[socket.socket]) -> int:
    hello = half_handshake()
    for _ in range(count):
        held.append(target.connect())
        held[-1].sendall(hello)
    return count


def _handshakes(target: Target, count: int, held: list[socket.socket]) -> int:
    trusting = target.trusting
    assert trusting is not None
    held += [trusting.wrap_socket(target.connect(), server_hostname="localhost") for _ in range(count)]
    return count


def _wrong_tokens(target: Target, count: int, held: list[socket.socket]) -> int:
    for _ in range(0, count, 10):
        held.append(target.connect())
        held[-1].sendall(_WRONG * 10)
    for each in held:
        _read_all(each)
    return count


def _pings(target: Target, count: int, held: list[socket.socket]) -> int:
    """Sends pings on one connection without a pause, and reads the answers."""
    held.append(connection := target.connect())
    burst = 100
    for _ in range(0, count, burst):
        connection.sendall(_PING * burst)
        answered = 0
        while answered < burst:
            answered += connection.recv(1 << 16).count(b"\n")
    return count


def _unread(target: Target, count: int, held: list[socket.socket]) -> int:
    """Sends requests on each socket for as long as the other side reads, and reads no answer."""
    for _ in range(count):
        connection = socket.socket()
        # A small buffer is full soon: from then on, answers stay with the other side.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(_WAIT)
        connection.connect(target.process.address)
        connection.setblocking(False)
        held.append(connection)
    for _ in range(8):
        for each in held:
            with suppress(OSError):
                each.sendall(_PING * 2000)
        time.sleep(_PAUSE)
    return count


def _filled(before: bytes, entry: bytes, after: bytes) -> bytes:
    """Returns a document of at most 64 KiB with as many entries as fit."""
    return before + entry * ((_LARGEST - len(before) - len(after)) // len(entry)) + after


def _request(op: bytes, opening: bytes, entry: bytes, closing: bytes) -> bytes:
    return _filled(b"<qs%b><op><%b/></op>%b" % (_NAMESPACE, op, opening), entry, closing + b"</qs>")


WORST = {
    "spaces in a qid": _request(b"push-message", b"<qid>", b" ", b"</qid><payload/>"),
    "faulty claims": _request(b"ping", b"<claims>", b"<claim/>", b"</claims>"),
    "faulty queues": _request(b"ping", b"<queues>", b"<q/>", b"</queues>"),
    "queues": _request(b"subscribe", b"<queues>", b"<queue>a</queue>", b"</queues>"),
    "ids": _request(b"delete-message", b"<qid>q</qid><messages>", b"<mid>1</mid>", b"</messages>"),
    "faulty ids": _request(b"delete-message", b"<qid>q</qid><messages>", b"<mid/>", b"</messages>"),
    "messages": _request(b"push-message", b"<qid>q</qid><messages>", b"<message><payload/></message>", b"</messages>"),
    "unknown children": _request(b"ping", b"", b"<a/>", b""),
    "children twice": _request(b"ping", b"", b"<qid/>", b""),
    "references": _request(b"push-message", b"<qid>q</qid><payload>", b"&amp;", b"</payload>"),
    "XML in a payload": _request(b"push-message", b"<qid>q</qid><payload>", b"<a/>", b"</payload>"),
    "comments": _request(b"ping", b"", b"<!---->", b""),
    "CDATA": _request(b"push-message", b"<qid>q</qid><payload>", b"<![CDATA[]]>", b"</payload>"),
    "other namespaces": _request(b"ping", b"", b'<a xmlns="b"/>', b""),
    "attributes": _request(b"ping", b"", b'<a xmlns:b="c" b:d="" b:e="" b:f="" b:g=""/>', b""),
    "nested": _filled(b"<qs%b><op><ping/></op>" % _NAMESPACE, b"<a><a><a><a><a></a></a></a></a></a>", b"</qs>"),
    "no XML": _filled(b"<qs%b>" % _NAMESPACE, b"a='", b""),
}
"""Documents that take long to read, by the part that they have much of."""


def _documents(worst: bytes) -> Attack:
    def attack(target: Target, count: int, held: list[socket.socket]) -> int:
        for _ in range(count):
            with target.connect() as connection:
                connection.sendall(worst)
                connection.shutdown(socket.SHUT_WR)
                _read_all(connection)
        return count

    return attack


def _read_all(connection: socket.socket) -> None:
    with suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass


class Kind(NamedTuple):
    """A kind of attack. unit: what one unit of processor time counts; count: how many, and fewer with --quick."""

    name: str
    attack: Attack
    unit: str
    count: int
    quick: int
    tls: bool = False


KINDS = [
    Kind("silent sockets", _silent, "socket", 1000, 200),
    Kind("slow bytes, 64 KiB of a document begun", _slow_bytes, "byte", 1000, 200),
    Kind("half TLS handshakes", _half_handshakes, "handshake", 1000, 300, tls=True),
    Kind("complete TLS handshakes", _handshakes, "handshake", 1000, 100, tls=True),
    Kind("wrong tokens", _wrong_tokens, "token", 2000, 500),
    Kind("pings, answers read", _pings, "ping", 50_000, 5000),
    Kind("pings, answers not read", _unread, "socket", 1000, 50),
]


@contextmanager
def _target(which: str, folder: Path, *, tls: bool) -> Iterator[Target]:
    """Runs a server, or a bus, with an access file."""
    folder.mkdir()
    flags = [*write_access(folder, _TOKEN)]
    trusting = None
    if tls:
        made = make_certificate(folder)
        flags += made.flags
        trusting = made.context
    with ExitStack() as stack:
        if which == "server":
            process = stack.enter_context(queue_server(folder / "root", "--durability", "none", *flags))
        else:
            server = stack.enter_context(queue_server(folder / "root", "--durability", "none"))
            process = stack.enter_context(queue_bus(folder, server.address, "q", flags=flags))
        yield Target(process, trusting)


class _Honest(threading.Thread):
    """A client with a token that pings until it is told to end, and notes its longest wait."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        plain = target.connect()
        trusting = target.trusting
        self._socket = plain if trusting is None else trusting.wrap_socket(plain, server_hostname="localhost")
        self._ended = threading.Event()
        self.longest = 0.0
        self.ask(_SIGN_IN)

    def ask(self, request: bytes) -> None:
        """Sends a request and reads its answer."""
        self._socket.sendall(request)
        answer = b""
        while not answer.endswith(b"\n"):
            data = self._socket.recv(1 << 16)
            if not data:
                raise RuntimeError("a client with a token was disconnected")
            answer += data

    def run(self) -> None:
        while not self._ended.wait(_PAUSE):
            began = time.perf_counter()
            self.ask(_PING)
            self.longest = max(self.longest, time.perf_counter() - began)

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self.join()
        self._socket.close()


def _settle(process: Process) -> None:
    """Returns once the process has nothing to do any more but the pings."""
    before, rests = process.processor_seconds(), 0
    for _ in range(_WAIT):
        time.sleep(_REST)
        now = process.processor_seconds()
        rests = rests + 1 if now - before < _IDLE else 0
        if rests == _RESTS:
            return
        before = now


def _peak(process: Process) -> int:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _forget_peak(process: Process) -> None:
    # 5 makes the peak (VmHWM) what is resident now: see proc(5).
    Path(f"/proc/{process.process.pid}/clear_refs").write_text("5")


class Cost(NamedTuple):
    """The cost of an attack. spent: seconds of processor time for one unit; grown: bytes of memory for one socket;
    longest: seconds that a client with a token has waited for an answer."""

    spent: float
    grown: float
    longest: float


def _cost(target: Target, attack: Attack, count: int) -> Cost:
    """Attacks, and returns the cost."""
    honest = _Honest(target)
    honest.start()
    held: list[socket.socket] = []
    process = target.process
    _forget_peak(process)
    memory, processor = process.resident_bytes(), process.processor_seconds()
    try:
        done = attack(target, count, held)
        _settle(process)
    finally:
        honest.end()
    spent = process.processor_seconds() - processor
    grown = max(0, _peak(process) - memory)
    for each in held:
        each.close()
    return Cost(spent / done, grown / max(1, len(held)), honest.longest)


def strangers(run: Run) -> list[Figure]:
    """Measures processor time, memory and the wait of others, for what clients without a token can do at most."""
    room_for(2000)
    found = []
    for which in ("server", "bus"):
        for number, kind in enumerate(KINDS):
            with _target(which, run.folder / f"{which}-{number}", tls=kind.tls) as target:
                cost = _cost(target, kind.attack, kind.quick if run.quick else kind.count)
            found.append(_figure(f"{which}: {kind.name}", kind.unit, cost))
        with _target(which, run.folder / f"{which}-worst", tls=False) as target:
            found += _worst(which, target, 3 if run.quick else 10)
    return found


def _worst(which: str, target: Target, count: int) -> list[Figure]:
    """Measures all documents, and shows the three that take longest."""
    found = {name: _cost(target, _documents(worst), count) for name, worst in WORST.items()}
    longest = sorted(found, key=lambda name: found[name].spent, reverse=True)[:3]
    return [_figure(f"{which}: 64 KiB: {name}", "document", found[name]) for name in longest]


def _figure(name: str, unit: str, cost: Cost) -> Figure:
    of = f"{cost.grown / 1024:,.0f} KiB a socket; a client with a token waits {1000 * cost.longest:.0f} ms"
    return Figure(name, 1000 * cost.spent, unit=f" ms a {unit}", of=of, digits=3)
