"""The real server process and its directory: what lasts, a full disk, a root that vanishes, others that share it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.documents import (
    PING,
    code,
    delete,
    mids,
    new_queue,
    payloads,
    push,
    push_list,
    receive,
    request,
)
from support.faults import small_disk
from support.servers.processes import COMMAND, FAST, Wire, serving


def test_restart_keeps_messages(tmp_path: Path) -> None:
    """A restart keeps messages, their order and counts of receives, what is in flight and delayed, and what was never
    retrieved."""
    root = tmp_path / "root"
    with serving(root) as server, Wire(server) as wire:
        wire.ask(new_queue("q", '<options visibility="3600"/>'))
        pushed = mids(wire.ask(push_list("q", *"abcdef")))
        delayed = mids(wire.ask(push("q", "later", delay=3600)))
        assert mids(wire.ask(receive("q", max=3))) == pushed[:3]
        wire.ask(request("release-message", f"<qid>q</qid><mid>{pushed[0]}</mid>"))
        wire.ask(receive("q"))
        wire.ask(request("release-message", f"<qid>q</qid><mid>{pushed[0]}</mid>"))
        wire.ask(delete("q", pushed[1]))
    with serving(root) as server, Wire(server) as wire:

        def listed(state: str) -> list[int]:
            return mids(wire.ask(request("list-messages", "<qid>q</qid>", state=state)))

        assert listed("all") == [pushed[0], *pushed[2:], *delayed]
        assert listed("new") == [*pushed[3:], *delayed]
        assert listed("in-flight") == [pushed[2]]
        assert listed("delayed") == delayed
        answer = wire.ask(receive("q", max=10))
        assert mids(answer) == [pushed[0], *pushed[3:]]
        assert re.findall(r'receives="(\d)"', answer) == ["3", "1", "1", "1"]
        assert mids(wire.ask(push("q", "new")))[0] > delayed[0]


@pytest.fixture(name="small_disk", params=["512k"])
def _small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    with small_disk(tmp_path / "small", request.param) as mounted:
        yield mounted


@pytest.mark.parametrize("durability", ["always", "none"])
def test_push_on_full_disk_is_507(small_disk: Path, durability: str) -> None:
    """Pushes that find the disk full are 507; what was answered stays; receiving and deleting go on and make room."""
    root = small_disk / "root"
    flags = ("--storage", "files", "--durability", durability)
    with serving(root, *flags) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        stored: list[int] = []
        while code(answer := wire.ask(push("q", "x" * 20_000))) == 0:
            stored += mids(answer)
        assert code(answer) == 507
        assert len(stored) > 10
        assert code(wire.ask(push_list("q", *["y" * 9000] * 20))) == 507
        while code(answer := wire.ask(push("q", "z" * 100))) == 0:
            stored += mids(answer)
        assert code(wire.ask(new_queue("one-more"))) in (0, 507)
        assert mids(wire.ask(request("list-messages", "<qid>q</qid>", state="all"))) == stored
        assert mids(wire.ask(receive("q", max=1000))) == stored
        assert mids(wire.ask(delete("q", stored[0]))) == stored[:1]
        assert mids(wire.ask(delete("q", stored[1]))) == stored[1:2]
        new = mids(wire.ask(push("q", "x" * 20_000)))
        assert len(new) == 1
        assert not [name for name in os.listdir(root / "q") if name.endswith((".new", ".tmp")) or "batch" in name]
        wire.close()
        assert server.stop() == 0
        with serving(root, *flags) as again, Wire(again) as later:
            listed = request("list-messages", "<qid>q</qid>", state="all")
            assert mids(later.ask(listed)) == stored[2:] + new


@pytest.mark.parametrize(
    ("small_disk", "durability"), [("512k", "always"), ("1m", "none"), ("4m", "always")], indirect=["small_disk"]
)
def test_a_full_disk_and_the_journal(small_disk: Path, durability: str) -> None:
    """On a full disk, a journal refuses pushes; acknowledged messages make room once segments are compacted."""
    root = small_disk / "root"
    flags = ("--durability", durability)
    with serving(root, *flags) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        stored: list[int] = []
        while code(answer := wire.ask(push("q", "x" * 8_000))) == 0:
            stored += mids(answer)
        assert code(answer) == 507
        assert len(stored) > 10
        while code(answer := wire.ask(push_list("q", *["y" * 9000] * 40))) == 0:  # a spare segment gave up its room
            stored += mids(answer)
        assert code(answer) == 507
        assert mids(wire.ask(request("list-messages", "<qid>q</qid>", state="all"))) == stored
        received: list[int] = []
        while found := mids(wire.ask(receive("q", max=1000))):
            received += found
        assert received == stored
        left = list(stored)
        while left and code(answer := wire.ask(push("q", "x" * 8_000))) == 507:
            answer = wire.ask(delete("q", left[0]))
            assert mids(answer) == left[:1], answer
            del left[0]
        assert code(answer) == 0
        left += mids(answer)
        wire.close()
        assert server.stop() == 0
        with serving(root, *flags) as again, Wire(again) as later:
            assert mids(later.ask(request("list-messages", "<qid>q</qid>", state="all"))) == left


def test_the_root_vanishes(tmp_path: Path) -> None:
    """When somebody removes the root from under it, requests are refused, and it stops, with a line: no traceback."""
    with serving(tmp_path / "root") as server, Wire(server) as wire:
        wire.ask(new_queue("q"), push("q", "x"))
        while (tmp_path / "root").exists():  # the server makes files meanwhile
            shutil.rmtree(tmp_path / "root", ignore_errors=True)
        assert code(wire.ask(push("q", "y"))) in (404, 500)
        assert code(wire.ask(new_queue("z"))) in (404, 500)
        # What still had to be written may be what the next ones are told of.
        assert any("<ping/>" in wire.ask(PING) for _ in range(20))
        wire.close()
        assert server.stop() == 1
        assert server.log().splitlines()[-1].startswith("queue-server.py: ")


def test_two_servers_share_a_queue(tmp_path: Path) -> None:
    """With two servers on one root, a push at one wakes a receive that waits at the other, and nothing is given
    twice."""
    root = tmp_path / "root"
    flags = (*FAST, "--storage", "files")
    with serving(root, *flags) as one, serving(root, *flags) as two, Wire(one) as first, Wire(two) as second:
        first.ask(new_queue("q"))
        second.send(receive("q", wait=20))
        while "404" in (answer := (first.ask(push("q", "across")), second.line())[1]):
            second.send(receive("q", wait=20))  # the other had not noticed the new queue yet
        assert payloads(answer) == ["across"]
        assert mids(first.ask(receive("q"))) == []
        mid = mids(answer)[0]
        assert mids(first.ask(delete("q", mid))) == [mid]
        assert code(second.ask(delete("q", mid))) == 404
        pushed = mids(first.ask(push_list("q", *map(str, range(100)))))
        got: list[int] = []
        while len(got) < 100:
            found = mids(first.ask(receive("q", max=3, wait=5))) + mids(second.ask(receive("q", max=3, wait=1)))
            assert found
            got += found
        assert sorted(got) == pushed


PUBLISH = """
import sys, threading, warnings
warnings.simplefilter("ignore")
if not hasattr(threading.Condition, "notifyAll"):
    threading.Condition.notifyAll = threading.Condition.notify_all
