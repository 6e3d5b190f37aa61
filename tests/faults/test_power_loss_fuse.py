"""The real server on a real file system that loses what was not synced: what was answered is there afterwards."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.documents import code, delete, mids, new_queue, payloads, push, push_list, receive, request
from support.faults import listed
from support.power_loss.fuse import UNUSABLE, unmount
from support.servers.processes import WITH_SUPPORT, MortalWire, ServerProcess

LIST = 4


@contextlib.contextmanager
def mounted(root: Path, durable: Path) -> Iterator[subprocess.Popen[str]]:
    """Mounts what is in durable as a file system at root. Skips when there is no FUSE."""
    root.mkdir(exist_ok=True)
    durable.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "support.power_loss.fuse", str(root), str(durable)],
        env=WITH_SUPPORT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = process.stdout.readline().strip()
        if said != "mounted":
            assert process.wait(20) == UNUSABLE, said
            pytest.skip(said)
        yield process
    finally:
        unmount(str(root))
        process.stdin.close()
        process.wait(20)
        process.stdout.close()


def lose_power(process: subprocess.Popen[str], how: str, durable: Path) -> Path:
    """Makes the process lose power. Returns the directory with what is left."""
    assert process.stdin is not None
    left = durable.with_name(f"{durable.name}+")
    left.mkdir()
    process.stdin.write(f"lose {how} {left}\n")
    process.stdin.flush()
    assert process.wait(30) == 0
    return left


@contextlib.contextmanager
def killed(root: Path, *flags: str) -> Iterator[tuple[ServerProcess, MortalWire]]:
    """A server and a client of it, until the server is killed."""
    server = ServerProcess(root, *flags)
    try:
        with contextlib.closing(MortalWire(server)) as wire:
            try:
                yield server, wire
            finally:
                server.kill()
    finally:
        server.kill()


class Ledger:
    """The requests that were answered, and those that were not."""

    def __init__(self) -> None:
        self.must: dict[int, str] = {}
        self.flying: set[int] = set()
        self.deleted: set[int] = set()
        self.open: list[list[str]] = []

    def work(self, wire: MortalWire, name: str) -> None:
        for number in range(8):
            sent = f"{name}-{number}-" + "x" * number * 700
            [mid] = mids(wire.ask(push("q", sent)))
            self.must[mid] = sent
            several = [f"{name}-{number}-{index}-several" for index in range(LIST)]
            self.must.update(zip(mids(wire.ask(push_list("q", *several))), several, strict=True))
        taken = mids(wire.ask(receive("q", max=9, visibility=3600)))
        self.flying.update(taken)
        for mid in taken[::2]:
            assert code(wire.ask(delete("q", mid))) == 0
            self.deleted.add(mid)
            self.flying.remove(mid)
            del self.must[mid]
        self.open = [[f"{name}-open-{number}-{index}" for index in range(LIST)] for number in range(30)]
        wire.send(*(push_list("q", *sent) for sent in self.open))
        for sent in self.open[:3]:  # and then the power goes, while the others are being done
            self.must.update(zip(mids(wire.line()), sent, strict=True))
        self.open = self.open[3:]

    def check(self, wire: MortalWire) -> int:
        """Returns how many messages there are."""
        there = {
            mid: payloads(wire.ask(request("get-message", f"<qid>q</qid><mid>{mid}</mid>", peek="yes")))
            for mid in listed(wire, "all")
        }
        assert not self.must.keys() - there.keys(), "what was answered is gone"
        assert not self.deleted & there.keys(), "what was deleted is back"
        hidden = set(listed(wire, "in-flight"))
        assert hidden == self.flying
        assert all(there[mid] == [sent] for mid, sent in self.must.items() if mid not in hidden)
        rest = [payload for mid, found in there.items() if mid not in self.must for payload in found]
        for sent in self.open:
            assert sum(payload in rest for payload in sent) in (0, LIST), "half a list"
        assert set(rest) <= {payload for sent in self.open for payload in sent}
        assert len(set(rest)) == len(rest)
        self.must.update((mid, found[0]) for mid, found in there.items() if mid not in self.must)
        return len(there)


@pytest.mark.parametrize("storage", ["files", "journal"])
def test_answers_survive_a_power_loss(tmp_path: Path, storage: str) -> None:
    """Three power losses under load, each with another part of what was not synced: everything that was answered is
    there, received and deleted as it was, and lists that were not answered are whole or not there."""
    root, durable = tmp_path / "root", tmp_path / "durable"
    ledger = Ledger()
    for number, how in enumerate(("nothing", "mixed-1", "everything", None)):
        with mounted(root, durable) as process:
            with killed(root, "--durability", "always", "--storage", storage) as (server, wire):
                if number == 0:
                    assert code(wire.ask(new_queue("q"))) == 0
                assert ledger.check(wire) >= 30 * number
                if how is not None:
                    ledger.work(wire, f"{number}")
                assert "Traceback" not in server.log()
            if how is not None:
                durable = lose_power(process, how, durable)


def test_what_was_not_synced_is_lost(tmp_path: Path) -> None:
    """The file system does lose it: with durability `none` nothing is left of what was answered."""
    root, durable = tmp_path / "root", tmp_path / "durable"
    with mounted(root, durable) as process:
        with killed(root, "--durability", "none", "--storage", "files") as (_, wire):
            assert code(wire.ask(new_queue("q"))) == 0
            assert len(mids(wire.ask(push("q", "x")))) == 1
            assert list((root / "q").iterdir())
        durable = lose_power(process, "nothing", durable)
    assert list(durable.iterdir()) == []
