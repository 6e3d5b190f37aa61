"""Faults within the process of a real server, as its clients see them, and how they heal."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.testing.faulty_server import FaultyServer, running

from qs_client import Full, QueueClient, ServerError

LONG = 3600.0


@pytest.fixture(params=["journal", "files"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FaultyServer]:
    yield from running(tmp_path, "--storage", request.param)


@pytest.fixture
def client(server: FaultyServer) -> Iterator[QueueClient]:
    """A client that stays connected. There is a queue `q`."""
    with server.client() as client:
        client.new_queue("q")
        yield client


def test_a_full_disk(server: FaultyServer, client: QueueClient) -> None:
    """Pushes and new queues are 507 at once, also small ones; receives and deletes work. Then pushes are stored."""
    client.push_many("q", [b"1", b"2"])
    server.orders.send("full_disk")
    for _ in range(3):
        with pytest.raises(Full):
            client.push("q", b"refused")
    with pytest.raises(Full):
        client.push_many("q", [b"refused"] * 100)
    with pytest.raises(Full):
        client.new_queue("another")
    assert {figure.name: figure.value for figure in client.server_stats()}["disk_free_bytes"] == 0
    [message] = client.receive("q")
    client.delete(message)
    assert server.payloads() == [b"2"]
    assert "is full" in server.log()
    server.orders.send("heal")
    client.push("q", b"3")
    client.new_queue("another")
    assert server.payloads() == [b"2", b"3"]


def test_a_restart_on_a_full_disk(server: FaultyServer, client: QueueClient) -> None:
    """A server that is killed starts on the same full disk with everything, and still has no room for pushes."""
    client.push_many("q", [b"1", b"2"])
    server.orders.send("full_disk")
    server.restart()
    with server.client() as again:
        with pytest.raises(Full):
            again.push("q", b"refused")
        assert server.payloads() == [b"1", b"2"]
        again.delete(again.receive("q")[0])
        server.orders.send("heal")
        again.push("q", b"3")
    assert server.payloads() == [b"2", b"3"]


def test_a_failing_disk(server: FaultyServer, client: QueueClient) -> None:
    """Writes and syncs fail: a push is 500 and not stored. After a restart on a sound disk everything goes on."""
    client.push("q", b"1")
    server.orders.send("failing_disk")
    with pytest.raises(ServerError) as refused:
        client.push("q", b"refused")
    assert refused.value.code == 500
    server.orders.send("heal")
    server.restart()
    assert server.payloads() == [b"1"]
    with server.client() as again:
        again.push("q", b"2")
    assert server.payloads() == [b"1", b"2"]


def test_a_failing_journal_needs_a_restart(tmp_path: Path) -> None:
    """What could not be synced may be lost, so that the journal accepts nothing more, also on a sound disk; reading
    goes on."""
    for server in running(tmp_path):
        with server.client() as client:
            client.new_queue("q")
            client.push("q", b"1")
            server.orders.send("failing_disk")
            for _ in range(2):
                with pytest.raises(ServerError, match="500"):
                    client.push("q", b"refused")
                server.orders.send("heal")
        assert server.payloads() == [b"1"]


def test_reads_fail_too(server: FaultyServer, client: QueueClient) -> None:
    """With `reads`, a payload that is not in memory is 500; after heal() it is read."""
    mid = client.push("q", b"1")
    server.restart()
    server.orders.send("failing_disk", reads=True)
    with server.client() as again:
        with pytest.raises(ServerError, match="500"):
            again.peek("q", mid)
        server.orders.send("heal")
        assert again.peek("q", mid).payload == b"1"


def test_a_slow_disk(server: FaultyServer, client: QueueClient) -> None:
    """A push waits for its sync: the client gives up, and does not know whether it was stored. It is, when the disk is
    as fast as before."""
    server.orders.send("slow", seconds=LONG)
    with server.client(timeout=0.1) as hasty, pytest.raises(TimeoutError):
        hasty.push("q", b"late")
    server.orders.send("heal")
    client.push("q", b"in time")
    assert sorted(server.payloads()) == [b"in time", b"late"]


@pytest.mark.parametrize("hours", [5, -5])
def test_a_clock_that_is_set(tmp_path: Path, hours: int) -> None:
    """The server notices the step at once, and its own time does not jump: windows and delays stay as long as they are,
    and ids increase. So it is when the clock is set back, and on a start with a wrong clock."""
    step = f"the wall clock is 5.0 hours {'ahead of' if hours > 0 else 'behind'} the server's time"
    for server in running(tmp_path):
        with server.client() as client:
            client.new_queue("q")
            first = client.push("q", b"1")
            client.receive("q", visibility=LONG)
            client.push("q", b"2", delay=LONG)
            server.orders.send("skew_clock", seconds=hours * 3600)
            assert server.log().count(step) == 1
            [stats] = client.stats("q")
            assert (stats.in_flight, stats.delayed, stats.ready) == (1, 1, 0)
            assert 0 < client.push("q", b"3") - first < 60e6
        server.restart()
        with server.client() as client:
            assert server.log().count(step) == 2
            assert 0 < client.push("q", b"4") - first < 60e6
            server.orders.send("heal")
            assert "the wall clock is 0.0 seconds" in server.log()


def test_orders_are_checked(tmp_path: Path) -> None:
    """A wrong order is refused with its reason, and the thread goes on."""
    for server in running(tmp_path):
        with pytest.raises(ValueError, match="there is no order '_open'"):
            server.orders.send("_open")
        with pytest.raises(ValueError, match="TypeError"):
            server.orders.send("slow", minutes=1)
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(f"\0{server.setup.control}")
            stranger.sendall(b"hello\n")
        server.orders.send("heal")
        assert server.orders.standing == {}
        server.until_logged("JSONDecodeError")
        server._log.write_text("")


def test_faults_end_one_by_one(server: FaultyServer, client: QueueClient) -> None:
    """The end of one fault leaves the others. Without a process, orders hold from the next start."""
    server.kill()
    server.orders.send("full_disk")
    server.orders.send("skew_clock", seconds=LONG)
    server.start()
    server.orders.send("heal", fault="skew_clock")
    with server.client() as again:
        with pytest.raises(Full):
            again.push("q", b"refused")
        server.kill()
        server.orders.send("heal", fault="full_disk")
        server.start()
    with server.client() as again:
        again.push("q", b"1")


def test_a_power_loss(server: FaultyServer, client: QueueClient) -> None:
    """What was answered is there after the restart, and the server stores on."""
    client.push_many("q", [b"1", b"2", b"3"])
    client.delete(client.receive("q")[0])
    server.lose_power()
    assert server.payloads() == [b"2", b"3"]
    with server.client() as again:
        again.push("q", b"4")
    server.lose_power()
    assert server.payloads() == [b"2", b"3", b"4"]


@pytest.mark.parametrize("storage", ["journal", "files"])
def test_a_power_loss_without_syncs(tmp_path: Path, storage: str) -> None:
    """With durability none, answered messages are lost: so a power loss does take what was not synced."""
    for server in running(tmp_path, "--storage", storage, "--durability", "none"):
        with server.client() as client:
            client.new_queue("q")
            server.kill()
            server.start()
        with server.client() as client:
            client.push_many("q", [b"1", b"2", b"3"])
        server.lose_power()
        assert server.payloads() == []
