"""A server that is killed while messages are given back and rejected: every reason that was answered is there."""

import re
import threading
from pathlib import Path

import pytest
from support.clients.documents import code, mids, new_queue, push_list, receive, request
from support.servers.processes import FAST, Gone, MortalWire, ServerProcess, serving

LETTERS = "<options dead-letter='failed' max-receives='1000' storage='{}'/>"


def settle(op: str, mid: int, reason: str) -> str:
    return request(op, f"<qid>jobs</qid><mid>{mid}</mid><reason>{reason}</reason>")


def reasons(wire: MortalWire, qid: str) -> dict[int, str]:
    """Returns the reason of each message that has one, by the id that the message had in `jobs`."""
    page = mids(wire.ask(request("list-messages", f"<qid>{qid}</qid>", state="all", max=1000)))
    asked = "".join(f"<mid>{mid}</mid>" for mid in page)
    if not page:
        return {}
    line = wire.ask(request("get-message", f"<qid>{qid}</qid><messages>{asked}</messages>", peek="yes"))
    entries = re.findall(r"<message [^>]*>", line)
    named = "mid" if qid == "jobs" else "dead-mid"
    return {
        int(re.search(rf' {named}="(\d+)"', entry)[1]): said[1]  # type: ignore[index]
        for entry in entries
        if (said := re.search(r' reason="([^"]*)"', entry))
    }


@pytest.mark.parametrize("storage", ["journal", "files"])
def test_a_kill_while_messages_are_given_back(tmp_path: Path, storage: str) -> None:
    """Three rounds: a client releases messages with a reason, again and again, and rejects some, until the server is
    killed. The next server shows for each message the last reason that was answered, or the one under way."""
    root = tmp_path / "root"
    for number in range(3):
        server = ServerProcess(root, "--durability", "always")
        wire = MortalWire(server)
        killer = threading.Thread(target=server.kill)
        answered: dict[int, str] = {}
        under_way: dict[int, str] = {}
        try:
            if not number:
                assert code(wire.ask(new_queue("jobs", LETTERS.format(storage)))) == 0
            pushed = mids(wire.ask(push_list("jobs", *["x"] * 50)))
            for at in range(100_000):
                mid = pushed[at % len(pushed)]
                op = "reject-message" if at % 7 == 0 else "release-message"
                reason = f"{op} {number} {at}"
                if at == 60:
                    killer.start()
                wire.ask(receive("jobs", max=100))
                under_way = {mid: reason}
                if not code(wire.ask(settle(op, mid, reason))):
                    answered[mid] = reason
        except Gone:
            killer.join()
        finally:
            wire.close()
        assert len(answered) > 30
        with serving(root, *FAST) as last:
            wire = MortalWire(last)
            found = {**reasons(wire, "jobs"), **reasons(wire, "failed")}
            for mid, reason in answered.items():
                assert found.get(mid) in (reason, under_way.get(mid, reason))
            wire.close()
