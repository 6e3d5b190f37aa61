"""`kill -9` of a server with subscribers under load: what was answered reaches one of them, and nothing has to wait for
a window to end."""

import os
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.clients.documents import (
    code,
    delete,
    delete_list,
    is_delivery,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    req,
    subscribe,
)
from support.faults import Client, Seen, listed, load
from support.servers.processes import MortalWire, ServerProcess

SEED = int(os.environ.get("QS_KILL_SEED", "20251121"))
WINDOW = 10**6
"""Seconds: no window ends by itself while this runs."""


@dataclass
class Record(Seen):
    """The deliveries and answers that one client got in one round."""

    pushed: dict[int, str] = field(default_factory=dict)
    delivered: dict[int, str] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)


def push_on(wire: MortalWire, record: Record, name: str) -> None:
    """Single pushes and lists in turn."""
    number = 0
    while True:
        number += 3
        texts = [f"{name}-{number}", f"{name}-{number + 1}", f"{name}-{number + 2}"]
        for sent in (texts[:1], texts[1:]):
            line = wire.ask(push("q", sent[0]) if len(sent) == 1 else push_list("q", *sent))
            if code(line):
                record.trouble.append(line)
            record.pushed.update(zip(mids(line), sent, strict=True))


def consume(wire: MortalWire, record: Record, name: str) -> None:
    """Acknowledges two of three deliveries, and keeps the others, up to the prefetch."""
    wire.send(subscribe("q", visibility=WINDOW, prefetch=500))
    while True:
        line = wire.line()
        if is_delivery(line):
            [mid] = mids(line)
            record.delivered[mid] = payloads(line)[0]
            if mid % 3:
                record.asked.add(mid)
                wire.send(delete("q", mid, req=f"{mid}"))
        elif code(line):
            record.trouble.append(line)
        elif req(line).isdigit():
            record.deleted.add(int(req(line)))


CLIENTS: tuple[Client[Record], ...] = (push_on, push_on, consume, consume, consume)


class Model:
    """The deliveries and answers that all clients got so far."""

    def __init__(self) -> None:
        self.pushed: dict[int, str] = {}
        self.delivered: dict[int, str] = {}
        self.asked: set[int] = set()
        self.deleted: set[int] = set()

    def add(self, records: list[Record]) -> None:
        before = set(self.deleted)
        for record in records:
            assert record.trouble == []
            assert not before & record.delivered.keys(), "an acknowledged message was delivered again after a start"
            self.pushed.update(record.pushed)
            self.delivered.update(record.delivered)
            self.asked |= record.asked
            self.deleted |= record.deleted

    def check(self, there: list[int]) -> None:
        """there: all messages that a start has found."""
        assert set(self.pushed) - self.asked <= set(there), "an answered push is gone that nobody acknowledged"
        assert not self.deleted & set(there), "an acknowledged message has come back"


def drain(wire: MortalWire, count: int) -> Record:
    """Takes and acknowledges so many deliveries."""
    record = Record()
    wire.send(subscribe("q", prefetch=10**6, visibility=WINDOW))
    while len(record.delivered) < count:
        line = wire.line()
        if is_delivery(line):
            record.delivered[mids(line)[0]] = payloads(line)[0]
    found = sorted(record.delivered)
    record.asked.update(found)
    for start in range(0, count, 1000):
        answer = wire.ask(delete_list("q", *found[start : start + 1000]))
        assert mids(answer) == found[start : start + 1000]
        record.deleted.update(mids(answer))
    return record


def kill_and_restart(root: Path, rounds: int, seed: int) -> Model:
    print(f"seed {seed}; repeat with QS_KILL_SEED={seed}")
    rng = random.Random(seed)
    model = Model()
    for number in range(rounds + 1):
        server = ServerProcess(root, "--durability", "always")
        try:
            wire = MortalWire(server)
            if number == 0:
                wire.ask(new_queue("q"))
            there = listed(wire, "all")
            assert listed(wire, "in-flight") == [], "what was held when the server was killed is still hidden"
            model.check(there)
            if number == rounds or len(there) > 1000:
                model.add([drain(wire, len(there))])
                assert listed(wire, "all") == []
            wire.close()
            if number < rounds:
                model.add(load(CLIENTS, Record, server, number, rng.uniform(0.05, 0.5)))
            assert re.search("Traceback|ERROR", server.log()) is None, server.log()
        finally:
            server.kill()
    lost = {mid: payload for mid, payload in model.pushed.items() if model.delivered.get(mid) != payload}
    assert lost == {}, "answered pushes that no subscriber has seen"
    return model


def test_a_few_kills_with_subscribers(tmp_path: Path) -> None:
    """Three rounds: every answered push reaches a subscriber, what they held is visible at once after the start, what
    they acknowledged stays away."""
    model = kill_and_restart(tmp_path / "root", 3, SEED)
    assert min(len(model.pushed), len(model.delivered), len(model.deleted)) > 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_many_kills_with_subscribers(tmp_path: Path) -> None:
    """Subscribers lose nothing in fifty kills at random moments. Takes one to two minutes."""
    model = kill_and_restart(tmp_path / "root", 50, SEED + 1)
    print(f"{len(model.pushed)} pushes were answered, {len(model.deleted)} deletes")
