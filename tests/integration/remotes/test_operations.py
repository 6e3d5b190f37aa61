"""The queue server over queues that another server keeps: every operation, as on its own queues or with a clear 501."""

import re

import pytest
from support.clients.documents import (
    PING,
    code,
    copy,
    delete,
    delete_list,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    receives,
    release,
    req,
    request,
    text,
)
from support.clients.every_client import run
from support.servers.processes import ServerProcess, Wire
from support.servers.remote import LONG, STORAGES, Elsewhere, attributes, made, stats
from support.storage.memcached import needs_memcached

from qs_client import AsyncQueueClient, NotFound, NotImplementedByServer, QueueClient

pytestmark = needs_memcached
VISIBLE_AT = re.compile(r'visible-at="(\d+)"')


@pytest.fixture
def qid(wire: Wire, name: str, storage: str) -> str:
    """A queue of that storage."""
    return made(wire, name, storage)


@pytest.fixture
def local(wire: Wire, name: str) -> str:
    """Makes a queue of the root's own storage."""
    wire.ask(new_queue(f"{name}-local"))
    return f"{name}-local"


def pushed(wire: Wire, qid: str, payload: str) -> int:
    [mid] = mids(wire.ask(push(qid, payload)))
    return mid


def test_headers(wire: Wire, qid: str, storage: str) -> None:
    """Headers come with the message, those of a single push and those of a list."""
    headers = '<headers><header name="a">1 &lt; 2</header><header name="traceparent">00-x</header></headers>'
    [single] = mids(wire.ask(request("push-message", f"<qid>{qid}</qid>{headers}<payload>single</payload>")))
    entries = f"<message><payload>headed</payload>{headers}</message><message><payload>plain</payload></message>"
    [headed, plain] = mids(wire.ask(request("push-message", f"<qid>{qid}</qid><messages>{entries}</messages>")))
    found: dict[int, str] = {}
    while len(found) < 3:
        line = wire.ask(receive(qid, max=3, wait=LONG))
        for mid, rest in re.findall('<message [^>]*mid="([0-9]+)"[^>]*>(.*?)</message>', line):
            found[int(mid)] = "".join(re.findall("<headers>.*</headers>", rest))
    assert found == {single: headers, headed: headers, plain: ""}


# -- queues


def test_a_queue_of_a_storage(remote_server: ServerProcess, wire: Wire, qid: str, storage: str) -> None:
    """A queue that is asked for by its storage has it, is listed among the others, and is a directory with its options
    only; a second one of the name is a conflict."""
    made(wire, f"{qid}-z", "journal")
    made(wire, f"{qid}-a", "journal")
    assert stats(wire, qid)["storage"] == storage
    assert code(wire.ask(new_queue(qid, f'<options storage="{storage}"/>'))) == 409
    listed = re.findall("<queue>(.*?)</queue>", wire.ask(request("list-queues")))
    assert listed == sorted(listed)
    assert {qid, f"{qid}-z", f"{qid}-a"} <= set(listed)
    assert [path.name for path in (remote_server.root / qid).iterdir()] == [".queue.toml"]


def test_a_name_is_taken_once(wire: Wire, name: str) -> None:
    """A name is one queue, whatever the storages are."""
    for first in ("journal", *STORAGES):
        made(wire, f"{name}-{first}", first)
        for second in ("journal", "files", *STORAGES):
            answer = wire.ask(new_queue(f"{name}-{first}", f'<options storage="{second}"/>'))
            assert code(answer) == 409, (first, second, answer)
        assert stats(wire, f"{name}-{first}")["storage"] == first


@pytest.mark.parametrize(
    ("storage", "option"), [("memcached", 'retention="1"'), ("sqs", 'capacity="1"')], indirect=["storage"]
)
def test_an_option_that_cannot_be(wire: Wire, name: str, storage: str, option: str) -> None:
    """An option that the storage cannot honour is refused with 501, and there is no queue."""
    assert code(wire.ask(new_queue(name, f'<options storage="{storage}" {option}/>'))) == 501
    assert code(wire.ask(push(name, "x"))) == 404


