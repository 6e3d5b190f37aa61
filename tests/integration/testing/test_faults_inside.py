"""Faults of a server's disk, clock, process and machine, as its clients see them, and how they heal."""

import socket
import threading
from collections.abc import Iterator

import pytest

from qs_client import Full, InternalError, QueueClient, ServerUnavailable
from qs_testing import Server, serving
from qs_testing.programs import StartFailedError, until

LONG = 3600.0


@pytest.fixture(params=["journal", "files"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with faults and a queue `q`, with each storage."""
    with serving("--storage", request.param, faults=True) as server:
        yield with_queue(server)
        assert "Traceback" not in server.log()


@pytest.fixture
def journal() -> Iterator[Server]:
    with serving(faults=True) as server:
        yield with_queue(server)


def with_queue(server: Server) -> Server:
    with server.client() as client:
        client.new_queue("q")
    return server


@pytest.fixture
def client(server: Server) -> Iterator[QueueClient]:
    with server.client() as client:
        yield client


def payloads(server: Server) -> list[bytes]:
    return [message.payload for message in server.all_messages("q")]


def push(server: Server, payload: bytes) -> int:
    """Pushes by a client of its own. Returns the id."""
    with server.client() as client:
        return client.push("q", payload)


def test_a_full_disk(server: Server, client: QueueClient) -> None:
    """Pushes and new queues are 507 at once, also small ones; receives and deletes work. Then pushes are stored."""
    client.push_many("q", [b"1", b"2"])
    with server.full_disk():
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
        assert payloads(server) == [b"2"]
        assert "is full" in server.log()
    client.push("q", b"3")
    client.new_queue("another")
    assert payloads(server) == [b"2", b"3"]


def test_a_restart_on_a_full_disk(server: Server, client: QueueClient) -> None:
    """A server that is killed starts on the same full disk with everything, and still has no room for pushes."""
    client.push_many("q", [b"1", b"2"])
    server.full_disk()
    server.kill()
    server.restart()
    with pytest.raises(Full):
        push(server, b"refused")
    with server.client() as again:
        again.delete(again.receive("q")[0])
    server.heal()
    push(server, b"3")
    assert payloads(server) == [b"2", b"3"]


def test_a_failing_disk(server: Server, client: QueueClient) -> None:
    """Writes and syncs fail: a push is 500 and not stored. On a sound disk everything goes on after a restart."""
    client.push("q", b"1")
    with server.failing_disk(), pytest.raises(InternalError):
        client.push("q", b"refused")
    server.kill()
    server.restart()
    assert payloads(server) == [b"1"]
    push(server, b"2")
    assert payloads(server) == [b"1", b"2"]


def test_a_failing_journal_needs_a_restart(journal: Server) -> None:
    """The journal accepts nothing more after a failed sync, also on a sound disk, as data may be lost; reading goes on.
    On the failing disk it does not start."""
    push(journal, b"1")
    failing = journal.failing_disk()
    for _ in range(2):
        with failing, pytest.raises(InternalError):
            push(journal, b"refused")
    assert payloads(journal) == [b"1"]
    with journal.failing_disk(), pytest.raises(StartFailedError, match="Input/output error"):
        journal.restart()
    journal.restart()
    push(journal, b"2")


def test_reads_fail_too(server: Server) -> None:
    """With `reads`, a payload that is not in memory is 500; when the disk works again, it is read."""
    mid = push(server, b"1")
    server.restart()
    with server.client() as client:
        with server.failing_disk(reads=True), pytest.raises(InternalError):
            client.peek("q", mid)
        assert client.peek("q", mid).payload == b"1"


def test_a_slow_disk(server: Server, client: QueueClient) -> None:
    """A push waits for its sync: the client gives up, and does not know whether it was stored. It is, when the disk is
    as fast as before."""
    with server.slow(LONG), server.client(timeout=0.1) as hasty, pytest.raises(TimeoutError):
        hasty.push("q", b"late")
    client.push("q", b"in time")
    until(lambda: sorted(payloads(server)) == [b"in time", b"late"], server.history_folder)


@pytest.mark.parametrize("hours", [5, -5])
def test_a_clock_that_is_set(journal: Server, hours: int) -> None:
    """The server notices the step at once, and its own time does not jump: windows and delays stay as long as they are,
    and ids increase. So it is when the clock is set back, and on a start with a wrong clock."""
    step = f"the wall clock is 5.0 hours {'ahead of' if hours > 0 else 'behind'} the server's time"
    first = push(journal, b"1")
    with journal.client() as client:
        client.receive("q", visibility=LONG)
        client.push("q", b"2", delay=LONG)
        journal.skew_clock(hours * 3600)
        assert journal.log().count(step) == 1
        [stats] = client.stats("q")
        assert (stats.in_flight, stats.delayed, stats.ready) == (1, 1, 0)
        assert 0 < client.push("q", b"3") - first < 60e6
    journal.restart()
    assert journal.log().count(step) == 2
    assert 0 < push(journal, b"4") - first < 60e6
    journal.heal()
    assert "the wall clock is 0.0 seconds" in journal.log()


def test_a_power_loss(server: Server, client: QueueClient) -> None:
    """Everything that was answered is there after the restart, and the server stores on."""
    client.push_many("q", [b"1", b"2", b"3"])
    client.delete(client.receive("q")[0])
    server.power_loss()
    assert payloads(server) == [b"2", b"3"]
    push(server, b"4")
    server.power_loss(restart=False)
    with pytest.raises(ServerUnavailable, match="refused"):
        push(server, b"5")
    server.restart()
    assert payloads(server) == [b"2", b"3", b"4"]


@pytest.mark.parametrize("storage", ["journal", "files"])
def test_a_power_loss_without_syncs(storage: str) -> None:
    """With durability none, answered messages are lost: so a power loss does take what was not synced."""
    with serving("--storage", storage, "--durability", "none", faults=True) as server:
        with_queue(server).restart()  # what is there at a start counts as synced
        stored: list[bytes] = []
        while payloads(server) == stored:  # upkeep syncs too, and may do so just then
            stored.append(b"%d" % len(stored))
            push(server, stored[-1])
            server.power_loss()
        assert payloads(server) == stored[:-1]


def test_a_killed_server(server: Server, client: QueueClient) -> None:
    """A message that a worker holds when the server is killed comes again after its window, and clients connect again
    at the same address."""
    client.push("q", b"1")
    client.receive("q", visibility=0.2)
    server.kill()
    with pytest.raises(ServerUnavailable):
        client.ping()
    server.restart()
    assert client.receive("q", wait=20)[0].payload == b"1"


def test_a_frozen_server(server: Server, client: QueueClient) -> None:
    """No request is answered while the process stands still; what was asked is answered when it goes on."""
    with server.freeze(), server.client(timeout=0.1) as hasty, pytest.raises(TimeoutError):
        hasty.push("q", b"late")
    client.push("q", b"in time")
    until(lambda: sorted(payloads(server)) == [b"in time", b"late"], server.history_folder)


def test_delivered_twice(server: Server, client: QueueClient) -> None:
    """The message comes again while its first consumer still works on it."""
    client.push("q", b"1")
    [first] = client.receive("q", visibility=LONG)
    assert client.receive("q") == []
    server.deliver_twice(first)
    [second] = client.receive("q")
    assert (second.mid, second.receives) == (first.mid, 2)


def test_faults_end_one_by_one(server: Server) -> None:
    """The end of one fault leaves the others. What is asked for while no process runs holds from its start."""
    server.kill()
    full, skewed = server.full_disk(), server.skew_clock(LONG)
    server.restart()
    with skewed:
        pass
    with pytest.raises(Full):
        push(server, b"refused")
    server.kill()
    with full:
        pass
    server.restart()
    push(server, b"1")


def test_orders_are_checked(journal: Server) -> None:
    """A wrong order is refused with its reason, nonsense is ignored, and the thread goes on."""
    orders = journal._orders
    assert orders is not None
    with pytest.raises(ValueError, match="there is no order '_open'"):
        orders.send("_open")
    with pytest.raises(ValueError, match="TypeError"):
        orders.send("slow", minutes=1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"\0{orders._control}")
        stranger.sendall(b"hello\n")
    journal.heal()
    assert orders.standing == {}
    assert "JSONDecodeError" in journal.log()


def test_orders_while_the_server_works(server: Server) -> None:
    """Clients push without a pause while faults come and go: exactly the answered pushes are stored, and each fault has
    its effect."""
    stored: list[bytes] = []
    stop = threading.Event()
    refused = threading.Event()

    def work(name: str) -> None:
        with server.client() as client:
            for number in range(1_000_000):
                if stop.is_set():
                    return
                payload = f"{name} {number}".encode()
                try:
                    client.push("q", payload)
                    stored.append(payload)
                except Full:
                    refused.set()

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for _ in range(5):
        refused.clear()
        with server.full_disk():
            assert refused.wait(20)
        with server.slow(0.001):
            push(server, b"slow")
    stop.set()
    for thread in threads:
        thread.join(20)
    assert sorted(found for found in payloads(server) if found != b"slow") == sorted(stored)


def test_a_shared_server_has_no_faults() -> None:
    """Each fault is refused, with a text that says how to ask for a server that has faults."""
    with serving() as server:
        for fault in (server.full_disk, server.power_loss, server.kill, server.freeze, server.cut, server.heal):
            with pytest.raises(RuntimeError, match="qs_faults"):
                fault()
