"""Faults around a server: a network that is cut, a process that stands still or is killed, a full disk."""

import contextlib
import select
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from support.clients.documents import mids, request
from support.servers.processes import Address, Gone, Listening, MortalWire, ServerProcess

_MOST = 1024 * 1024
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST, and drops what is unsent."""


class _End:
    """One side of a connection, and the bytes that the other side has sent to it so far."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.other: _End
        self.unsent = bytearray()


class CutProxy:
    """Listens on host and port, and forwards to the target. One thread; a method returns when its effect is there."""

    def __init__(self, target: Address, port: int = 0) -> None:
        self._target = target.host, target.port
        self._listener = socket.create_server(("127.0.0.1", port))
        self.host, self.port = self._listener.getsockname()
        self._selector = selectors.DefaultSelector()
        self._ends: set[_End] = set()
        self._frozen = False
        self._closed = False
        self._todo: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def freeze(self) -> None:
        """Lets nothing pass any more, in neither direction; connections stay, and new ones are not answered."""
        self._ask(lambda: self._set_frozen(True))

    def thaw(self) -> None:
        """Forwards again after `freeze`."""
        self._ask(lambda: self._set_frozen(False))

    def reset(self) -> None:
        """Ends every connection at once, on both sides, with a reset; what was under way is gone. New ones work."""
        self._ask(self._reset)

    def close(self) -> None:
        def close() -> None:
            self._reset()
            self._closed = True

        self._ask(close)
        self._thread.join()
        for each in (self._listener, self._wake, self._woken, self._selector):
            each.close()

    def _ask(self, do: Callable[[], None]) -> None:
        done = threading.Event()
        self._todo.append((do, done))
        self._wake.send(b"x")
        assert done.wait(20)

    # -- in the thread

    def _run(self) -> None:
        while not self._closed:
            for key, events in self._selector.select():
                if key.fileobj is self._woken:
                    self._woken.recv(100)
                elif self._frozen:
                    continue
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.data in self._ends:
                    self._serve(key.data, events)
            while self._todo:
                do, done = self._todo.popleft()
                do()
                done.set()

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target, 5)
        except OSError:
            self._end(near)
            return
        a, b = _End(near), _End(far)
        a.other, b.other = b, a
        for end in (a, b):
            end.socket.setblocking(False)
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.add(end)
        for end in (a, b):
            self._watch(end)

    def _serve(self, end: _End, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._send(end)
            if events & selectors.EVENT_READ:
                data = end.socket.recv(65536)
                if not data:
                    raise ConnectionResetError
                end.other.unsent += data
                self._send(end.other)
        except OSError:
            self._drop(end)
        else:
            self._watch(end)
            self._watch(end.other)

    def _send(self, end: _End) -> None:
        with contextlib.suppress(BlockingIOError):
            while end.unsent:
                del end.unsent[: end.socket.send(end.unsent)]

    def _watch(self, end: _End) -> None:
        events = 0
        if not self._frozen:
            events |= selectors.EVENT_READ if len(end.other.unsent) < _MOST else 0
            events |= selectors.EVENT_WRITE if end.unsent else 0
        known = self._selector.get_map().get(end.socket)
        if known is None:
            if events:
                self._selector.register(end.socket, events, end)
        elif not events:
            self._selector.unregister(end.socket)
        elif known.events != events:
            self._selector.modify(end.socket, events, end)

    def _set_frozen(self, frozen: bool) -> None:
        if self._frozen != frozen:
            self._frozen = frozen
            if frozen:
                self._selector.unregister(self._listener)
            else:
                self._selector.register(self._listener, selectors.EVENT_READ, None)
            for end in self._ends:
                self._watch(end)

    def _drop(self, end: _End) -> None:
        """Ends both sides of a connection with a reset."""
        for each in (end, end.other):
            if each in self._ends:
                self._ends.discard(each)
                if each.socket in self._selector.get_map():
                    self._selector.unregister(each.socket)
                self._end(each.socket)

    def _end(self, connected: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connected.close()

    def _reset(self) -> None:
        for end in list(self._ends):
            self._drop(end)


@contextlib.contextmanager
def cutting(target: Address, port: int = 0) -> Iterator[CutProxy]:
    """Runs a proxy for the length of a with block."""
    proxy = CutProxy(target, port)
    try:
        yield proxy
    finally:
        proxy.close()


@contextlib.contextmanager
def stopped(process: Listening) -> Iterator[None]:
    """Stops the process (SIGSTOP) for the length of a with block. The process has stopped when the block begins."""
    process.process.send_signal(signal.SIGSTOP)
    try:
        process.process.until_stopped()
        yield
    finally:
        process.process.send_signal(signal.SIGCONT)


def pass_time(seconds: float) -> None:
    """Sleeps, so that something stands still for that long. Not for waiting until something has happened."""
    select.select([], [], [], seconds)


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[Path]:
    """Mounts a tmpfs of that size (as mount has it: 512k) on a directory, which is made, for the length of a with
    block. Skips the test, with the reason, where nothing can be mounted."""
    directory.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"A REALLY FULL DISK WAS NOT TESTED: no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@dataclass
class Seen:
    """The observations of one client in one round. trouble: observations that should not have been made."""

    trouble: list[str] = field(default_factory=list)


Record = TypeVar("Record", bound=Seen)
Client = Callable[[MortalWire, Record, str], None]
"""Works with its record, under a name, until the server is gone."""


def load(
    clients: Sequence[Client[Record]],
    new_record: Callable[[], Record],
    server: ServerProcess,
    number: int,
    seconds: float,
) -> list[Record]:
    """Lets every client work, each with a record of its own, until the server is killed. number: the round's number."""
    records = [new_record() for _ in clients]

    def run(client: Client[Record], record: Record, name: str) -> None:
        wire = None
        try:
            wire = MortalWire(server)
            client(wire, record, name)
        except Gone:
            pass
        except Exception as error:
            record.trouble.append(repr(error))
        finally:
            if wire is not None:
                wire.close()

    threads = [
        threading.Thread(target=run, args=(client, record, f"{number}-{index}"))
        for index, (client, record) in enumerate(zip(clients, records, strict=True))
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    server.kill()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return records


def listed(wire: MortalWire, state: str) -> list[int]:
    """Returns the ids of the messages of the queue in that state, oldest first."""
    found: list[int] = []
    while page := mids(
        wire.ask(request("list-messages", "<qid>q</qid>", state=state, after=found[-1] if found else 0))
    ):
        found += page
    return found
