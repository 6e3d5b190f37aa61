"""`kill -9` of the server under load, again and again on the same root: what was answered holds."""

import os
import random
import re
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.clients.documents import code, delete, mids, new_queue, payloads, push, push_list, receive, request
from support.faults import Client, Seen, listed, load
from support.servers.processes import MortalWire, ServerProcess

SEED = int(os.environ.get("QS_KILL_SEED", "20251120"))
LIST = 5
PIPELINE = 10


@dataclass
class Record(Seen):
    """The requests and answers of one client in one round. Every push is a list of payloads in one request."""

    answered: list[tuple[list[str], list[int]]] = field(default_factory=list)
    unanswered: list[list[str]] = field(default_factory=list)
    received: dict[int, str] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    maybe_deleted: set[int] = field(default_factory=set)

    def answer(self, sent: list[str], line: str) -> None:
        found = mids(line)
        if code(line) or len(found) != len(sent):
            self.trouble.append(line)
        self.unanswered.remove(sent)
        self.answered.append((sent, found))


def push_singly(wire: MortalWire, record: Record, name: str) -> None:
    number = 0
    while True:
        number += 1
        payload = [f"{name}-{number}"]
        record.unanswered.append(payload)
        record.answer(payload, wire.ask(push("q", payload[0])))


def push_pipelined(wire: MortalWire, record: Record, name: str) -> None:
    number = 0
    while True:
        batch = [[f"{name}-{number + step}"] for step in range(1, PIPELINE + 1)]
        number += PIPELINE
        record.unanswered += batch
        wire.send(*(push("q", payload[0]) for payload in batch))
        for payload in batch:
            record.answer(payload, wire.line())


def push_lists(wire: MortalWire, record: Record, name: str) -> None:
    number = 0
    while True:
        batch = [f"{name}-{number + step}" for step in range(1, LIST + 1)]
        number += LIST
        record.unanswered.append(batch)
        record.answer(batch, wire.ask(push_list("q", *batch)))


def consume(wire: MortalWire, record: Record, name: str) -> None:
    """Receives, and deletes two of three."""
    while True:
        found = wire.ask(receive("q", max=6, wait=0.05, visibility=0.05))
        received = list(zip(mids(found), payloads(found), strict=True))
        record.received.update(received)
        doomed = [mid for mid, _ in received if mid % 3]
        record.maybe_deleted.update(doomed)
        wire.send(*(delete("q", mid) for mid in doomed))
        for mid in doomed:
            if code(wire.line()) == 0:
                record.deleted.add(mid)
                record.maybe_deleted.discard(mid)


def churn(wire: MortalWire, record: Record, name: str) -> None:
    """Fills another queue and empties it, so that segments are full of what is not needed and are compacted."""
    while True:
        wire.ask(push_list("churn", *(["x" * 20_000] * 40)))
        wire.ask(request("purge-queue", "<qid>churn</qid>"))


CLIENTS: tuple[Client[Record], ...] = (push_singly, push_singly, push_pipelined, push_lists, consume)
COMPACTING: tuple[Client[Record], ...] = (*CLIENTS, churn)


class Model:
    """The messages that must be in the queue, and those that may be, after all rounds so far."""

    def __init__(self) -> None:
        self.must: dict[int, str] = {}
        self.may: dict[int, str] = {}
        self.open: list[list[str]] = []
        """Pushes of the last round that were not answered."""
        self.consumed: set[str] = set()
        self.gone: set[int] = set()
        self.pushed = 0

    def add(self, records: list[Record]) -> None:
        """Takes in what the clients saw in a round."""
        self.open = [sent for record in records for sent in record.unanswered]
        self.consumed = {payload for record in records for payload in record.received.values()}
        for record in records:
            assert record.trouble == []
            for sent, found in record.answered:
                assert not set(found) & (self.must.keys() | self.gone), "an id was given twice"
                self.must.update(zip(found, sent, strict=True))
                self.pushed += len(found)
            given = [mid for _, found in record.answered for mid in found]
            assert given == sorted(set(given))
        for record in records:
            for mid, payload in record.received.items():
                assert self.must.get(mid, payload) == payload
            self.gone |= record.deleted
            for mid in record.deleted:
                self.must.pop(mid, None)
            for mid in record.maybe_deleted:
                self.may[mid] = self.must.pop(mid, None) or record.received[mid]

    def check(self, present: list[tuple[int, str]]) -> None:
        """Compares with what a restart has found."""
        there = dict(present)
        assert len(there) == len(present), "an id is there twice"
        assert [mid for mid, _ in present] == sorted(there)
        lost = {mid: payload for mid, payload in self.must.items() if there.get(mid) != payload}
        assert lost == {}, "answered pushes are gone, or hold something else"
        assert self.gone & there.keys() == set(), "answered deletes have come back"
        twice = [payload for payload, count in Counter(there.values()).items() if count > 1]
        assert twice == []
        seen = set(there.values()) | self.consumed
        known = set(self.must.values()) | set(self.may.values())
        for sent in self.open:
            assert sum(payload in seen for payload in sent) in (0, len(sent)), "half a list"
            known.update(sent)
        assert set(there.values()) <= known
        self._check_order(present)
        self.must, self.may, self.open = there, {}, []

    def _check_order(self, present: list[tuple[int, str]]) -> None:
        last: dict[str, int] = {}
        for _, payload in present:
            pusher, _, number = payload.rpartition("-")
            assert int(number) > last.get(pusher, 0)
            last[pusher] = int(number)

    def purged(self) -> None:
        self.gone |= self.must.keys()
        self.must = {}


