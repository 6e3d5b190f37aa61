"""Claims and batches over the wire: a real server, killed between every two steps."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.clients.every_client import both, run
from support.servers.processes import ServerProcess, Wire, serving

from qs_client import (
    AsyncQueueClient,
    BadRequest,
    Conflict,
    Delivery,
    NotFound,
    NotImplementedByServer,
    Part,
    QueueClient,
    Stale,
)

ATTEMPT = 10**18 - 1


@contextlib.contextmanager
def client_of(server: ServerProcess) -> Iterator[QueueClient]:
    with QueueClient(server.host, server.port, timeout=20) as client:
        yield client


@pytest.fixture
def claimed(client: QueueClient, qid: str) -> str:
    """A queue of the journal, on the shared server."""
    client.delete_queue(qid)
    client.new_queue(qid, storage="journal")
    return qid


def payloads(found: list[Delivery]) -> list[bytes]:
    return [delivery.payload for delivery in found]


def test_claim(client: QueueClient, claimed: str) -> None:
    """Every operation of a consumer, and what each says."""
    mids = client.push_many(claimed, [b"%d" % number for number in range(7)])
    made = client.claim_messages(claimed, "c/ä", 1, max=5, upto=mids[5])
    assert (made.seq, made.count, made.bytes, made.first, made.last) == (1, 5, 5, mids[0], mids[4])
    again = client.claim_messages(claimed, "c/ä", 1)
    assert again == made
    found = client.get_claim(claimed, "c/ä", 1)
    assert [(d.mid, d.payload, d.qid, d.receives, d.pushed_at) for d in found] == [
        (mid, b"%d" % number, claimed, 1, mid) for number, mid in enumerate(mids[:5])
    ]
    [listed] = client.list_claims(claimed)
    assert (listed.consumer, listed.seq, listed.count, listed.checksum) == ("c/ä", 1, 5, made.checksum)
    assert listed.since is not None
    assert payloads(client.receive(claimed, 9)) == [b"5", b"6"]
    client.ack_claim(claimed, "c/ä", 1)
    client.ack_claim(claimed, "c/ä", 1)
    assert client.list_claims(claimed) == []
    nothing = client.claim_messages(claimed, "c/ä", 2)
    assert (nothing.seq, nothing.count, nothing.bytes, nothing.first, nothing.last) == (2, 0, 0, None, None)
    [stats] = client.stats(claimed)
    assert (stats.in_flight, stats.deleted) == (2, 5)


def test_errors(client: QueueClient, claimed: str) -> None:
    """Each with its code, and a text that says what to do."""
    [mid] = client.push_many(claimed, [b"1"])
    with pytest.raises(Conflict, match="the next one is 1"):
        client.claim_messages(claimed, "c", 2)
    with pytest.raises(Conflict, match="no claim 1 to acknowledge"):
        client.ack_claim(claimed, "c", 1)
    for missing in (client.get_claim, client.release_claim):
        with pytest.raises(NotFound, match="no claim 1"):
            missing(claimed, "c", 1)  # type: ignore[operator]
    for operation in (client.claim_messages, client.get_claim, client.ack_claim, client.release_claim):
        with pytest.raises(NotFound, match="there is no queue"):
            operation("nowhere", "c", 1)  # type: ignore[operator]
        with pytest.raises(BadRequest):
            operation(claimed, "ä" * 200, 1)  # type: ignore[operator]
    client.claim_messages(claimed, "c", 1)
    for refused in (client.delete, client.release, client.extend):
        with pytest.raises(Stale, match="in a claim"):
            refused(claimed, mid)  # type: ignore[operator]
    with pytest.raises(BadRequest, match="no part 2 of 2"):
        client.get_claim(claimed, "c", 1, part=2, parts=2)
    client.ack_claim(claimed, "c", 1)
    with pytest.raises(Stale, match="the next one is 2"):
        client.claim_messages(claimed, "c", 1)
    with pytest.raises(NotFound, match="part 3 of batch 0"):
        client.publish_staged(claimed, "p", 0, [(3, 1)])
    with pytest.raises(BadRequest, match="named twice"):
        client.publish_staged(claimed, "p", 0, [(3, 1), (3, 2)])


def test_other_storages(client: QueueClient, qid: str) -> None:
    """Storages without claims are refused with the queue, its storage, and what to do."""
    for storage in ("files", "dirq", "dirq-simple", "null"):
        client.delete_queue(qid)
        client.new_queue(qid, storage=storage)
        operations: list[Callable[[], object]] = [
            lambda: client.claim_messages(qid, "c", 1),
            lambda: client.get_claim(qid, "c", 1),
            lambda: client.ack_claim(qid, "c", 1),
            lambda: client.release_claim(qid, "c", 1),
            lambda: client.list_claims(qid),
            lambda: client.stage_messages(qid, "p", [b"1"], batch=0),
            lambda: client.publish_staged(qid, "p", 0, []),
        ]
        for operation in operations:
            with pytest.raises(
                NotImplementedByServer, match=rf"'{qid}'.* '{storage}'.*qs new .*queue-journal.py convert"
            ):
                operation()


def test_large_claim(client: QueueClient, claimed: str) -> None:
    """More than one answer holds: more parts are asked for, each the half of one before, until it fits."""
    client.push_many(claimed, [b"%04d" % number for number in range(2500)])
    assert client.claim_messages(claimed, "c", 1).count == 2500
    asked: list[tuple[int, int]] = []

    def bisected(part: int, parts: int) -> list[bytes]:
        asked.append((part, parts))
        with contextlib.suppress(BadRequest):
            return payloads(client.get_claim(claimed, "c", 1, part=part, parts=parts))
        return bisected(2 * part, 2 * parts) + bisected(2 * part + 1, 2 * parts)

    assert bisected(0, 1) == [b"%04d" % number for number in range(2500)]
    assert asked == [(0, 1), (0, 2), (0, 4), (1, 4), (1, 2), (2, 4), (3, 4)]
    client.ack_claim(claimed, "c", 1)
    assert client.delete_queue(claimed)


def test_large_payloads(client: QueueClient, claimed: str) -> None:
    """A slice of more bytes than a document holds is refused; one message always fits."""
    client.push_many(claimed, [b"x" * (3 << 20)] * 3)
    client.claim_messages(claimed, "c", 1)
    with pytest.raises(BadRequest, match="more 'parts'"):
        client.get_claim(claimed, "c", 1)
    assert sum(len(client.get_claim(claimed, "c", 1, part=part, parts=3)) for part in range(3)) == 3
    assert client.release_claim(claimed, "c", 1) == 3
    client.delete_queue(claimed, force=True)


def test_beside_a_subscriber(client: QueueClient, claimed: str, shared_server: ServerProcess) -> None:
    """Claimed messages are delivered to nobody; released ones are, with a higher receive count."""
    client.push_many(claimed, [b"0", b"1"])
    client.claim_messages(claimed, "c", 1, max=1)
    with client_of(shared_server) as other, contextlib.closing(other.subscribe(claimed)) as deliveries:
        first = next(iter(deliveries))
        assert first.payload == b"1"
        assert client.claim_messages(claimed, "d", 1).count == 0
        assert client.release_claim(claimed, "c", 1) == 1
        second = next(iter(deliveries))
        assert (second.payload, second.receives) == (b"0", 2)


def test_batch(client: QueueClient, claimed: str) -> None:
    """Staged in several calls, published in order of part, not twice."""
    assert client.stage_messages(claimed, "p", [b"10", "11"], batch=3, part=1, attempt=ATTEMPT) == 2
    client.stage_messages(claimed, "p", [b"12"], batch=3, part=1, attempt=ATTEMPT)
    client.stage_messages(claimed, "p", [b"lost"], batch=3, part=0, attempt=1)
    client.stage_messages(claimed, "p", [b"00"], batch=3, part=0, attempt=2)
    assert client.receive(claimed, 9) == []
    for _ in range(2):
        client.publish_staged(claimed, "p", 3, [Part(1, ATTEMPT), (0, 2)])
    assert payloads(client.receive(claimed, 9)) == [b"00", b"10", b"11", b"12"]


@both
def test_async_client_claims_and_publishes(
    backend: str, shared_server: ServerProcess, client: QueueClient, qid: str
) -> None:
    """The async client has the same methods for claims and batches."""

    async def main() -> list[bytes]:
        async with AsyncQueueClient(shared_server.host, shared_server.port, timeout=20) as other:
            await other.stage_messages(qid, "p", [b"1", b"2"], batch=0)
            await other.publish_staged(qid, "p", 0, [(0, 0)])
            await other.claim_messages(qid, "c", 1)
            found = payloads(await other.get_claim(qid, "c", 1))
            assert len(await other.list_claims(qid)) == 1
            assert await other.release_claim(qid, "c", 1) == 2
            await other.claim_messages(qid, "c", 1)
            await other.ack_claim(qid, "c", 1)
            return found

    assert run(backend, main) == [b"1", b"2"]
    assert client.delete_queue(qid)


def test_killed_between_every_two_steps(tmp_path: Path) -> None:
    """`kill -9` after each answer: everything that was answered holds, and can be asked again."""
    with serving(tmp_path / "root") as server:

        def again(operation: Callable[[QueueClient], object]) -> None:
            """Does it; kills; does it again, with the same answer."""
            with client_of(server) as client:
                answer = operation(client)
            server.kill()
            server.start()
            with client_of(server) as client:
                assert operation(client) == answer

        with client_of(server) as client:
            client.new_queue("q")
            client.push_many("q", [b"%d" % number for number in range(4)])
            client.stage_messages("q", "p", [b"staged"], batch=1)
        again(lambda client: client.claim_messages("q", "c", 1, max=2))
        again(lambda client: client.get_claim("q", "c", 1))
        again(lambda client: client.publish_staged("q", "p", 1, [(0, 0)]))
        with client_of(server) as client:
            client.claim_messages("q", "c", 2, max=1)
        again(lambda client: client.ack_claim("q", "c", 1))
        again(lambda client: [claim.seq for claim in client.list_claims("q")])
        with client_of(server) as client:
            assert client.release_claim("q", "c", 2) == 1
        server.kill()
        server.start()
        with client_of(server) as client:
            assert client.list_claims("q") == []
            assert payloads(client.receive("q", 9)) == [b"2", b"3", b"staged"]
            with pytest.raises(Stale):
                client.claim_messages("q", "c", 1)


def test_pipelined(shared_server: ServerProcess, client: QueueClient, claimed: str) -> None:
    """Requests of one connection are one batch for the server: each sees what the one before has done."""
    ops = [
        "<op><push-message/></op><qid>{}</qid><payload>1</payload>",
        '<op seq="1"><claim-messages/></op><qid>{}</qid><consumer>c</consumer>',
        "<op><push-message/></op><qid>{}</qid><payload>2</payload>",
        '<op seq="1"><ack-claim/></op><qid>{}</qid><consumer>c</consumer>',
        '<op seq="2"><claim-messages/></op><qid>{}</qid><consumer>c</consumer>',
        '<op seq="2"><get-claim/></op><qid>{}</qid><consumer>c</consumer>',
    ]
    documents = [f'<qs xmlns="{NAMESPACE}" type="request">{op.format(claimed)}</qs>' for op in ops]
    with Wire(shared_server) as wire:
        last = wire.ask(*documents)
    assert "<payload>2</payload>" in last
    assert "<payload>1</payload>" not in last


NAMESPACE = "http://purl.oclc.org/DEFUZE/qs"
