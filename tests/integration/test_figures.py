"""The figures of a real server: each moves as it should, and counters never go down."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from support.clients.access import authenticate, principal, section, write_access
from support.clients.documents import PING, code, request
from support.servers.figures import CONNECTION, Figures, address, look, look_at_connections
from support.servers.processes import FAST, ServerProcess, Wire, serving
from support.servers.tls import TlsWire, authority, tls_flags

from qs_client import Forbidden, NotFound, QueueClient, Unauthorized

COUNTERS = ("_total", "_bucket", "_sum", "_count")
BYTES = ("bytes_received_total", "bytes_sent_total")
MESSAGES = (
    "pushed", "received", "redelivered", "deleted", "released", "expired", "dead_lettered", "retired",
)  # fmt: skip


def messages(found: Figures) -> dict[str, float]:
    """The totals of messages that are not 0."""
    reasons = {"dead_lettered": {"reason": "receives"}}
    totals = {name: found.get(f"messages_{name}_total", **reasons.get(name, {})) for name in MESSAGES}
    return {name: count for name, count in totals.items() if count}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own, as it counts what a test does."""
    with serving(tmp_path / "root") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[QueueClient]:
    with QueueClient("127.0.0.1", server.port) as connected:
        yield connected


@pytest.mark.parametrize("storage", ["journal", "files", "dirq-simple"])
def test_messages(client: QueueClient, storage: str) -> None:
    """Each thing that happens to a message is counted, over all queues, also when its queue is deleted."""
    for qid in ("a", "b"):
        client.new_queue(qid, storage=storage)
    client.push_many("a", ["1", "2", "3"])
    client.push("b", "4")
    assert messages(look(client)) == {"pushed": 4}
    first, second = client.receive("a", 2)
    client.release(first)
    [again] = client.receive("a", 1)
    assert again.mid == first.mid
    client.delete(second)
    expected = {"pushed": 4, "received": 3, "redelivered": 1, "released": 1, "deleted": 1}
    assert messages(look(client)) == expected
    client.delete_queue("a", force=True)
    assert messages(look(client)) == expected
    client.new_queue("a", storage=storage)
    client.push("a", "5")
    assert client.purge("b") == 1
    assert messages(look(client)) == {**expected, "pushed": 5, "deleted": 2}


def test_windows_and_dead_letters(client: QueueClient) -> None:
    """A window that ends, and a message that was received too often."""
    client.new_queue("failed")
    client.new_queue("q", visibility=0.01, dead_letter="failed", max_receives=2)
    client.push("q", "x")
    for _ in range(2):
        assert client.receive("q", wait=20)
    assert client.receive("failed", wait=20)
    found = messages(look(client))
    # The move is a push to the other queue.
    assert found == {"pushed": 2, "received": 3, "redelivered": 1, "expired": 2, "dead_lettered": 1}


def test_figures_count_claims(client: QueueClient) -> None:
    """Claimed messages count as received, acknowledged ones as deleted, those of a released claim as released."""
    client.new_queue("q")
    client.push_many("q", ["1", "2", "3"])
    client.claim_messages("q", "c", 1, max=3)
    client.release_claim("q", "c", 1)
    client.claim_messages("q", "d", 1, max=2)
    client.ack_claim("q", "d", 1)
    assert messages(look(client)) == {"pushed": 3, "received": 5, "redelivered": 2, "released": 3, "deleted": 2}


def test_requests(client: QueueClient, server: ServerProcess) -> None:
    """Requests by operation and code; what is not a request, and durations of those that are."""
    with pytest.raises(NotFound):
        client.push("q", "x")
    client.new_queue("q")
    client.push("q", "x")
    client.push("q", "y")
    with Wire(server) as wire:
        assert code(wire.ask(request("paint-message"))) == 501
        assert code(wire.ask("<no/>")) == 400
        wire.send("<qs")
        wire.socket.shutdown(socket.SHUT_WR)
        assert code(wire.line()) == 400
    found = look(client)
    assert found.requests("push-message") == {"200": 2, "404": 1}
    assert found.requests("new-queue") == {"200": 1}
    assert found.requests("none") == {"400": 2, "501": 1}
    assert found.requests("server-stats") == {}
    assert look(client).requests("server-stats") == {"200": 1}
    labels = {"operation": "push-message"}
    buckets = [*found.by("request_duration_seconds_bucket", "le", **labels).values()]
    assert len(buckets) == 17
    assert buckets == sorted(buckets)
    assert found.get("request_duration_seconds_bucket", le="+Inf", **labels) == 3
    assert found.get("request_duration_seconds_count", **labels) == 3
    assert 0 < found.get("request_duration_seconds_sum", **labels) < 30