def messages(wire: MortalWire) -> list[tuple[int, str]]:
    """Every message of the queue, oldest first."""
    found = listed(wire, "all")
    entries = []
    for start in range(0, len(found), 200):
        part = found[start : start + 200]
        wire.send(*(request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes") for mid in part))
        for mid in part:
            line = wire.line()
            assert 'status="ready"' in line, line  # every lease was over before the restart was
            entries.append((mid, payloads(line)[0]))
    return entries


def kill_and_restart(
    root: Path,
    rounds: int,
    seed: int,
    clients: tuple[Client[Record], ...] = CLIENTS,
    enough: Callable[[], bool] = lambda: True,
) -> Model:
    """Kills a server so often, and on a slow machine more often, up to 50 times, until it has done enough."""
    print(f"seed {seed}; repeat with QS_KILL_SEED={seed}")
    rng = random.Random(seed)
    model = Model()
    for number in range(51):
        last = number == 50 or (number >= rounds and enough())
        server = ServerProcess(root, "--durability", "always")
        try:
            wire = MortalWire(server)
            if number == 0:
                wire.ask(new_queue("q"))
                wire.ask(new_queue("churn"))
            model.check(messages(wire))
            if len(model.must) > 600:
                assert f"<count>{len(model.must)}</count>" in wire.ask(request("purge-queue", "<qid>q</qid>"))
                model.purged()
            wire.close()
            if not last:
                model.add(load(clients, Record, server, number, rng.uniform(0, 0.4)))
            assert re.search("Traceback|ERROR", server.log()) is None, server.log()
        finally:
            server.kill()
        if last:
            break
    return model


def test_a_few_kills(tmp_path: Path) -> None:
    """Three rounds: answered pushes are there exactly once and in order, answered deletes stay, lists are whole."""
    assert kill_and_restart(tmp_path / "root", 3, SEED).pushed > 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_many_kills(tmp_path: Path) -> None:
    """Answered messages are there after fifty kills at random moments. Takes half a minute to two."""
    model = kill_and_restart(tmp_path / "root", 50, SEED + 1)
    print(f"{model.pushed} pushes were answered")


def oldest_segment(root: Path) -> int:
    return min(int(path.stem) for path in (root / ".journal").glob("*.segment"))


def test_a_few_kills_of_one_that_compacts(tmp_path: Path) -> None:
    """Answered messages are there after kills beside a load that makes the server compact its segments."""
    root = tmp_path / "root"
    assert kill_and_restart(root, 4, SEED, COMPACTING, lambda: oldest_segment(root) > 1).pushed > 0
    assert oldest_segment(root) > 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_kills_of_one_that_compacts(tmp_path: Path) -> None:
    """Answered messages are there after fifty kills of a server that compacts. Takes one to four minutes."""
    model = kill_and_restart(tmp_path / "root", 50, SEED + 1, COMPACTING)
    assert oldest_segment(tmp_path / "root") > 50
    print(f"{model.pushed} pushes were answered")


def test_a_kill_while_it_starts(tmp_path: Path) -> None:
    """A server that is killed as soon as it listens, before anything is asked, leaves what there was."""
    root = tmp_path / "root"
    server = ServerProcess(root)
    wire = MortalWire(server)
    wire.ask(new_queue("q"))
    pushed = mids(wire.ask(push_list("q", "a", "b", "c")))
    wire.close()
    for _ in range(3):
        server.kill()
        server = ServerProcess(root)
    with socket.create_connection((server.host, server.port), 20) as client, client.makefile() as lines:
        client.sendall(receive("q", max=10).encode())
        assert mids(lines.readline()) == pushed
    assert server.stop() == 0
