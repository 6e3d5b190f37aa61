"""The lifecycle record of queues that another server keeps: what clients of this server did to their messages."""

import json
from pathlib import Path

from support.clients.documents import delete, is_delivery, mids, push, push_list, receive, release, request, subscribe
from support.servers.processes import Wire
from support.servers.remote import LONG, Elsewhere, made
from support.storage.memcached import needs_memcached

pytestmark = needs_memcached


def test_what_clients_do(elsewhere: Elsewhere, tmp_path: Path, storage: str) -> None:
    """Requests and subscriptions are in the record, in order, with ids, counts and the address of the client."""
    folder = tmp_path / "history"
    with (
        elsewhere.serving(tmp_path / "root", "--history", str(folder)) as server,
        Wire(server) as wire,
        Wire(server) as other,
    ):
        client, pusher = ("{}:{}".format(*each.socket.getsockname()[:2]) for each in (wire, other))
        made(wire, "q", storage)
        [mid] = mids(wire.ask(push("q", "12345")))
        wire.ask(receive("q", wait=LONG))
        wire.ask(release("q", mid))
        wire.ask(subscribe("q", prefetch=1))
        assert is_delivery(wire.line())
        wire.ask(request("extend-message", f"<qid>q</qid><mid>{mid}</mid>", visibility=50))
        wire.ask(delete("q", mid))
        two = mids(other.ask(push_list("q", "1", "22")))
        held = mids(wire.line())
        assert set(held) < set(two)
    lines = [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    assert {line["queue"] for line in lines} == {"q"}
    assert {line["peer"] for line in lines if line["mid"] not in two or line["event"] != "pushed"} == {client}
    assert {line["peer"] for line in lines if line["mid"] in two and line["event"] == "pushed"} == {pusher}
    first = [(line["event"], line["receives"]) for line in lines if line["mid"] == mid]
    events = ["pushed", "received", "released", "received", "extended", "deleted"]
    assert [event for event, _ in first] == events
    assert [count for event, count in first if event == "received"] == [1, 2]
    # Of what several clients do at a time, the order is that in which the server learns of it.
    assert {line["event"] for line in lines if line["mid"] == held[0]} == {"pushed", "received", "released"}
    assert {line["size"] for line in lines if line["event"] == "pushed"} == {5, 1, 2}
