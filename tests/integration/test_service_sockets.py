"""Listening sockets that systemd opens: the server, the bus and the page use them, and no client is refused at a
restart."""

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.documents import PING, mids, new_queue, push, receive
from support.servers.processes import BUS_COMMAND as BUS
from support.servers.processes import COMMAND, Listening, exchange
from support.servers.systemd import PlayedSystemd, played_systemd
from support.servers.web import COMMAND as WEB

from qs_testing.programs import READY_WITHIN


@pytest.fixture
def port() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def number(listening: socket.socket) -> int:
    found: int = listening.getsockname()[1]
    return found


def server(tmp_path: Path, *flags: str) -> list[str]:
    return [*COMMAND, "--root", str(tmp_path / "root"), *flags]


def ping(port: int, host: str = "127.0.0.1") -> str:
    with socket.create_connection((host, port), READY_WITHIN) as client:
        return exchange(client, PING)[0]


def test_the_server(tmp_path: Path, port: socket.socket) -> None:
    """The server uses the socket that it is given, prints its address, and opens none of its own, whatever --port
    says."""
    with socket.create_server(("127.0.0.1", 0)) as other, played_systemd(tmp_path, [port]) as systemd:
        systemd.start(server(tmp_path, "--port", str(number(other))))
        systemd.until("READY")
        assert systemd.port() == number(port)
        assert "<ping/>" in ping(number(port))
        assert systemd.stop() == 0


def test_two_sockets(tmp_path: Path, port: socket.socket) -> None:
    """Clients are served at all of them."""
    with socket.create_server(("127.0.0.1", 0)) as other, played_systemd(tmp_path, [port, other]) as systemd:
        systemd.start(server(tmp_path))
        systemd.until("READY")
        assert "<ping/>" in ping(number(port))
        assert "<ping/>" in ping(number(other))
        assert systemd.stop() == 0


def test_the_bus(tmp_path: Path, port: socket.socket, shared_server: Listening) -> None:
    """A bus with an inherited socket, which it does not lose when it restarts."""
    command = [*BUS, "--server", f"127.0.0.1:{shared_server.port}"]
    with played_systemd(tmp_path, [port]) as systemd:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", number(port)), READY_WITHIN) as client:
                systemd.start(command)
                systemd.until("READY")
                assert 'name="qs-bus"' in exchange(client, PING)[0]
            assert systemd.stop() == 0


def test_the_page(tmp_path: Path, port: socket.socket, shared_server: Listening) -> None:
    """A page with an inherited socket, which it does not lose when it restarts: a browser that has connected meanwhile
    is answered."""
    command = [*WEB, "--server", f"127.0.0.1:{shared_server.port}", "--port", "1"]
    ask = f"GET / HTTP/1.1\r\nHost: localhost:{number(port)}\r\nConnection: close\r\n\r\n".encode()
    with played_systemd(tmp_path, [port]) as systemd:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", number(port)), READY_WITHIN) as browser:
                browser.sendall(ask)
                systemd.start(command)
                systemd.until("READY")
                assert systemd.port() == number(port)
                with browser.makefile() as lines:
                    assert lines.readline().startswith("HTTP/1.1 200 ")
            assert systemd.stop() == 0


def test_sockets_of_another_process(tmp_path: Path, port: socket.socket) -> None:
    """Sockets whose LISTEN_PID names another process are left alone."""
    with played_systemd(tmp_path) as systemd:
        systemd.start(server(tmp_path, "--port", "0"), LISTEN_FDS="1", LISTEN_PID="1")
        systemd.until("READY")
        assert systemd.port() not in (0, number(port))
        assert systemd.stop() == 0


def refusal(systemd: PlayedSystemd, command: list[str]) -> str:
    """The line with which a start is refused."""
    systemd.start(command)
    assert systemd.process is not None
    assert systemd.process.wait(READY_WITHIN) == 1
    [line] = systemd.log.read_text().splitlines()
    return line


@pytest.mark.parametrize("kind", ["unix", "datagram", "file"])
def test_sockets_that_are_of_no_use(tmp_path: Path, kind: str) -> None:
    """A descriptor that is not a listening TCP socket is refused, with its number and name."""
    if kind == "unix":
        opened = socket.socket(socket.AF_UNIX)
        opened.bind(str(tmp_path / "s"))
        opened.listen()
    elif kind == "datagram":
        opened = socket.socket(type=socket.SOCK_DGRAM)
    else:
        opened = socket.socket()  # does not listen
    with opened, played_systemd(tmp_path, [opened]) as systemd:
        line = refusal(systemd, server(tmp_path))
    assert "descriptor 3 from the service manager (socket0) is not a TCP socket that listens" in line