def test_many_at_once(client: QueueClient, server: ServerProcess) -> None:
    """Requests that come together are counted one by one, also those that are merged into one."""
    client.new_queue("q")
    push = request("push-message", "<qid>q</qid><payload>x</payload>")
    with Wire(server) as wire:
        wire.send(*[push, request("push-message", "<qid>none</qid><payload>x</payload>"), push, PING] * 25)
        answers = [code(wire.line()) for _ in range(100)]
    assert answers == [0, 404, 0, 0] * 25
    found = look(client)
    assert found.requests("push-message") == {"200": 50, "404": 25}
    assert found.requests("ping") == {"200": 26}  # one is the greeting of the client that asks
    assert messages(found) == {"pushed": 50}


def test_a_wait_is_no_duration(client: QueueClient, server: ServerProcess) -> None:
    """The time for which a receive waits is not counted, and meanwhile it is among those that wait."""
    client.new_queue("q")
    with Wire(server) as wire:
        wire.send(PING, request("receive-message", "<qid>q</qid>", wait=1.5), PING)
        assert "ping" in wire.line()  # and the next one is begun
        assert look(client).get("waiting_receives") == 1
        assert "receive-message" in wire.line()
        assert "ping" in wire.line()
    found = look(client)
    assert found.get("waiting_receives") == 0
    assert found.requests("receive-message") == {"200": 1}
    for operation in ("receive-message", "ping"):
        assert found.get("request_duration_seconds_sum", operation=operation) < 1


def test_connections_and_bytes(client: QueueClient, server: ServerProcess) -> None:
    """Connections now and so far, and what they have sent and got."""
    before = look(client)
    assert (before.get("connections"), before.get("connections_opened_total")) == (1, 1)
    with Wire(server) as wire:
        answer = wire.ask(PING)
        during = look(client)
        assert (during.get("connections"), during.get("connections_opened_total")) == (2, 2)
        # Upkeep may have had, or have, one more open: a file that it makes for the journal.
        assert abs(during.get("open_files") - before.get("open_files") - 1) <= 1
    both = [len(PING), len(answer)]
    own = [during.get(name) - before.get(name) - size for name, size in zip(BYTES, both, strict=True)]
    after = look(client)
    assert own[0] == after.get(BYTES[0]) - during.get(BYTES[0])  # another server-stats, as long as the one before
    assert own[1] > 1000
    assert before.get("memory_resident_bytes") > 10_000_000


def test_subscriptions(client: QueueClient, server: ServerProcess) -> None:
    """Subscriptions of all clients, one for each subscribe request; what a client has is released when it goes."""
    client.new_queue("a")
    client.new_queue("b")
    client.push("a", "x")
    with Wire(server) as wire:
        wire.ask(request("subscribe", "<queues><queue>a</queue><queue>b</queue></queues>", req="1"))
        wire.line()
        wire.ask(request("subscribe", "<qid>b</qid>", req="2"))
        assert look(client).get("subscriptions") == 2
        assert messages(look(client)) == {"pushed": 1, "received": 1}
    [message] = client.receive("a", wait=20)
    assert message.receives == 2
    found = look(client)
    assert found.get("subscriptions") == 0
    assert messages(found) == {"pushed": 1, "received": 2, "redelivered": 1, "released": 1}


def test_server_figures_of_each_connection(client: QueueClient, server: ServerProcess) -> None:
    """Only when it is asked for: since when each client is connected, and its subscriptions; the oldest first."""
    client.new_queue("a")
    begun = time.time()
    with Wire(server) as idle, Wire(server) as subscriber:
        idle.ask(PING)
        for req in ("1", "2"):
            subscriber.ask(request("subscribe", "<qid>a</qid>", req=req))
        plain, full = look(client).all, client.server_stats(connections=True)
        assert [figure for figure in plain if figure.name in CONNECTION] == []
        # Behind the others.
        assert [figure.name for figure in full[:-6]] == [
            name for name in (figure.name for figure in full) if name not in CONNECTION
        ]
        clients = look_at_connections(client)
        assert [(each.peer, each.principal, each.subscriptions) for each in clients] == [
            (clients[0].peer, "", 0), (address(idle), "", 0), (address(subscriber), "", 2),
        ]  # fmt: skip
    starts = [each.started for each in clients]
    assert starts[0] < begun <= starts[1] <= starts[2] <= time.time()
    while look(client).get("connections") > 1:  # until the server has noticed that the two have gone
        pass
    assert look_at_connections(client) == clients[:1]