def test_deletion(wire: Wire, qid: str) -> None:
    """A queue that is not empty is deleted by force only; then it is not there."""
    pushed(wire, qid, "one")
    assert code(wire.ask(request("delete-queue", f"<qid>{qid}</qid>"))) == 409
    assert code(wire.ask(request("delete-queue", f"<qid>{qid}</qid>", force="yes"))) == 0
    for asked in (push(qid, "x"), receive(qid), request("delete-queue", f"<qid>{qid}</qid>")):
        assert code(wire.ask(asked)) == 404
    assert f"<queue>{qid}</queue>" not in wire.ask(request("list-queues"))


def test_deletion_of_an_empty_queue(wire: Wire, qid: str) -> None:
    """An empty queue needs no force."""
    assert code(wire.ask(request("delete-queue", f"<qid>{qid}</qid>"))) == 0
    assert code(wire.ask(receive(qid))) == 404


# -- messages that come


def test_push_and_receive(wire: Wire, qid: str) -> None:
    """A pushed message, alone or in a list, is received once, under the answered id."""
    first = pushed(wire, qid, "one")
    rest = mids(wire.ask(push_list(qid, "two", "three")))
    answer = wire.ask(receive(qid, max=10, wait=LONG))
    found = dict(zip(mids(answer), payloads(answer), strict=True))
    assert found == {first: "one", rest[0]: "two", rest[1]: "three"}
    assert payloads(wire.ask(receive(qid))) == []


def test_the_given_order(wire: Wire, qid: str, storage: str) -> None:
    """Queues of another server are asked together, the oldest message first: the given order is 501 and says so. Of one
    queue every order is the same."""
    other = made(wire, f"{qid}-other", storage)
    mid = pushed(wire, qid, "x")
    answer = wire.ask(receive(other, qid, order="given"))
    assert (code(answer), storage in text(answer), "order" in text(answer)) == (501, True, True)
    assert mids(wire.ask(receive(qid, order="given", wait=5))) == [mid]


def test_a_binary_payload(wire: Wire, qid: str) -> None:
    """Bytes come back as they are."""
    wire.ask(request("push-message", f'<qid>{qid}</qid><payload encoding="base64">AP8=</payload>'))
    assert '<payload encoding="base64">AP8=</payload>' in wire.ask(receive(qid, wait=LONG))


def test_a_pipeline_of_pushes(wire: Wire, qid: str) -> None:
    """Pushes that come together are all answered, in order, and all there."""
    wire.send("".join(push(qid, str(number), req=str(number)) for number in range(20)))
    answers = [wire.line() for _ in range(20)]
    assert [req(answer) for answer in answers] == [str(number) for number in range(20)]
    ids = [mid for answer in answers for mid in mids(answer)]
    assert ids == sorted(set(ids))
    seen: list[str] = []
    while len(seen) < 20:
        found = payloads(wire.ask(receive(qid, max=20, wait=LONG)))
        assert found
        seen += found
    assert sorted(seen, key=int) == [str(number) for number in range(20)]


def test_a_delayed_push(wire: Wire, qid: str) -> None:
    """A delayed message is not visible yet, and ends the wait of a receive when it is."""
    wire.ask(push(qid, "later", delay=1))
    assert stats(wire, qid)["delayed"] == "1"
    assert payloads(wire.ask(receive(qid))) == []
    assert payloads(wire.ask(receive(qid, wait=LONG))) == ["later"]


def test_a_key(wire: Wire, name: str) -> None:
    """A key makes a push idempotent in memcached, and is refused for SQS, which stores nothing then."""
    for storage in STORAGES:
        made(wire, f"{name}-{storage}", storage)
    first = mids(wire.ask(push(f"{name}-memcached", "x", key="k")))
    assert mids(wire.ask(push(f"{name}-memcached", "x", key="k"))) == first
    assert stats(wire, f"{name}-memcached")["ready"] == "1"
    refused = wire.ask(push(f"{name}-sqs", "x", key="k"))
    assert (code(refused), "key" in text(refused)) == (501, True)
    assert stats(wire, f"{name}-sqs")["ready"] == "0"


# -- messages that go


def test_a_wait_without_messages(wire: Wire, qid: str) -> None:
    """A receive of an empty queue is answered with nothing, at once or after its wait."""
    for wait in (0, 1):
        answer = wire.ask(receive(qid, wait=wait))
        assert (code(answer), payloads(answer)) == (0, [])


