"""Dead letters on a real server: who may name and move them, and a kill while messages die."""

from pathlib import Path

import pytest
from support.clients.access import Caller, principal, write_access
from support.clients.documents import code, mids, new_queue, payloads, push, push_list, receive, release, request
from support.servers.processes import FAST, MortalWire, ServerProcess, serving


def set_policy(qid: str, dead: str) -> str:
    return request("set-queue", f"<qid>{qid}</qid><options dead-letter='{dead}' max-receives='1'/>")


def test_dead_letter_queue_needs_write_right(tmp_path: Path) -> None:
    """A dead-letter queue that is named needs the right to write to it; so does every queue that letters go back to,
    named or not, and nothing is moved without."""
    access = write_access(
        tmp_path / "access.toml",
        [
            principal("admin", admin=True),
            principal("owner", configure=["jobs", "dead"], write=["dead"]),
            principal("other", configure=["jobs", "dead"], write=["elsewhere"]),
        ],
    )
    with (
        serving(tmp_path / "root", *FAST, "--access", str(access)) as server,
        Caller(server, "admin-token") as admin,
    ):
        for qid in ("jobs", "dead", "elsewhere"):
            assert code(admin.ask(new_queue(qid))) == 0
        with Caller(server, "other-token") as other, Caller(server, "owner-token") as owner:
            assert [code(each.ask(set_policy("jobs", "dead"))) for each in (other, owner)] == [403, 0]
            [mid] = mids(admin.ask(push("jobs", "x")))
            assert payloads(admin.ask(receive("jobs"))) == ["x"]
            assert code(admin.ask(release("jobs", mid))) == 0
            everything = request("redrive-messages", "<qid>dead</qid>")
            elsewhere = request("redrive-messages", "<qid>dead</qid><queues><queue>elsewhere</queue></queues>")
            assert [code(owner.ask(each)) for each in (everything, elsewhere)] == [403, 403]
            assert code(other.ask(everything)) == 403
            assert "<count>1</count>" in other.ask(elsewhere)


@pytest.mark.parametrize("storage", ["journal", "files"])
def test_a_kill_while_messages_die(tmp_path: Path, storage: str) -> None:
    """Three rounds: releases are sent, and some are answered when the server is killed. Each message is in one of the
    two queues; those whose release was answered are in the dead-letter queue."""
    root = tmp_path / "root"
    policy = f"<options storage='{storage}' dead-letter='dead' max-receives='1'/>"
    pushed: set[str] = set()
    answered: set[str] = set()
    for number in range(3):
        server = ServerProcess(root, "--durability", "always")
        wire = MortalWire(server)
        try:
            if not number:
                assert code(wire.ask(new_queue("jobs", policy))) == 0
            texts = [f"{number}-{index}" for index in range(200)]
            assert len(mids(wire.ask(push_list("jobs", *texts)))) == 200
            pushed.update(texts)
            line = wire.ask(receive("jobs", max=1000, visibility=1000))
            found = dict(zip(mids(line), payloads(line), strict=True))
            for mid in found:
                wire.send(release("jobs", mid, req=str(mid)))
            for mid in list(found)[:100]:
                assert code(wire.line()) == 0
                answered.add(found[mid])
        finally:
            server.kill()
            wire.close()
    with serving(root) as last:
        wire = MortalWire(last)
        there = {qid: payloads(wire.ask(receive(qid, max=1000))) for qid in ("jobs", "dead")}
        hidden = mids(wire.ask(request("list-messages", "<qid>jobs</qid>", state="all")))
        wire.close()
    assert len(there["dead"]) == len(set(there["dead"])) >= 300
    assert answered <= set(there["dead"])
    assert not set(there["dead"]) & set(there["jobs"])
    assert len(there["dead"]) + len(hidden) == len(pushed)
