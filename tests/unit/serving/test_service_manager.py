"""Tests what the environment says of a service manager, and what is sent to its socket."""

import socket
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from qs_serving.service_manager import ServiceManager


@pytest.fixture
def notify(tmp_path: Path) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    opened.bind(str(tmp_path / "notify"))
    opened.settimeout(10)
    return opened


def manager(notify: socket.socket, **environ: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": notify.getsockname(), **environ}, 77)


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "77"}, 30),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "78"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ],
)
def test_ping_interval_is_half_of_the_watchdog(
    notify: socket.socket, environ: dict[str, str], interval: float | None
) -> None:
    """The interval is half of the watchdog's time, if there is one and it is for this process."""
    with notify:
        assert manager(notify, **environ).ping_interval == interval
    assert ServiceManager(environ, 77).ping_interval is None


@pytest.mark.parametrize("name", ["", "vsock:2:1234", "relative"])
def test_ready_warns_of_an_unknown_socket(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without a socket that can be sent to, nothing is sent; the log names one that cannot."""
    none = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000"}, 77)
    none.ready("here")
    none.stopping()
    assert not none.is_there
    assert none.ping_interval is None
    assert [record.getMessage() for record in caplog.records] == [
        f"NOTIFY_SOCKET={name} is no socket of this machine: nothing is sent there"
    ] * bool(name)


async def test_ping_follows_each_probe(notify: socket.socket, autojump_clock: MockClock) -> None:
    """Each ping follows a probe that has returned; while a probe hangs, there is none."""
    hangs = trio.Event()
    probes: list[float] = []

    async def probe() -> None:
        probes.append(trio.current_time())
        if len(probes) == 3:
            await hangs.wait()

    with notify:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager(notify, WATCHDOG_USEC="60000000").ping, probe)
            await trio.sleep(1000)
            assert probes == [0, 30, 60]
            assert [notify.recv(100), notify.recv(100)] == [b"WATCHDOG=1", b"WATCHDOG=1"]
            hangs.set()
            await trio.sleep(31)
            assert len(probes) == 4
            assert notify.recv(100) == b"WATCHDOG=1"
            nursery.cancel_scope.cancel()


def test_send_gives_up_on_a_full_socket(
    notify: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A service manager that reads nothing holds the process up for a bounded time, and the log says so."""
    monkeypatch.setattr("qs_serving.service_manager._PATIENCE", 0.05)
    with notify:
        full = manager(notify)
        for _ in range(10_000):
            full.stopping()
            if caplog.records:
                break
    assert caplog.records[0].getMessage() == "the service manager could not be told STOPPING=1: timed out"