def test_inherited_socket_for_other_machines_needs_access_file(tmp_path: Path) -> None:
    """An inherited socket that other machines reach needs an access file, or --open, as --host does."""
    with socket.create_server(("0.0.0.0", 0)) as listening, played_systemd(tmp_path, [listening]) as systemd:
        line = refusal(systemd, server(tmp_path))
        assert "the socket of the service manager on 0.0.0.0 lets other machines connect" in line
        assert "--access" in line
        systemd.start(server(tmp_path, "--open"))
        systemd.until("READY")
        assert systemd.stop() == 0


def test_host_is_not_looked_at(tmp_path: Path, port: socket.socket) -> None:
    """With a socket of loopback, --host opens nothing, so that it needs no access file."""
    with played_systemd(tmp_path, [port]) as systemd:
        systemd.start(server(tmp_path, "--host", "0.0.0.0"))
        systemd.until("READY")
        assert systemd.stop() == 0


class Pusher(threading.Thread):
    """A client that pushes until it is told to stop, and connects again when a connection ends.

    pushed: ids that were answered; connections: how many there were; trouble: what must not happen.
    """

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._over = threading.Event()
        self.pushed: list[int] = []
        self.connections = 0
        self.trouble: list[OSError] = []

    def run(self) -> None:
        while not self._over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), READY_WITHIN) as client:
                    self.connections += 1
                    self._push(client)
            except (ConnectionRefusedError, TimeoutError) as error:
                self.trouble.append(error)
            except OSError:
                pass  # a connection that had begun ended with the server

    def _push(self, client: socket.socket) -> None:
        while not self._over.is_set():
            answer = exchange(client, push("q", "x"))[0]
            if "<error" in answer or not answer.endswith("\n"):  # 503, or the end
                return
            self.pushed += mids(answer)

    def stop(self) -> None:
        self._over.set()
        self.join(READY_WITHIN)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_restarts_without_a_refusal(tmp_path: Path, port: socket.socket, sig: int) -> None:
    """While clients push, the server is stopped, or killed, and started again: no client is refused or has to wait for
    long, and everything that was answered is there. Takes some 5 s."""
    pushers = [Pusher(number(port)) for _ in range(4)]
    with played_systemd(tmp_path, [port]) as systemd:
        systemd.start(server(tmp_path))
        systemd.until("READY")
        with socket.create_connection(("127.0.0.1", number(port)), READY_WITHIN) as client:
            exchange(client, new_queue("q"))
        for pusher in pushers:
            pusher.start()
        for _ in range(3):
            before = [len(pusher.pushed) for pusher in pushers]
            wait_for_pushes(pushers, before)
            assert systemd.stop(sig) == (0 if sig == signal.SIGTERM else -sig)
            with socket.create_connection(("127.0.0.1", number(port)), 5) as early:  # nobody accepts it yet
                early.sendall(PING.encode())
                systemd.start(server(tmp_path))
                systemd.until("READY")
                with early.makefile() as lines:
                    assert "<ping/>" in lines.readline()
        wait_for_pushes(pushers, [len(pusher.pushed) for pusher in pushers])
        for pusher in pushers:
            pusher.stop()
        found = stored(number(port))
        assert systemd.stop() == 0
    assert [pusher.trouble for pusher in pushers] == [[]] * len(pushers)
    assert all(pusher.connections > 3 for pusher in pushers)
    answered = {mid for pusher in pushers for mid in pusher.pushed}
    assert answered <= found


def wait_for_pushes(pushers: list[Pusher], before: list[int]) -> None:
    """Waits until each of them has stored another message."""
    for pusher, count in zip(pushers, before, strict=True):
        for _ in range(READY_WITHIN * 100):
            if len(pusher.pushed) > count:
                break
            pusher.join(0.01)
        assert len(pusher.pushed) > count


def stored(port: int) -> set[int]:
    """The ids of all messages."""
    found: set[int] = set()
    with socket.create_connection(("127.0.0.1", port), READY_WITHIN) as client:
        while ids := mids(exchange(client, receive("q", max=500, visibility=3600))[0]):
            found.update(ids)
    return found
