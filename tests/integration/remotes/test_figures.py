"""The figures of a server whose queues another server keeps: what its clients have done with messages counts."""

from pathlib import Path

from support.clients.documents import (
    code,
    delete,
    is_delivery,
    mids,
    push,
    push_list,
    receive,
    release,
    request,
    subscribe,
)
from support.servers.figures import look
from support.servers.processes import Wire
from support.servers.remote import LONG, Elsewhere, made
from support.storage.memcached import needs_memcached

from qs_client import QueueClient

pytestmark = needs_memcached


def test_messages(elsewhere: Elsewhere, tmp_path: Path, storage: str) -> None:
    """Messages pushed, received, given back, deleted and purged, also when their queue is gone."""
    with (
        elsewhere.serving(tmp_path / "root") as server,
        Wire(server) as wire,
        QueueClient(server.host, server.port) as client,
    ):
        made(wire, "q", storage)
        [mid] = mids(wire.ask(push("q", "x")))
        wire.ask(receive("q", wait=LONG))
        wire.ask(release("q", mid))
        wire.ask(subscribe("q", prefetch=1))
        assert is_delivery(wire.line())
        wire.ask(delete("q", mid))
        client.new_queue("local")
        client.push("local", "x")
        made(wire, "r", storage)
        wire.ask(push_list("r", "1", "2"))
        assert "<count>2</count>" in wire.ask(request("purge-queue", "<qid>r</qid>"))
        assert code(wire.ask(request("delete-queue", "<qid>r</qid>"))) == 0
        found = look(client)
    assert {name: found.get(f"messages_{name}_total") for name in EXPECTED} == EXPECTED


EXPECTED = {"pushed": 4, "received": 2, "redelivered": 1, "released": 1, "deleted": 3, "expired": 0}
