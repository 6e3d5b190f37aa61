"""Subscribers of queues that another server keeps: what they are sent, what they hold, and what they give back."""

import re
import signal
import subprocess
import sys

import pytest
from support.clients.documents import (
    PING,
    code,
    delete,
    is_delivery,
    mids,
    payloads,
    push,
    push_list,
    receive,
    receives,
    release,
    req,
    request,
    subscribe,
    text,
    unsubscribe,
)
from support.servers.processes import ServerProcess, Wire, bus_serving
from support.servers.remote import LONG, STORAGES, Elsewhere, attributes, made, stats
from support.storage.memcached import needs_memcached

from qs_client import QueueClient
from qs_testing.programs import READY_WITHIN

pytestmark = needs_memcached
QS = "import sys; from qs_client.command import main; sys.exit(main())"


@pytest.fixture
def qid(other: Wire, name: str, storage: str) -> str:
    """A queue of that storage."""
    return made(other, name, storage)


def deliveries(wire: Wire, count: int) -> list[str]:
    """Returns the next lines, which are deliveries."""
    lines = [wire.line() for _ in range(count)]
    assert all(map(is_delivery, lines)), lines
    return lines


def test_deliveries(wire: Wire, other: Wire, qid: str) -> None:
    """A subscriber gets the messages from before and after its subscription, with its req."""
    first = mids(other.ask(push(qid, "before")))
    assert code(wire.ask(subscribe(qid, req="mine"))) == 0
    [one] = deliveries(wire, 1)
    assert (mids(one), payloads(one), req(one)) == (first, ["before"], "mine")
    second = mids(other.ask(push(qid, "after")))
    [two] = deliveries(wire, 1)
    assert (mids(two), payloads(two), req(two)) == (second, ["after"], "mine")
    assert stats(other, qid)["in-flight"] == "2"


def test_acknowledgement(wire: Wire, other: Wire, qid: str) -> None:
    """A message that the subscriber deletes is gone, and makes room for the next."""
    other.ask(push_list(qid, "one", "two", "three"))
    wire.ask(subscribe(qid, prefetch=1))
    seen = []
    for _ in range(3):
        [line] = deliveries(wire, 1)
        seen += payloads(line)
        assert mids(wire.ask(delete(qid, *mids(line)))) == mids(line)
    assert sorted(seen) == ["one", "three", "two"]
    assert (stats(other, qid)["in-flight"], stats(other, qid)["ready"]) == ("0", "0")


def test_release_by_subscriber_delivers_again(wire: Wire, other: Wire, qid: str) -> None:
    """A message that the subscriber releases is delivered again."""
    [mid] = mids(other.ask(push(qid, "x")))
    wire.ask(subscribe(qid))
    assert receives(deliveries(wire, 1)[0]) == 1
    wire.send(release(qid, mid))
    [again] = [line for line in (wire.line(), wire.line()) if is_delivery(line)]  # it may come before the answer
    assert (mids(again), receives(again)) == ([mid], 2)


def test_no_more_than_there_is_room_for(elsewhere: Elsewhere, wire: Wire, other: Wire, qid: str) -> None:
    """A subscriber without room has nothing fetched for it: the others' messages stay visible, never received."""
    other.ask(push_list(qid, *(str(number) for number in range(5))))
    wire.ask(subscribe(qid, prefetch=2))
    held = deliveries(wire, 2)
    found = other.ask(receive(qid, max=10, wait=LONG))
    assert len(mids(found)) == 3
    assert set(re.findall(r'receives="(\d+)"', found)) == {"1"}
    assert not {mid for line in held for mid in mids(line)} & set(mids(found))


def test_the_next_after_a_full_subscriber(wire: Wire, other: Wire, qid: str) -> None:
    """A subscriber without room leaves messages to the other one."""
    wire.ask(subscribe(qid, prefetch=1))
    other.ask(subscribe(qid, prefetch=100))
    with QueueClient(*wire.socket.getpeername(), timeout=LONG) as client:
        client.push_many(qid, [str(number) for number in range(10)])
    [one] = deliveries(wire, 1)
    rest = deliveries(other, 9)
    assert sorted(payload for line in (one, *rest) for payload in payloads(line)) == [str(n) for n in range(10)]


def test_two_share(wire: Wire, other: Wire, remote_server: ServerProcess, qid: str) -> None:
    """Each message goes to one of two subscribers, and both get some."""
    wire.ask(subscribe(qid))
    other.ask(subscribe(qid))
    with QueueClient(remote_server.host, remote_server.port, timeout=LONG) as client:
        client.push_many(qid, [str(number) for number in range(10)])
    mine, theirs = deliveries(wire, 5), deliveries(other, 5)
    assert sorted(payload for line in (*mine, *theirs) for payload in payloads(line)) == [str(n) for n in range(10)]


def test_subscription_to_several_storages(wire: Wire, other: Wire, qid: str) -> None:
    """One subscription may be to queues here, in memcached and at SQS at once."""
    names = {f"{qid}-{storage}": storage for storage in ("journal", *STORAGES)}
    for name, storage in names.items():
        made(other, name, storage)
    wire.ask(subscribe(*names))
    for name in names:
        other.ask(push(name, f"to {name}"))
    found = {payload for line in deliveries(wire, 3) for payload in payloads(line)}
    assert found == {f"to {name}" for name in names}


def test_disconnection(elsewhere: Elsewhere, wire: Wire, other: Wire, qid: str, storage: str) -> None:
    """After a disconnection, messages of a subscriber with room for more are visible long before their windows end,
    though its server still waits for more."""
    sent = mids(other.ask(push_list(qid, "one", "two")))
    with elsewhere.waited_at(storage):
        wire.ask(subscribe(qid, visibility=3600))
        held = deliveries(wire, 1)
    if len(held) < 2:
        deliveries(wire, 1)
    wire.close()
    seen: list[int] = []
    while len(seen) < 2:  # they come back one by one
        found = other.ask(receive(qid, max=2, wait=LONG, visibility=3600))
        assert mids(found), f"only {seen} of {sent}"
        seen += mids(found)
    assert sorted(seen) == sent


