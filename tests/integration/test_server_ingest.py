"""A real server, and what other programs put into the directories of its queues."""

import contextlib
import threading
import time
from pathlib import Path

import pytest
from support.servers.processes import ServerProcess, serving, settled, woken
from support.storage.directories import finish, start
from support.storage.vsqs_original import original, output

from qs_client import QueueClient

WITHIN = 30
"""Seconds: only a failure takes that long."""


def drained(client: QueueClient, count: int) -> list[tuple[int, bytes]]:
    """Ids and payloads of so many messages, which are deleted."""
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        deliveries = client.receive("q", 1000, wait=WITHIN)
        assert deliveries, f"only {len(found)} came"
        client.delete_many(deliveries)
        found += [
            (each.mid, each.payload.encode() if isinstance(each.payload, str) else each.payload) for each in deliveries
        ]
    assert not client.receive("q")
    return found


def test_moved_files_wake_whoever_waits(tmp_path: Path) -> None:
    """`mv` into the directory: the message has the file's id; then the directory is empty and the server sleeps."""
    root = tmp_path / "root"
    with serving(root) as server, QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        (tmp_path / "hello").write_bytes(b"hello")
        timer = threading.Timer(0.2, (tmp_path / "hello").rename, [root / "q" / "1234"])
        timer.start()
        [message] = client.receive("q", wait=WITHIN)
        timer.join()
        assert (message.mid, message.payload) == (1234, b"hello")
        assert client.stats("q")[0].oldest == 999_999_999  # seconds: the protocol has no more
        client.delete(message)
        settled(server.process.pid)
        assert [path.name for path in (root / "q").iterdir()] == [".queue.toml"]
        assert woken(0.5, server.process.pid) == [0]


@pytest.mark.slow  # some 5 s: five processes that publish
def test_publishers_of_every_kind_at_once(tmp_path: Path) -> None:
    """The package vsqs, qs-dir, and clients of the server, while it is killed and started: each message comes once."""
    root = tmp_path / "root"
    server = ServerProcess(root)
    try:
        with QueueClient(server.host, server.port) as client:
            client.new_queue("q")
        path = root / "q"
        publishers = [original("publish", path, f"original{number}", 60) for number in range(2)]
        pumps = [start("pump", path, "--count", 200, "--size", size) for size in (10, 2000)]
        for _ in range(2):
            time.sleep(0.3)  # somewhere in the middle
            server.kill()
            server.start()
        mids = {mid for process in publishers for mid in output(process)}
        assert len(mids) >= 60
        for pump in pumps:
            assert finish(pump)[0] == 0
        with QueueClient(server.host, server.port) as client:
            found = drained(client, 520)
        settled(server.process.pid)
    finally:
        with contextlib.suppress(AssertionError):
            server.stop()
    payloads = sorted(payload for _, payload in found)
    expected = [f"original{number}-{each}".encode() for number in range(2) for each in range(60)]
    expected += [b"%d" % each + b"." * (size - len(str(each))) for size in (10, 2000) for each in range(1, 201)]
    assert payloads == sorted(expected)
    assert len({mid for mid, _ in found}) == 520
    assert [each.name for each in path.iterdir()] == [".queue.toml"]