def test_who_each_connection_is(tmp_path: Path) -> None:
    """A principal by its certificate or its token; nobody before a token and after a wrong one."""
    access = write_access(
        tmp_path / "access.toml",
        [
            section("principals.billing", certificates=["billing.example.org"], read=["*"]),
            principal("mon&co", monitor=True),
            principal("reader", read=["*"]),
            section("anonymous", read=["*"]),
        ],
    )
    billing_context, other_context = (
        authority().trusting(authority().sign(f"DNS:{name}.example.org")) for name in ("billing", "unlisted")
    )
    flags = (*tls_flags(clients_of=authority()), "--access", str(access))
    with (
        serving(tmp_path / "root", *FAST, *flags) as server,
        TlsWire(server, billing_context) as billing,
        TlsWire(server, other_context) as other,
        QueueClient("127.0.0.1", server.port, tls=other_context, token="mon&co-token") as monitor,
    ):
        for wire in (billing, other):
            wire.ask()
        seen = [[each.principal for each in look_at_connections(monitor)]]
        for token in ("reader-token", "mon&co-token", "wrong"):
            other.ask(authenticate(escape(token)))
            seen.append([each.principal for each in look_at_connections(monitor)])
    assert seen == [["billing", name, "mon&co"] for name in ("", "reader", "mon&co", "")]


def test_journal(client: QueueClient) -> None:
    """The journal's bytes, its syncs, and the memory for payloads."""
    client.new_queue("q")
    before = look(client)
    client.push("q", b"x" * 100_000)
    found = look(client)
    assert found.get("journal_live_bytes") - before.get("journal_live_bytes") > 100_000
    assert found.get("cache_bytes") - before.get("cache_bytes") > 100_000
    assert found.get("journal_bytes") > 100_000
    assert found.get("journal_segments") == 1
    assert found.get("journal_failed") == 0
    assert found.get("journal_sync_seconds_count") == before.get("journal_sync_seconds_count") + 1
    assert found.get("journal_sync_seconds_bucket", le="+Inf") == found.get("journal_sync_seconds_count")
    assert found.get("journal_sync_seconds_sum") > before.get("journal_sync_seconds_sum")
    assert found.get("disk_free_bytes") > 1_000_000
    client.delete("q", client.receive("q")[0].mid)
    assert look(client).get("cache_bytes") < 100_000


def test_counters_never_go_down(client: QueueClient) -> None:
    """Through everything that removes something."""
    client.new_queue("q")
    client.push_many("q", ["x"] * 10)
    before = look(client)
    client.receive("q", 5)
    client.delete_queue("q", force=True)
    after = look(client)
    for each in before.all:
        if each.name.endswith(COUNTERS):
            assert after.get(each.name, **each.labels) >= each.value, each


def test_server_figures_need_monitor_right(tmp_path: Path) -> None:
    """A monitor and an admin may look; failures to authenticate, and refusals, are counted."""
    sections = [principal("monitor", monitor=True), principal("ops", admin=True), principal("reader", read=["*"])]
    access = write_access(tmp_path / "access.toml", sections)
    with serving(tmp_path / "root", *FAST, "--access", str(access)) as server:
        with Wire(server) as wire:
            assert code(wire.ask(authenticate("wrong"))) == 401
            assert code(wire.ask(request("list-queues"))) == 401
        with QueueClient("127.0.0.1", server.port) as nobody, pytest.raises(Unauthorized):
            nobody.server_stats()
        with (
            QueueClient("127.0.0.1", server.port, token="reader-token") as reader,
            pytest.raises(Forbidden, match="'reader' may not monitor the server"),
        ):
            reader.server_stats(connections=True)
        for name in ("monitor", "ops"):
            with QueueClient("127.0.0.1", server.port, token=f"{name}-token") as allowed:
                found = look(allowed)
    counted = found.by("auth_failures_total", "reason")
    assert counted == {"token": 1, "unauthenticated": 2, "forbidden": 1, "handshake": 0}
    assert found.get("request_duration_seconds_sum", operation="authenticate") < 0.1  # without the 0.1 s of the refusal
