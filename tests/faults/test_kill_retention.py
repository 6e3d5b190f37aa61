"""A server that is killed while messages get too old: none that was young is missing, none that was removed is back."""

from pathlib import Path

from support.clients.documents import code, mids, new_queue, push_list, request
from support.servers.processes import FAST, MortalWire, ServerProcess, serving

QUEUE = "<qid>jobs</qid>"


def shown(wire: MortalWire) -> set[int]:
    """The ids of all messages, a page at a time."""
    found: set[int] = set()
    after = 0
    while page := mids(wire.ask(request("list-messages", QUEUE, state="all", max=1000, after=after))):
        found.update(page)
        after = page[-1]
    return found


def test_a_kill_while_messages_retire(tmp_path: Path) -> None:
    """Three rounds: the retention of a queue is cut, so that all that is there is too old, and the server is killed
    while it removes that. What one server has shown to be gone is gone for the next one; what is pushed afterwards, to
    a queue that keeps it, is all there."""
    root = tmp_path / "root"
    gone: set[int] = set()
    pushed: set[int] = set()
    for number in range(3):
        server = ServerProcess(root, "--durability", "always")
        wire = MortalWire(server)
        try:
            if not number:
                assert code(wire.ask(new_queue("jobs"))) == 0
            assert code(wire.ask(request("set-queue", f"{QUEUE}<options retention=''/>"))) == 0
            assert not shown(wire) & gone
            for _ in range(10):
                pushed.update(mids(wire.ask(push_list("jobs", *["x" * 50] * 1000))))
            assert code(wire.ask(request("set-queue", f"{QUEUE}<options retention='0.001'/>"))) == 0
            left = shown(wire)
            gone = pushed - left  # seen by an answer, which waits for what it shows to be durable
        finally:
            server.kill()
            wire.close()
    with serving(root, *FAST) as last:
        wire = MortalWire(last)
        assert not shown(wire) & gone
        assert code(wire.ask(request("set-queue", f"{QUEUE}<options retention='3600'/>"))) == 0
        young = mids(wire.ask(push_list("jobs", "a", "b", "c")))
        assert shown(wire) >= set(young)
        wire.close()