def test_a_push_ends_a_wait(elsewhere: Elsewhere, wire: Wire, other: Wire, qid: str, storage: str) -> None:
    """A receive that waits longer than the test's patience is answered when another client pushes."""
    with elsewhere.waited_at(storage):
        wire.send(receive(qid, wait=10 * LONG))
    mid = pushed(other, qid, "late")
    assert mids(wire.line()) == [mid]


def test_receive_from_several_queues(elsewhere: Elsewhere, wire: Wire, other: Wire, qid: str, storage: str) -> None:
    """Queues of one storage are received from together; a push to any of them ends the wait."""
    second = made(wire, f"{qid}-2", storage)
    with elsewhere.waited_at(storage, 2):
        wire.send(receive(qid, second, wait=10 * LONG))
    pushed(other, second, "late")
    answer = wire.line()
    assert payloads(answer) == ["late"]
    assert f'qid="{second}"' in answer


def test_queues_of_two_storages(wire: Wire, name: str, local: str) -> None:
    """A receive from queues of different storages is refused with that reason; a missing queue is reported first."""
    for storage in STORAGES:
        made(wire, f"{name}-{storage}", storage)
    remote = [f"{name}-{storage}" for storage in STORAGES]
    for pair in (remote, [local, remote[0]], [remote[1], local]):
        answer = wire.ask(receive(*pair, wait=1))
        assert code(answer) == 501
        assert all(qid in text(answer) for qid in pair)
    for qid in (local, *remote):
        answer = wire.ask(receive(qid, f"{name}-nowhere", wait=1))
        assert (code(answer), f"{name}-nowhere" in text(answer)) == (404, True)


def test_a_queue_deleted_during_a_wait(elsewhere: Elsewhere, wire: Wire, other: Wire, qid: str, storage: str) -> None:
    """A receive goes on waiting for the other queues."""
    second = made(wire, f"{qid}-2", storage)
    with elsewhere.waited_at(storage, 2):
        wire.send(receive(qid, second, wait=10 * LONG))
    assert code(other.ask(request("delete-queue", f"<qid>{qid}</qid>"))) == 0
    pushed(other, second, "still")
    assert payloads(wire.line()) == ["still"]


def test_get_peek_and_list_in_memcached(wire: Wire, name: str) -> None:
    """A peek changes nothing, a get begins the window, and the list knows who was retrieved."""
    qid = made(wire, name, "memcached")
    one, two = mids(wire.ask(push_list(qid, "one", "two")))
    listing = request("list-messages", f"<qid>{qid}</qid>")
    asked = f"<qid>{qid}</qid><mid>{one}</mid>"
    assert mids(wire.ask(listing)) == [one, two]
    assert payloads(wire.ask(request("get-message", asked, peek="yes"))) == ["one"]
    assert mids(wire.ask(listing)) == [one, two]
    assert payloads(wire.ask(request("get-message", asked))) == ["one"]
    assert mids(wire.ask(listing)) == [two]
    again = wire.ask(request("get-message", asked))
    assert ('status="in-flight"' in again, payloads(again)) == (True, [])
    assert mids(wire.ask(request("list-messages", f"<qid>{qid}</qid>", state="in-flight"))) == [one]
    assert code(wire.ask(request("get-message", f"<qid>{qid}</qid><mid>1</mid>"))) == 404
    listed = f"<qid>{qid}</qid><messages><mid>1</mid><mid>{one}</mid></messages>"
    looked_at = wire.ask(request("get-message", listed, peek="yes"))
    assert ('status="in-flight"' in looked_at, payloads(looked_at)) == (True, ["one"])


def test_sqs_lookups_are_501(wire: Wire, name: str) -> None:
    """Getting, peeking, listing and copying are refused with 501, and the text says that it is SQS which cannot."""
    qid = made(wire, name, "sqs")
    made(wire, f"{name}-2", "sqs")
    mid = pushed(wire, qid, "x")
    one = f"<qid>{qid}</qid><mid>{mid}</mid>"
    for asked, said in (
        (request("get-message", one), "finds no message by its id"),
        (request("get-message", one, peek="yes"), "finds no message by its id"),
        (
            request("get-message", f"<qid>{qid}</qid><messages><mid>{mid}</mid></messages>", peek="yes"),
            "finds no message",
        ),
        (request("list-messages", f"<qid>{qid}</qid>"), "does not list messages"),
        (copy(qid, mid, f"{name}-2"), "does not copy messages"),
    ):
        answer = wire.ask(asked)
        assert code(answer) == 501
        assert f"'{qid}' has the storage 'sqs', and SQS {said}" in text(answer)


