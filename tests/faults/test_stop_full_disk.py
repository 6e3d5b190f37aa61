"""The stop of the real server on a disk that is full, more or less: it ends in time, and the next start has everything.

All levels, 0 to 100 % in steps of 5: `-m long`, some 30 s.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from support.faults import small_disk
from support.servers.processes import ServerProcess

from qs_client import QueueClient

_GRACE = 1
_SIZE = 4 << 20
_DEFAULT = (0, 60, 90, 100)
_LEVELS = [pytest.param(n, marks=() if n in _DEFAULT else pytest.mark.long) for n in range(0, 101, 5)]
_HOUR = 3600


@pytest.fixture(name="server")
def _server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose root is on a small disk, and whose log is not."""
    flags = ("--grace", str(_GRACE))
    with small_disk(tmp_path / "small", str(_SIZE)) as mounted:
        server = ServerProcess(mounted / "root", *flags, log=tmp_path / "log")
        yield server
        server.kill()


def fill(disk: Path, percent: int) -> Path:
    """A file that leaves so much of the disk to others as there is above that level, if that much is free still."""
    found = os.statvfs(disk)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        left = found.f_blocks * found.f_frsize * percent // 100 - used
        try:
            while left > 0:
                left -= file.write(bytes(min(left, 4096)))
        except OSError:
            assert percent == 100
    return filler


def push_in_every_state(client: QueueClient) -> None:
    """Queue q gets messages that are new, in flight, released, delayed, claimed, staged, deleted, and stored with a
    key; queue copies a copy. The deleted ones are large: the journal's first segment is more than half full."""
    client.new_queue("q")
    client.new_queue("copies")
    pushed = [
        client.push_many("q", [f"{name} {n} ".encode() * 1500 for n in range(4)]) for name in ("a", "b", "c", "d")
    ]
    assert client.claim_messages("q", "consumer", 1, max=3).count == 3
    client.copy("q", pushed[1][0], ["copies"])
    now, later, *_ = client.receive("q", max=4, visibility=_HOUR)
    client.release(now)
    client.release(later, delay=_HOUR)
    client.push("q", b"delayed " * 1000, delay=_HOUR)
    client.push("q", b"keyed", key="k")
    client.stage_messages("q", "producer", [b"staged " * 1000] * 3, batch=0)
    client.delete_many("q", client.push_many("q", [bytes(130_000)] * 4))


def everything(client: QueueClient) -> dict[str, object]:
    """All that can be known of the messages without changing any."""
    found: dict[str, object] = {"claimed": [message.payload for message in client.get_claim("q", "consumer", 1)]}
    for qid in ("q", "copies"):
        for state in ("new", "ready", "delayed", "in-flight"):
            listed = list(client.list_messages(qid, state=state))
            assert listed or qid == "copies"
            found[f"{qid} {state}"] = [(mid, client.peek(qid, mid).payload) for mid in listed]
    return found


@pytest.mark.parametrize("level", _LEVELS)
def test_a_stop_at_every_level(server: ServerProcess, level: int) -> None:
    """SIGTERM ends the server within --grace and 5 s, with exit code 0, or 1 and a line that says why. The next start,
    on the disk as it is, has every message in its state; so has the one after that, when there is room again."""
    with QueueClient(server.host, server.port) as client:
        push_in_every_state(client)
        before = everything(client)
    filler = fill(server.root.parent, level)
    stop(server)
    server.start()
    with QueueClient(server.host, server.port) as client:
        assert everything(client) == before
    stop(server)
    filler.unlink()
    server.start()
    with QueueClient(server.host, server.port) as client:
        assert everything(client) == before
        client.push("q", b"keyed again", key="k")
        client.publish_staged("q", "producer", 0, [(0, 0)])
        new = len(list(client.list_messages("q")))
        assert new == len(cast("list[object]", before["q new"])) + 3
    assert stop(server) == 0
    assert "Traceback" not in server.log()


def stop(server: ServerProcess) -> int:
    """The exit code of a stop that ends in time, and says why if it is not 0."""
    said = server.log()
    began = time.monotonic()
    code = server.stop()
    assert time.monotonic() - began < _GRACE + 5
    last = server.log()[len(said) :].splitlines()[-1:]
    assert code in (0, 1)
    assert (code == 1) == bool(last and last[0].startswith("queue-server.py: ")), server.log()
    return code
