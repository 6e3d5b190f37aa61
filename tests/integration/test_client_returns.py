"""Calls that are left while messages are on their way to them: cancelled, interrupted, or too long. The messages go
back."""

import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest
from support.clients.every_client import both, run
from support.clients.scripted_server import GIVE_UP, Conversation, answering, scripted

from qs_client import AsyncQueueClient, Delivery, Message, ProtocolMismatch, QueueClient, ReleaseMessage
from qs_client.skimming import Skim
from qs_client.waiting import LINGER
from qs_testing.proxy import Proxy

COUNT = 10


def assert_nothing_in_flight(client: QueueClient, qid: str, count: int) -> None:
    (stats,) = client.stats(qid)
    assert (stats.ready, stats.in_flight) == (count, 0)


LEFT: dict[str, Callable[[AsyncQueueClient, str, int], Awaitable[object]]] = {
    "receive": lambda client, qid, mid: client.receive(qid, COUNT),
    "get": lambda client, qid, mid: client.get(qid, mid),
}


@both
@pytest.mark.parametrize("call", LEFT)
def test_cancelled_while_messages_are_on_their_way(backend: str, call: str, client: QueueClient, qid: str) -> None:
    """When a call is cancelled after its request has gone out, the messages that the server hands out go back."""
    mids = client.push_many(qid, [b"x"] * COUNT)

    async def main() -> None:
        async with AsyncQueueClient(network.host, network.port, timeout=GIVE_UP) as cancelled:
            await cancelled.ping()
            network.stall()
            async with anyio.create_task_group() as group:
                group.start_soon(LEFT[call], cancelled, qid, mids[0])
                await anyio.wait_all_tasks_blocked()
                group.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(network.resume)
            assert_nothing_in_flight(client, qid, COUNT)
            await cancelled.ping()

    with Proxy(client.host, client.port) as network:
        run(backend, main)


@both
def test_cancelled_receive_gives_message_back(backend: str, client: QueueClient, qid: str) -> None:
    """A receive that waits and is cancelled as a message comes gives it back."""

    async def main() -> None:
        async with AsyncQueueClient(client.host, client.port, timeout=GIVE_UP) as cancelled:
            await cancelled.receive(qid, wait=0.001)  # now there is a connection for it
            for _ in range(3):
                async with anyio.create_task_group() as group:
                    group.start_soon(cancelled.receive, qid, COUNT, GIVE_UP)
                    await anyio.lowlevel.checkpoint()
                    client.push(qid, b"x")  # this holds up the other task, which cannot read the answer
                    group.cancel_scope.cancel()
                assert_nothing_in_flight(client, qid, 1)
                client.purge(qid)

    run(backend, main)


@both
def test_the_answer_comes_after_the_cancellation(backend: str) -> None:
    """A waiting receive that is cancelled tells the server that it asks for nothing more, and gives back what comes
    then on another connection."""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    asked = threading.Event()

    async def main() -> None:
        client = AsyncQueueClient(server.host, server.port, timeout=GIVE_UP)
        async with anyio.create_task_group() as group:
            group.start_soon(client.receive, "q", 2, GIVE_UP)
            await anyio.to_thread.run_sync(asked.wait)
            group.cancel_scope.cancel()

    with scripted(late(asked), answering(ReleaseMessage("q"), ReleaseMessage("q"), seen=seen)) as server:
        run(backend, main)
    check_returned(seen)


def late(asked: threading.Event) -> Callable[[Conversation], None]:
    def script(conversation: Conversation) -> None:
        request = conversation.read()
        asked.set()
        assert conversation.read() is None
        conversation.answer(request, qid="q", messages=[Delivery(1, b"x", None, 4), Delivery(2, b"y", "r", 1)])

    return script


def check_returned(seen: "queue.SimpleQueue[Message]") -> None:
    returned = [seen.get(timeout=GIVE_UP) for _ in range(2)]
    assert [(m.qid, m.mid, m.receives) for m in returned if isinstance(m, ReleaseMessage)] == [("q", 1, 4), ("r", 2, 1)]