def test_deletion_of_messages(wire: Wire, qid: str) -> None:
    """A message that was received is deleted once, alone or in a list."""
    wire.ask(push_list(qid, "one", "two", "three"))
    first, *rest = mids(wire.ask(receive(qid, max=3, wait=LONG)))
    assert mids(wire.ask(delete(qid, first))) == [first]
    assert code(wire.ask(delete(qid, first))) == 404
    assert mids(wire.ask(delete_list(qid, first, *rest))) == rest
    assert {stats(wire, qid)[state] for state in ("ready", "in-flight")} == {"0"}


def test_release_is_visible_at_once_or_later(wire: Wire, qid: str) -> None:
    """A message that is given back is visible at once, or after the delay."""
    mid = pushed(wire, qid, "x")
    wire.ask(receive(qid, wait=LONG))
    assert code(wire.ask(release(qid, mid))) == 0
    again = wire.ask(receive(qid, wait=LONG))
    assert (mids(again), receives(again)) == ([mid], 2)
    assert VISIBLE_AT.search(wire.ask(release(qid, mid, delay=1)))
    assert payloads(wire.ask(receive(qid))) == []
    assert mids(wire.ask(receive(qid, wait=LONG))) == [mid]


def test_extension(wire: Wire, qid: str) -> None:
    """A window is made longer by what the answer says."""
    mid = pushed(wire, qid, "x")
    before = VISIBLE_AT.search(wire.ask(receive(qid, wait=LONG, visibility=5)))
    after = VISIBLE_AT.search(wire.ask(request("extend-message", f"<qid>{qid}</qid><mid>{mid}</mid>", visibility=100)))
    assert before
    assert after
    assert 90_000_000 < int(after[1]) - int(before[1]) < 100_000_000


def test_a_stale_receipt(wire: Wire, qid: str) -> None:
    """A stale receipt changes nothing."""
    mid = pushed(wire, qid, "x")
    wire.ask(receive(qid, wait=LONG))
    wire.ask(release(qid, mid))
    assert receives(wire.ask(receive(qid, wait=LONG))) == 2
    stale, current = (f'<qid>{qid}</qid><mid receives="{count}">{mid}</mid>' for count in (1, 2))
    for op in ("delete-message", "release-message", "extend-message"):
        answer = wire.ask(request(op, stale))
        assert (code(answer), 'type="stale"' in answer) == (409, True), answer
    assert code(wire.ask(request("delete-message", current))) == 0


def test_purge(wire: Wire, qid: str) -> None:
    """Everything goes, what is in flight too, and the answer says how many."""
    wire.ask(push_list(qid, "one", "two", "three"))
    wire.ask(receive(qid, wait=LONG))
    assert "<count>3</count>" in wire.ask(request("purge-queue", f"<qid>{qid}</qid>"))
    assert payloads(wire.ask(receive(qid, max=3))) == []


def test_figures(wire: Wire, name: str, local: str) -> None:
    """There are figures of one queue and of all, beside those of the server."""
    for storage in STORAGES:
        made(wire, f"{name}-{storage}", storage)
        wire.ask(push_list(f"{name}-{storage}", "one", "two"))
        wire.ask(receive(f"{name}-{storage}", wait=LONG))
    everything = wire.ask(request("queue-stats"))
    names = re.findall(r">([^<>]+)</queue>", everything)
    assert names == sorted(names)
    assert attributes(everything, local)["storage"] == "journal"
    for storage in STORAGES:
        figures = attributes(everything, f"{name}-{storage}")
        expected = {"ready": "1", "in-flight": "1", "pushed": "2", "delivered": "1", "storage": storage}
        alone = stats(wire, f"{name}-{storage}")
        assert (figures | expected, alone | expected) == (figures, alone)


