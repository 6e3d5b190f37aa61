"""The server and the bus as services: what they tell systemd, and the watchdog."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.documents import PING, new_queue, push
from support.servers.processes import BUS_COMMAND as BUS
from support.servers.processes import COMMAND, exchange, settled, woken
from support.servers.systemd import PlayedSystemd, played_systemd

from qs_testing.programs import READY_WITHIN, until

USEC = "400000"
"""The watchdog's time: a service has to say every 0.2 s that it lives."""


@pytest.fixture(params=["server", "bus"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "bus":
        return [*BUS, "--port", "0", "--server", "127.0.0.1:9"]
    return [*COMMAND, "--port", "0", "--root", str(tmp_path / "root")]


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlayedSystemd]:
    with played_systemd(tmp_path, abstract=request.param == "abstract") as played:
        yield played


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[PlayedSystemd]:
    with played_systemd(tmp_path) as played:
        yield played


def answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), READY_WITHIN) as client:
        return "<ping/>" in exchange(client, PING)[0]


def test_from_start_to_stop(systemd: PlayedSystemd, command: list[str]) -> None:
    """READY=1 comes when clients can connect, STOPPING=1 at the signal, and nothing between; both have a status."""
    systemd.start(command)
    said = systemd.hear()
    assert (said["READY"], said["STATUS"]) == ("1", f"listening on 127.0.0.1:{systemd.port()}")
    if command[1].endswith("queue-server.py"):
        assert answers(systemd.port())
    assert systemd.stop() == 0
    assert systemd.hear_all() == [{"STOPPING": "1", "STATUS": "finishing what is begun"}]


def test_service_that_cannot_start_is_not_ready(plain: PlayedSystemd, tmp_path: Path) -> None:
    """A service that cannot start is never ready."""
    (tmp_path / "root").touch()
    plain.start([*COMMAND, "--root", str(tmp_path / "root")])
    assert plain.process is not None
    assert plain.process.wait(READY_WITHIN) == 1
    assert plain.hear_all() == []


def reload(systemd: PlayedSystemd) -> str:
    """Reloads the service. The status that it has then."""
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    systemd.send_signal(signal.SIGHUP)
    said = systemd.until("RELOADING")
    assert before <= int(said["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    return systemd.until("READY")["STATUS"]


def test_systemd_hears_of_reload(plain: PlayedSystemd, command: list[str], tmp_path: Path) -> None:
    """`systemd` hears of a reload, when it begins and when it is over, also of one that was refused."""
    access = tmp_path / "access.toml"
    access.write_text("")
    plain.start([*command, "--access", str(access)])
    plain.until("READY")
    where = f"listening on 127.0.0.1:{plain.port()}"
    assert reload(plain) == where
    access.write_text("nonsense = 1")
    assert reload(plain).startswith(f"{where}; not reloaded: {access}: ")
    access.write_text("")
    assert reload(plain) == where
    assert plain.stop() == 0


def test_reload_of_nothing(plain: PlayedSystemd, command: list[str]) -> None:
    """A server without files to read again does not end at SIGHUP when it is a service."""
    plain.start(command)
    plain.until("READY")
    assert reload(plain) == f"listening on 127.0.0.1:{plain.port()}"
    assert plain.stop() == 0


def test_the_watchdog(plain: PlayedSystemd, command: list[str]) -> None:
    """A sign of life comes at least every half of the time. While the process stands still none comes, and then they
    come again."""
    plain.start(command, WATCHDOG_USEC=USEC)
    plain.until("READY")
    for _ in range(3):
        plain.until("WATCHDOG")
    plain.send_signal(signal.SIGSTOP)
    assert plain.process is not None
    os.waitid(os.P_PID, plain.process.pid, os.WSTOPPED)
    plain.hear_all()
    with pytest.raises(TimeoutError):
        plain.hear(1)
    plain.send_signal(signal.SIGCONT)
    plain.until("WATCHDOG")
    assert plain.stop() == 0


@pytest.mark.parametrize("clients", [1, 3])
def test_the_watchdog_at_work(plain: PlayedSystemd, tmp_path: Path, clients: int) -> None:
    """Signs of life come from the loop and from the thread, and requests are answered between them."""
    plain.start([*COMMAND, "--port", "0", "--root", str(tmp_path / "root")], WATCHDOG_USEC=USEC)
    plain.until("READY")
    connections = [socket.create_connection(("127.0.0.1", plain.port()), READY_WITHIN) for _ in range(clients)]
    exchange(connections[0], new_queue("q"))
    for _ in range(3):
        plain.until("WATCHDOG")
        for connection in connections:
            assert "<push-message/>" in exchange(connection, push("q", "x"))[0]
    for connection in connections:
        connection.close()
    assert plain.stop() == 0


@pytest.mark.parametrize("environ", [{}, {"WATCHDOG_USEC": USEC, "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}])
def test_no_watchdog(plain: PlayedSystemd, tmp_path: Path, environ: dict[str, str]) -> None:
    """Without a watchdog, or with one that is for another process, a server that has nothing to do never wakes up."""
    plain.start([*COMMAND, "--port", "0", "--root", str(tmp_path / "root")], **environ)
    plain.until("READY")
    assert plain.process is not None
    settled(plain.process.pid)
    assert woken(1, plain.process.pid)[0] <= 1
    assert plain.hear_all() == []


def test_nobody_hears(tmp_path: Path) -> None:
    """A server serves and stops although nobody is at the notify socket; the log says so."""
    with played_systemd(tmp_path) as played:
        played.start([*COMMAND, "--port", "0", "--root", str(tmp_path / "r")], NOTIFY_SOCKET=str(tmp_path / "none"))
        until(lambda: "listening on " in played.log.read_text(), tmp_path)
        assert answers(played.port())
        assert played.stop() == 0
        assert "the service manager could not be told READY=1: [Errno 2]" in played.log.read_text()


def test_json_lines_of_a_service(plain: PlayedSystemd, tmp_path: Path) -> None:
    """With --log-format json, what it says on standard error is JSON, also why it cannot start."""
    (tmp_path / "root").touch()
    plain.start([*COMMAND, "--root", str(tmp_path / "root"), "--log-format", "json"])
    assert plain.process is not None
    assert plain.process.wait(READY_WITHIN) == 1
    assert re.fullmatch(
        r'\{"time": "[^"]*Z", "level": "ERROR", "logger": "queue-server.py", "message": "cannot use root .*"\}\n',
        plain.log.read_text(),
    )


def test_activated_by_systemd_itself(tmp_path: Path) -> None:
    """`systemd-socket-activate` opens the port, and starts the server when the first client connects."""
    if (activate := shutil.which("systemd-socket-activate")) is None:
        pytest.skip("NOT TESTED with systemd itself: there is no systemd-socket-activate (apt install systemd)")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = [*COMMAND, "--root", str(tmp_path / "root"), "-v"]
    process = subprocess.Popen(
        [activate, "-l", f"127.0.0.1:{port}", "--fdname=qs-server", *flags], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert "Listening on" in process.stderr.readline()
        assert answers(port)
        process.terminate()
        assert process.wait(READY_WITHIN) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