def test_figures_of_consumers(remote_server: ServerProcess, wire: Wire, other: Wire, qid: str) -> None:
    """`queue-stats` counts subscriptions and receives that wait, of one queue and in the figures of all."""

    def figures() -> list[tuple[str, str]]:
        everything = other.ask(request("queue-stats"))
        found = stats(other, qid), attributes(everything, qid)
        return [(each["subscribers"], each["waiting"]) for each in found]

    assert figures() == [("0", "0")] * 2
    wire.ask(subscribe(qid))
    assert figures() == [("1", "0")] * 2
    wire.ask(unsubscribe())
    with Wire(remote_server) as waiting:
        waiting.ask(PING + receive(qid, wait=LONG))  # once that ping is answered, the receive waits
        assert figures() == [("0", "1")] * 2
        sent = mids(other.ask(push(qid, "x")))
        assert mids(waiting.line()) == sent
        assert figures() == [("0", "0")] * 2


def test_the_end_of_a_subscription(wire: Wire, other: Wire, qid: str) -> None:
    """After unsubscribing nothing is delivered: what comes stays visible for others. What was delivered is held."""
    [first] = mids(other.ask(push(qid, "first")))
    wire.ask(subscribe(qid, req="mine"))
    deliveries(wire, 1)
    assert code(wire.ask(unsubscribe("mine"))) == 0
    [second] = mids(other.ask(push(qid, "second")))
    assert mids(other.ask(receive(qid, max=2, wait=LONG))) == [second]
    assert not is_delivery(wire.ask(PING))
    assert mids(wire.ask(delete(qid, first))) == [first]


def test_a_queue_is_deleted(wire: Wire, other: Wire, qid: str) -> None:
    """A subscription whose only queue is deleted ends with an error."""
    wire.ask(subscribe(qid, req="mine"))
    assert code(other.ask(request("delete-queue", f"<qid>{qid}</qid>", force="yes"))) == 0
    told = wire.line()
    assert (code(told), req(told), qid in text(told)) == (404, "mine", True)
    assert code(wire.ask(subscribe(qid))) == 404


def test_its_own_message(wire: Wire, other: Wire, request: pytest.FixtureRequest) -> None:
    """A subscriber may get the message that was delivered to it, with its payload; others see it in flight."""
    qid = made(other, request.node.name, "memcached")
    [mid] = mids(other.ask(push(qid, "x")))
    wire.ask(subscribe(qid))
    deliveries(wire, 1)
    asked = f'<qs xmlns="http://purl.oclc.org/DEFUZE/qs"><op><get-message/></op><qid>{qid}</qid><mid>{mid}</mid></qs>'
    assert payloads(wire.ask(asked)) == ["x"]
    assert payloads(other.ask(asked)) == []


def test_many_messages(wire: Wire, other: Wire, qid: str) -> None:
    """More than the 100 that are fetched at once: each comes once."""
    sent = mids(other.ask(push_list(qid, *(str(number) for number in range(110)))))
    wire.ask(subscribe(qid, prefetch=1000))
    assert sorted(mid for line in deliveries(wire, 110) for mid in mids(line)) == sent
    assert stats(other, qid)["delivered"] == "110"


def test_client_subscription_to_remote_queue(remote_server: ServerProcess, other: Wire, qid: str) -> None:
    """The client's subscription: messages one by one, acknowledged; what was not is given back at its end."""
    other.ask(push_list(qid, "one", "two", "three"))
    with (
        QueueClient(remote_server.host, remote_server.port, timeout=LONG) as client,
        client.subscribe(qid, visibility=3600) as messages,
    ):
        kept = next(messages)
        client.delete(kept)
        next(messages)
    seen: set[int] = set()
    while len(seen) < 2:
        found = mids(other.ask(receive(qid, max=2, wait=LONG)))
        assert found
        seen |= set(found)
    assert kept.mid not in seen


def test_the_bus(remote_server: ServerProcess, other: Wire, qid: str) -> None:
    """The bus over such a queue: `qs tail` prints what is pushed, and it is deleted."""
    with bus_serving(remote_server, "--queue", qid) as bus:
        tail = subprocess.Popen(
            [sys.executable, "-c", QS, "tail", qid, "-n2", "--bus", f"{bus.host}:{bus.port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            other.ask(push_list(qid, "one", "two"))
            out, error = tail.communicate(timeout=READY_WITHIN)
        finally:
            if tail.poll() is None:
                tail.send_signal(signal.SIGKILL)
                tail.communicate()
        assert (sorted(out.split()), error, tail.returncode) == (["one", "two"], "", 0)
        assert bus.stop() == 0  # it deletes what is acknowledged before it ends, if not sooner
        assert stats(other, qid)["deleted"] == "2"


def test_nothing_is_received_for_who_has_gone(
    elsewhere: Elsewhere, wire: Wire, other: Wire, request: pytest.FixtureRequest
) -> None:
    """A message that comes after the only subscriber has unsubscribed was never received: it is still new."""
    qid = made(other, request.node.name, "memcached")
    with elsewhere.waited_at("memcached"):
        wire.ask(subscribe(qid, req="mine"))
    assert code(wire.ask(unsubscribe("mine"))) == 0
    [mid] = mids(other.ask(push(qid, "x")))
    found = other.ask(receive(qid, wait=LONG))
    assert (mids(found), receives(found)) == ([mid], 1)
