"""Faults on connections, as clients of a real server see them, and how they heal."""

import itertools
import threading
import time
from collections.abc import Iterable, Iterator

import pytest
from support.servers.processes import BusProcess, ServerProcess
from support.servers.tls import authority

from qs_client import BusClient, QueueClient, ServerUnavailable
from qs_testing.proxy import Proxy

_numbers = itertools.count()


@pytest.fixture
def proxy(shared_server: ServerProcess) -> Iterator[Proxy]:
    with Proxy(shared_server.host, shared_server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[QueueClient]:
    """A client that is connected through the proxy."""
    with QueueClient(proxy.host, proxy.port, timeout=20) as client:
        client.ping()
        yield client


@pytest.fixture
def qid(client: QueueClient) -> str:
    qid = f"q{next(_numbers)}"
    client.new_queue(qid)
    return qid


def push_pipelined(client: QueueClient, qid: str, numbers: Iterable[int]) -> None:
    with client.pipeline() as pipeline:
        for number in numbers:
            pipeline.push(qid, b"%d" % number)


def payloads(server: ServerProcess, qid: str) -> list[bytes]:
    with QueueClient(server.host, server.port) as client:
        return [message.payload for message in client.peek_many(qid, client.list_messages(qid, state="all"))]


def test_an_answer_is_lost(proxy: Proxy, client: QueueClient, qid: str, shared_server: ServerProcess) -> None:
    """The push is stored, and the client cannot know that: another try stores the message a second time."""
    proxy.lose_answer()
    with pytest.raises(ServerUnavailable, match="whether the request was carried out is not known"):
        client.push(qid, b"x")
    assert payloads(shared_server, qid) == [b"x"]
    client.push(qid, b"x")
    assert payloads(shared_server, qid) == [b"x", b"x"]


def test_an_answer_is_lost_with_a_key(
    proxy: Proxy, client: QueueClient, qid: str, shared_server: ServerProcess
) -> None:
    """With a key, the client itself tries again, and the message is stored once."""
    proxy.lose_answer()
    client.push(qid, b"x", key="k")
    assert payloads(shared_server, qid) == [b"x"]


def test_an_answer_never_comes(proxy: Proxy, client: QueueClient, qid: str, shared_server: ServerProcess) -> None:
    """The client gives up after its time-out, and its next call works."""
    proxy.lose_answer(cut=False)
    with (
        QueueClient(proxy.host, proxy.port, timeout=0.2) as hasty,
        pytest.raises(TimeoutError),
    ):
        hasty.push(qid, b"x")
    assert payloads(shared_server, qid) == [b"x"]
    client.push(qid, b"y")
    assert payloads(shared_server, qid) == [b"x", b"y"]


def test_a_lost_answer_among_many(proxy: Proxy, client: QueueClient, qid: str, shared_server: ServerProcess) -> None:
    """The answer to the first of several pipelined pushes is lost, and with it those after it."""
    proxy.lose_answer()
    with pytest.raises(ServerUnavailable):
        push_pipelined(client, qid, range(5))
    stored = payloads(shared_server, qid)
    assert stored == [b"0", b"1", b"2", b"3", b"4"][: len(stored)]
    assert stored


def test_a_cut(proxy: Proxy, client: QueueClient, qid: str) -> None:
    """A call that waits fails at once, and the next one connects again."""
    failed: list[ServerUnavailable] = []

    def wait() -> None:
        try:
            client.receive(qid, wait=60)
        except ServerUnavailable as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    with QueueClient(proxy.host, proxy.port) as other:
        while other.stats(qid)[0].waiting == 0:
            pass
    proxy.cut()
    waiting.join(20)
    assert len(failed) == 1
    client.push(qid, b"x")


def test_a_cut_in_an_answer(proxy: Proxy, client: QueueClient, qid: str) -> None:
    """A received message is lost on its way, and stays in flight until its window ends."""
    client.push(qid, b"x")
    proxy.cut_in_answer()
    with pytest.raises(ServerUnavailable):
        client.receive(qid)
    [stats] = client.stats(qid)
    assert (stats.ready, stats.in_flight) == (0, 1)


def test_a_stall(proxy: Proxy, client: QueueClient, qid: str, shared_server: ServerProcess) -> None:
    """A client gives up after its time-out; another one's call is answered when the network is back."""
    proxy.stall()
    with QueueClient(proxy.host, proxy.port, timeout=0.2) as hasty, pytest.raises(TimeoutError):
        hasty.ping()
    pushing = threading.Thread(target=client.push, args=(qid, b"x"))
    pushing.start()
    assert payloads(shared_server, qid) == []
    proxy.resume()
    pushing.join(20)
    assert payloads(shared_server, qid) == [b"x"]


def test_a_delay(proxy: Proxy, client: QueueClient, qid: str, shared_server: ServerProcess) -> None:
    """A call takes two delays longer, and many pipelined ones hardly more."""
    proxy.delay(0.05)
    began = time.monotonic()
    client.push(qid, b"0")
    single = time.monotonic() - began
    assert single >= 0.1
    push_pipelined(client, qid, range(1, 50))
    assert time.monotonic() - began < 25 * single
    assert payloads(shared_server, qid) == [b"%d" % n for n in range(50)]


def test_it_refuses(proxy: Proxy, client: QueueClient) -> None:
    """A new client finds nobody, and one that is connected goes on."""
    proxy.refuse()
    with pytest.raises(ServerUnavailable, match="refused"):
        QueueClient(proxy.host, proxy.port).ping()
    client.ping()
    proxy.admit()
    with QueueClient(proxy.host, proxy.port) as other:
        other.ping()


def test_through_tls(tls_server: ServerProcess) -> None:
    """TLS passes, and is delayed, stalled and cut; that a push is lost cannot be."""
    with (
        Proxy(tls_server.host, tls_server.port) as proxy,
        QueueClient(proxy.host, proxy.port, timeout=20, tls=authority().cert) as client,
    ):
        client.ping()
        proxy.lose_answer()
        client.new_queue("through-tls")
        client.push("through-tls", b"x")
        proxy.cut_in_answer()
        with pytest.raises(ServerUnavailable):
            client.ping()
        client.ping()


def test_a_bus(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """Between a subscriber and its bus, a cut takes nothing away: the message that it held comes again."""
    client.push(qid, b"x")
    bus = BusProcess(shared_server)
    try:
        with Proxy(bus.host, bus.port) as between, BusClient(between.host, between.port, timeout=20) as subscriber:
            messages = subscriber.subscribe(qid, ack=True)
            assert next(messages).payload == b"x"
            between.cut()
            assert next(messages).payload == b"x"
    finally:
        bus.stop()