def test_ctrl_c_in_receive_gives_message_back() -> None:
    """Ctrl-C inside receive() gives back what the server hands out at that moment."""
    code = """
import signal, sys
from qs_client import QueueClient
signal.signal(signal.SIGINT, signal.default_int_handler)
client = QueueClient("127.0.0.1", int(sys.argv[1]))
try:
    client.receive("q", 2, wait=3600)
except KeyboardInterrupt:
    print("interrupted", client.connected)
"""
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    asked = threading.Event()
    with (
        scripted(late(asked), answering(ReleaseMessage("q"), ReleaseMessage("q"), seen=seen)) as server,
        subprocess.Popen([sys.executable, "-c", code, str(server.port)], stdout=subprocess.PIPE) as child,
    ):
        assert asked.wait(GIVE_UP)
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=GIVE_UP)
    assert output == b"interrupted False\n"
    check_returned(seen)


@pytest.mark.parametrize("wait", [0, 5])
def test_an_answer_over_the_bound(wait: float, client: QueueClient, qid: str) -> None:
    """Messages in an answer that is longer than max_document go back; the error says what to raise."""
    mids = client.push_many(qid, [b"<&" * 30_000] * 3)
    with QueueClient(client.host, client.port, max_document=100_000) as small:
        with pytest.raises(ProtocolMismatch, match="larger max_document"):
            small.receive(qid, 3, wait)
        assert_nothing_in_flight(client, qid, 3)
        with pytest.raises(ProtocolMismatch, match="larger max_document"):
            small.get(qid, mids[0])
        assert_nothing_in_flight(client, qid, 3)
        small.max_document = 2_000_000
        assert len(small.receive(qid, 3, wait)) == 3


@both
@pytest.mark.parametrize("wait", [0, 5])
def test_an_async_answer_over_the_bound(backend: str, wait: float, client: QueueClient, qid: str) -> None:
    """With the async client too, messages in an answer that is longer than max_document go back."""
    client.push_many(qid, [b"<&" * 30_000] * 3)

    async def main() -> None:
        async with AsyncQueueClient(client.host, client.port, max_document=100_000) as small:
            with pytest.raises(ProtocolMismatch, match="larger max_document"):
                await small.receive(qid, 3, wait)
            assert_nothing_in_flight(client, qid, 3)

    run(backend, main)


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_skimming(piece: int) -> None:
    """The messages of a document are found however it is cut and its elements ordered, but not those that a payload
    imitates; bytes behind it are not read."""
    document = (
        b'<?xml version="1.0"?><q:qs xmlns:q="http://purl.oclc.org/DEFUZE/qs" req="r" type="response"><q:messages>'
        b'<q:message mid="1" qid="a" receives="2"><q:payload><q:message mid="9"/></q:payload></q:message>'
        b'<q:message mid="2"><q:payload/></q:message></q:messages><q:qid>b</q:qid></q:qs>\r\n<qs><broken'
    )
    skim = Skim(document[:40], "too long")
    for at in range(40, len(document), piece):
        skim.feed(document[at : at + piece])
    assert (skim.req, skim.ended) == ("r", True)
    assert [(m.qid, m.mid, m.receives) for m in skim.releases(ReleaseMessage("c"))] == [("a", 1, 2), ("c", 2, None)]


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_giving_back_connects_in_little_time(timeout: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that gives messages back has a second for connecting, whatever the client's timeout is."""
    spans: list[float | None] = []
    connect = socket.create_connection

    def noting(address: tuple[str, int], span: float | None = None) -> socket.socket:
        spans.append(span)
        return connect(address, span)

    def too_long(conversation: Conversation) -> None:
        conversation.answer(conversation.read(), qid="q", messages=[Delivery(1, b"x" * 100_000, None, 4)])
        conversation.wait_for_close()

    monkeypatch.setattr(socket, "create_connection", noting)
    seen: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with scripted(too_long, answering(ReleaseMessage("q"), seen=seen)) as server:
        client = QueueClient(server.host, server.port, timeout=timeout, max_document=50_000)
        with pytest.raises(ProtocolMismatch):
            client.receive("q")
    assert isinstance(seen.get(timeout=GIVE_UP), ReleaseMessage)
    first, second = spans
    assert first == timeout
    assert second is not None
    assert 0 < second <= LINGER