from vsqs.queue import QueueManager
manager = QueueManager(sys.argv[1])
queue = manager.get_queue(sys.argv[2])
sys.stdin.readline()
print(queue.publish(b"from vsqs"), flush=True)
sys.stdin.readline()
print(queue.size(), flush=True)
manager.close()
"""


@pytest.mark.parametrize("storage", ["files", "journal"])
def test_a_vsqs_process_publishes(tmp_path: Path, storage: str) -> None:
    """The original vsqs publishes into a directory that is being served, and wakes a waiting receive; it sees the
    message gone once it is deleted here: at once, or when a server with a journal has stopped."""
    pytest.importorskip("vsqs")
    with serving(tmp_path / "root", *FAST, "--storage", storage) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        publisher = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, str(server.root), "q"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        wire.send(receive("q", wait=20))
        publisher.stdin.write("go\n")
        publisher.stdin.flush()
        mid = int(publisher.stdout.readline())
        answer = wire.line()
        assert (mids(answer), payloads(answer)) == ([mid], ["from vsqs"])
        assert mids(wire.ask(delete("q", mid))) == [mid]
        if storage == "journal":
            assert server.stop() == 0
        out, _ = publisher.communicate("go\n", timeout=20)
        assert int(out) == 0


def test_a_journal_has_one_server(tmp_path: Path) -> None:
    """A second server on the same root does not start, and says why and what to do; the first one goes on."""
    root = tmp_path / "root"
    with serving(root, *FAST) as server, Wire(server) as wire:
        wire.ask(new_queue("q"))
        for storage in ("journal", "files"):
            second = subprocess.run(
                [*COMMAND, "--root", str(root), "--port", "0", "--storage", storage],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            assert second.returncode == 1
            assert second.stderr.count("\n") == 1
            assert "another server" in second.stderr
            assert "--storage files" in second.stderr
        assert "<mid>" in wire.ask(push("q", "x"))