def test_copies(wire: Wire, name: str, local: str) -> None:
    """A message is copied between queues of memcached, and to or from nothing else; what is not there is missed."""
    first, second = (made(wire, f"{name}-{number}", "memcached") for number in (1, 2))
    sqs = made(wire, f"{name}-sqs", "sqs")
    mid = pushed(wire, first, "x")
    assert code(wire.ask(copy(first, mid, second))) == 0
    assert payloads(wire.ask(receive(second, wait=LONG))) == ["x"]
    own = pushed(wire, local, "y")
    for source, which, target in ((first, mid, local), (first, mid, sqs), (local, own, first)):
        answer = wire.ask(copy(source, which, target))
        assert code(answer) == 501
        assert source in text(answer)
        assert target in text(answer)
    assert code(wire.ask(copy(first, mid, f"{name}-nowhere"))) == 404
    assert code(wire.ask(copy(f"{name}-nowhere", mid, first))) == 404


# -- connections


def test_order_on_one_connection(wire: Wire, name: str, local: str) -> None:
    """Requests about queues here and there, sent together, are applied and answered in order."""
    qids = [local, *(made(wire, f"{name}-{storage}", storage) for storage in STORAGES)]
    sent, expected = [], []
    for number in range(8):
        for qid in qids:
            sent += [push(qid, f"{number}", req=f"p{number}-{qid}"), receive(qid, req=f"r{number}-{qid}")]
            expected += [(f"p{number}-{qid}", []), (f"r{number}-{qid}", [str(number)])]
        sent.append(PING)
        expected.append(("", []))
    wire.send("".join(sent))
    found = []
    for _ in sent:
        answer = wire.line()
        found.append((req(answer), payloads(answer)))
    assert found == expected


def test_many_clients_wait(elsewhere: Elsewhere, remote_server: ServerProcess, wire: Wire, name: str) -> None:
    """40 clients that wait for messages elsewhere do not keep those of queues here from going on, and each gets what
    is pushed for it."""
    wire.ask(new_queue(f"{name}-local"))
    qids = [made(wire, f"{name}-{storage}-{n}", storage) for storage in STORAGES for n in range(20)]
    clients = [Wire(remote_server) for _ in qids]
    try:
        with elsewhere.waited_at("memcached", 20), elsewhere.waited_at("sqs", 20):
            for client, qid in zip(clients, qids, strict=True):
                client.send(receive(qid, wait=10 * LONG))
        for number in range(200):
            assert mids(wire.ask(push(f"{name}-local", str(number))))
            assert payloads(wire.ask(receive(f"{name}-local"))) == [str(number)]
        for qid in qids:
            pushed(wire, qid, f"for {qid}")
        for client, qid in zip(clients, qids, strict=True):
            assert payloads(client.line()) == [f"for {qid}"]
    finally:
        for client in clients:
            client.close()


# -- clients as libraries


def test_client_methods_on_remote_queue(remote_server: ServerProcess, name: str, storage: str) -> None:
    """The methods of the client work on such a queue as on any, and its errors are the usual ones."""
    with QueueClient(remote_server.host, remote_server.port, timeout=LONG) as client:
        client.new_queue(name, storage=storage)
        client.push(name, b"one")
        client.push_many(name, ["two", "three"])
        held = client.receive(name, max=3, wait=LONG)
        assert sorted(bytes(message.payload) for message in held) == [b"one", b"three", b"two"]
        client.extend(held[0], visibility=60)
        client.delete(held[0])
        client.release(held[1])
        assert client.delete_many(name, [message.mid for message in held[2:]])
        [info] = client.stats(name)
        assert (info.ready, info.in_flight, info.storage) == (1, 0, storage)
        assert client.purge(name) == 1
        client.delete_queue(name, force=True)
        with pytest.raises(NotFound):
            client.push(name, b"x")


def test_the_async_client(remote_server: ServerProcess, name: str, storage: str) -> None:
    """The asynchronous client works too."""

    async def main() -> None:
        async with AsyncQueueClient(remote_server.host, remote_server.port, timeout=LONG) as client:
            await client.new_queue(name, storage=storage)
            mid = await client.push(name, "one")
            message = await client.receive_one(name, wait=LONG)
            assert message is not None
            assert (message.mid, message.payload) == (mid, b"one")
            await client.delete(message)
            if storage == "sqs":
                with pytest.raises(NotImplementedByServer):
                    await client.peek(name, mid)
            assert (await client.stats(name))[0].deleted == 1

    run("trio", main)
