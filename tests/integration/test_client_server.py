"""QueueClient and AsyncQueueClient against the real server: what their methods do to queues and messages."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from support.servers.processes import FAST, ServerProcess, serving

from qs_client import (
    AsyncQueueClient,
    Conflict,
    Error,
    GetMessage,
    ListQueues,
    Message,
    NewQueue,
    NotEmpty,
    NotFound,
    PushMessage,
    QueueClient,
    ServerUnavailable,
    Stale,
    TooLarge,
)


class Blocking:
    """The async client's methods, each of which waits until the loop in another thread has done it."""

    def __init__(self, client: AsyncQueueClient, portal: BlockingPortal) -> None:
        self._client = client
        self._portal = portal

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, getattr(self._client, name))

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._portal.call(partial(method, *args, **kwargs))

    def handling(self, message: Any) -> contextlib.AbstractContextManager[Any]:
        return self._portal.wrap_async_context_manager(self._client.handling(message))

    def list_messages(self, *args: Any, **kwargs: Any) -> Iterator[int]:
        async def collect() -> list[int]:
            return [mid async for mid in self._client.list_messages(*args, **kwargs)]

        return iter(self._portal.call(collect))


@pytest.fixture(params=["sync", "trio", "asyncio"])
def client(shared_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of the shared server: the sync one, and the async one on both backends."""
    if request.param == "sync":
        with QueueClient(shared_server.host, shared_server.port, timeout=20) as client:
            yield client
        return
    with start_blocking_portal(request.param) as portal:
        async_client = AsyncQueueClient(shared_server.host, shared_server.port, timeout=20)
        yield Blocking(async_client, portal)
        portal.call(async_client.disconnect)


def test_buckers_session(shared_server: ServerProcess) -> None:
    """A session of bucker's documentation works, with a queue made as its users do, and an error that is returned, not
    raised."""
    q = QueueClient(shared_server.host, shared_server.port)
    q.connect()
    m = NewQueue()
    m.qid = "bucker"
    q.send(m)
    assert isinstance(q.recv(), NewQueue)
    q.send(m)
    error = q.recv()
    assert isinstance(error, Error)
    assert (error.code, error.kind, error.text) == (409, "conflict", "'bucker' is already an existing queue")
    q.send(ListQueues())
    answer = q.recv()
    assert isinstance(answer, ListQueues)
    assert "bucker" in answer.queues
    assert Message.parse(answer.xml()) == answer
    q.disconnect()


def test_a_program_of_bucker(shared_server: ServerProcess) -> None:
    """A queue named by bytes, an id of the request, a push that was parsed from what another server once answered, and
    the id of a message as text."""
    kept = (
        f'<qs xmlns="http://purl.oclc.org/DEFUZE/qs" resp="{"1e58" * 16}" type="response"><op><push-message /></op>'
        f"<qid>ported</qid><mid>{'3664' * 16}</mid><payload>aGVsbG8=</payload></qs>"
    )
    q = QueueClient(shared_server.host, shared_server.port, timeout=20)
    q.connect()
    m = NewQueue()
    m.request_id = "1215619200.5"
    m.qid = b"ported"  # type: ignore[assignment]
    q.send(m)
    assert q.recv().request_id == "1215619200.5"
    q.send(Message.parse(kept))
    answer = q.recv()
    assert isinstance(answer, PushMessage)
    assert answer.mid is not None
    for mid in (str(answer.mid), str(answer.mid).encode()):
        got = GetMessage("ported", peek=True)
        got.mid = mid  # type: ignore[assignment]
        q.send(got)
        answered = q.recv()
        assert isinstance(answered, GetMessage)
        assert answered.payload == b"aGVsbG8="
    q.disconnect()


def test_a_name_that_is_bytes(client: QueueClient, qid: str) -> None:
    """A name that is bytes is the queue of that name in UTF-8; one of another type is a TypeError, and nothing is
    sent."""
    name: Any = qid.encode()
    mid = client.push(name, b"x")
    assert list(client.list_messages(name)) == [mid]
    assert [delivery.qid for delivery in client.receive([name])] == [qid]
    client.delete(name, mid)
    for wrong in (5, str, ["q"]):
        with pytest.raises(TypeError):
            client.new_queue(wrong)  # type: ignore[arg-type]
    assert not any(known.startswith("b'") for known in client.queues())


def test_push_receive_delete(client: QueueClient, qid: str) -> None:
    """A message is received as it was pushed, with its id and count of receives, and is gone once deleted."""
    mid = client.push(qid, b"\x00 bytes \xff")
    delivery = client.receive_one(qid)
    assert delivery is not None
    assert (delivery.qid, delivery.mid, delivery.payload, delivery.receives) == (qid, mid, b"\x00 bytes \xff", 1)
    client.delete(delivery)
    with pytest.raises(NotFound):
        client.peek(qid, mid)
    assert client.receive(qid) == []


@pytest.mark.parametrize("payload", ["", "hé\r\n\t<&>]]> \U0001f600", " spaces ", b"\xff\xfe", "x" * 1_000_000])
def test_payload_comes_back_byte_for_byte(client: QueueClient, qid: str, payload: str | bytes) -> None:
    """Any payload comes back byte for byte."""
    client.push(qid, payload)
    (delivery,) = client.receive(qid)
    assert delivery.payload == (payload.encode() if isinstance(payload, str) else payload)


def test_many_messages_keep_order_over_pages(client: QueueClient, qid: str) -> None:
    """Any number of messages goes in and out in order, and is listed over pages."""
    mids = client.push_many(qid, [f"message {n}" for n in range(2500)])
    assert mids == sorted(set(mids))
    assert list(client.list_messages(qid)) == mids
    assert list(client.list_messages(qid, state="all", after=mids[1249])) == mids[1250:]
    assert list(itertools.islice(client.list_messages(qid, state="ready"), 3)) == mids[:3]
    deliveries = list(itertools.chain(*(client.receive(qid, max=1000) for _ in range(3))))
    assert [delivery.mid for delivery in deliveries] == mids
    assert [delivery.text for delivery in deliveries[:2]] == ["message 0", "message 1"]
    assert list(client.list_messages(qid, state="in-flight")) == mids
    assert client.delete_many(deliveries) == mids
    assert client.delete_many(qid, mids[:5]) == []


def test_large_batches(client: QueueClient, qid: str) -> None:
    """Payloads that no one document could carry together go in several."""
    mids = client.push_many(qid, [b"x" * 1_000_000] * 12)
    assert len(mids) == 12
    assert client.purge(qid) == 12


def test_receive_over_several_queues(client: QueueClient, qid: str) -> None:
    """`receive` takes the oldest over all queues named, and delete_many finds each delivery's queue."""
    other = f"{qid}-2"
    client.new_queue(other)
    mids = [client.push(queue, "x") for queue in (qid, other, qid)]
    deliveries = client.receive([qid, other], max=10)
    assert [(delivery.qid, delivery.mid) for delivery in deliveries] == [
        (qid, mids[0]),
        (other, mids[1]),
        (qid, mids[2]),
    ]
    assert sorted(client.delete_many(deliveries)) == sorted(mids)


def test_receive_gets_later_push(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """A receive that waits gets what another client pushes meanwhile."""

    def push() -> None:
        with QueueClient(shared_server.host, shared_server.port) as other:
            other.push(qid, "now")

    thread = threading.Thread(target=push)
    thread.start()
    delivery = client.receive_one(qid, wait=20)
    thread.join()
    assert delivery is not None
    assert delivery.text == "now"


def test_release_and_stale_receipts(client: QueueClient, qid: str) -> None:
    """After a release and another receive, the first receiver's delete, release and extend raise Stale."""
    client.push(qid, "x")
    (first,) = client.receive(qid)
    client.release(first)
    (second,) = client.receive(qid)
    assert (second.mid, second.receives) == (first.mid, 2)
    for late in (client.delete, client.release, client.extend):
        with pytest.raises(Stale):
            late(first)
    assert client.delete_many([first]) == []
    client.delete(second)


def test_extend(client: QueueClient, qid: str) -> None:
    """`extend` moves the window's end, and returns it in microseconds."""
    client.push(qid, "x")
    (delivery,) = client.receive(qid, visibility=60)
    assert delivery.visible_at is not None
    assert 3500e6 < client.extend(delivery, visibility=3600) - delivery.visible_at < 3600e6


def test_get_and_peek(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """`peek` leaves a message new; get starts its window, inside which others get no payload."""
    mid = client.push(qid, "x")
    assert (client.peek(qid, mid).text, client.peek(qid, mid).status) == ("x", "ready")
    assert list(client.list_messages(qid)) == [mid]
    got = client.get(qid, mid, visibility=60)
    assert (got.text, got.status, got.receives) == ("x", "delivered", 1)
    assert list(client.list_messages(qid)) == []
    with QueueClient(shared_server.host, shared_server.port) as other:
        hidden = other.get(qid, mid)
    assert (hidden.payload, hidden.status) == (None, "in-flight")
    client.delete(got)


def test_handling_that_fails_brings_message_again(client: QueueClient, qid: str) -> None:
    """A message whose handling fails comes again; one that was handled does not."""
    client.push(qid, "x")
    (delivery,) = client.receive(qid)
    with pytest.raises(ZeroDivisionError), client.handling(delivery):
        raise ZeroDivisionError
    (again,) = client.receive(qid)
    with client.handling(again):
        pass
    assert client.stats(qid)[0].in_flight == 0


def test_queues(client: QueueClient) -> None:
    """Queues are made, listed, counted and deleted, and errors have their kind."""
    client.delete_queue("made", force=True, missing_ok=True)
    assert client.new_queue("made", visibility=5, capacity=10) is True
    with pytest.raises(Conflict):
        client.new_queue("made")
    assert client.new_queue("made", exist_ok=True) is False
    assert client.new_queue("made", exist_ok=True, capacity=10, visibility=5) is False
    with pytest.raises(Conflict, match="its capacity is 10, not 11"):
        client.new_queue("made", exist_ok=True, capacity=11)
    assert "made" in client.queues()
    client.push("made", "x")
    (info,) = client.stats("made")
    assert (info.qid, info.new, info.ready, info.in_flight, info.bytes) == ("made", 1, 1, 0, 1)
    assert "made" in [info.qid for info in client.stats()]
    with pytest.raises(NotEmpty):
        client.delete_queue("made")
    assert client.delete_queue("made", force=True) is True
    assert client.delete_queue("made", missing_ok=True) is False
    with pytest.raises(NotFound, match="made"):
        client.push("made", "x")


def test_a_restarted_server(shared_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> None:
    """After the server was stopped a call says that nobody is there; after its restart the same client works on."""
    root = tmp_path_factory.mktemp("restart") / "root"
    with serving(root) as first:
        client = QueueClient(first.host, first.port, timeout=20)
        client.new_queue("kept")
        mid = client.push("kept", "x")
    with pytest.raises(ServerUnavailable, match=f"no queue server at {first.host}:{first.port}"):
        client.queues()
    with serving(root, port=first.port):
        assert client.peek("kept", mid).text == "x"
        client.disconnect()


def test_pipelined_pushes(client: QueueClient, qid: str) -> None:
    """`send` and recv pipeline: many pushes before the first answer, answered in order."""
    for n in range(500):
        client.send(PushMessage(qid, str(n)))
    mids = [answer.mid for answer in (client.recv() for _ in range(500)) if isinstance(answer, PushMessage)]
    assert mids == list(client.list_messages(qid))


def test_an_answer_over_the_clients_bound(shared_server: ServerProcess, client: QueueClient, qid: str) -> None:
    """`max_document` bounds what is read of one answer; the error says what to raise."""
    mid = client.push(qid, "x" * 100_000)
    with QueueClient(shared_server.host, shared_server.port, max_document=100_000) as small:
        with pytest.raises(ServerUnavailable, match=r"100000 bytes.*larger max_document"):
            small.peek(qid, mid)
        assert small.max_document == 100_000
        small.max_document = 200_000
        assert small.peek(qid, mid).payload == b"x" * 100_000
    with pytest.raises(ValueError, match="max_document"):
        QueueClient(max_document=0)


def test_a_server_with_a_larger_bound(tmp_path: Path) -> None:
    """A client can read messages of a server with a larger --max-document, with six times that bound."""
    most = 30 * 1024 * 1024
    payload = "&" * (most // 5 - 1000)  # written as &amp;
    with (
        serving(tmp_path / "root", "--durability", "none", "--max-document", str(most)) as server,
        QueueClient(server.host, server.port, timeout=100, max_document=6 * most) as client,
    ):
        client.new_queue("q")
        mids = client.push_many("q", [payload, payload])
        small = QueueClient(server.host, server.port, timeout=100)
        with small as other, pytest.raises(ServerUnavailable, match="larger max_doc"):
            other.receive("q", max=2, visibility=0)
        assert [delivery.mid for delivery in client.receive("q", max=2)] == mids


def test_how_much_fits(tmp_path: Path) -> None:
    """The error for a document that is too large names the flag and the bytes of a binary payload that fit: those do,
    with a long name and the longest key, and a few more do not."""
    name, key = "&" * 80 + "x" * 10, "<" * 200
    with (
        serving(tmp_path / "root", *FAST, "--max-document", "50000") as server,
        QueueClient(server.host, server.port) as client,
    ):
        client.new_queue(name)
        with pytest.raises(
            TooLarge, match=r"limit of 50000 bytes \(--max-document\): at most \d+ bytes of a bin"
        ) as over:
            client.push(name, bytes(40_000), key=key)
        fits = int(over.value.text.split("at most ")[1].split()[0])
        client.push(name, bytes(fits), key=key)
        with pytest.raises(TooLarge):
            client.push(name, bytes(fits + 3072), key=key)
