"""`queue-journal.py` backup, export and convert, beside real servers."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.servers.processes import FAST, PROJECT, Listening, ServerProcess, serving

from qs_client import QueueClient
from qs_server.main import queue_journal as journal_command
from qs_storage.directories import JournalEngine
from qs_storage.engine import Draft, Durability, Options, wall_clock
from qs_testing.programs import READY_WITHIN


class SmallSegments(Listening):
    """A server whose segments are so small that compaction is always busy."""

    name = "server"
    modules = ServerProcess.modules

    def __init__(self, root: Path) -> None:
        program = root.parent / "small.py"
        program.write_text(
            "from qs_storage.journal.log import pool\nfrom qs_server.main.queue_server import main\n"
            "pool.FIRST_SEGMENT = pool.LARGEST_SEGMENT = 1 << 17\npool.SMALL_LOG = 0\nraise SystemExit(main())\n"
        )
        super().__init__(program, ("--root", str(root), *FAST), 0, root.parent / "small.log")


def tool(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = journal_command.main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def payloads(client: QueueClient, qid: str) -> list[bytes]:
    """Receives the visible messages, and returns their payloads, oldest first."""
    found: list[bytes] = []
    while deliveries := client.receive(qid, 1000, visibility=1000):
        found += [each.payload.encode() if isinstance(each.payload, str) else each.payload for each in deliveries]
    return found


class Load(threading.Thread):
    """Pushes numbers and consumes them, so that compaction is busy: what is deleted is the oldest."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self.client = QueueClient(host, port)
        self.pushed = 0
        """Numbers up to this one were answered."""
        self.deleting = 0
        """Numbers up to this one may have been deleted."""
        self.enough = threading.Event()
        self._progress = threading.Condition()

    def wait_for(self, pushed: int) -> None:
        """Waits until numbers up to this one were answered."""
        with self._progress:
            assert self._progress.wait_for(lambda: self.pushed >= pushed, READY_WITHIN)

    def run(self) -> None:
        with self.client:
            while not self.enough.is_set():
                self.client.push_many("q", [f"{self.pushed + each}".ljust(2000) for each in range(1, 21)])
                with self._progress:
                    self.pushed += 20
                    self._progress.notify()
                if self.pushed > 100:
                    deliveries = self.client.receive("q", 20)
                    self.deleting += len(deliveries)
                    self.client.delete_many(deliveries)


def test_a_backup_under_load_is_complete_up_to_a_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A backup has everything that was answered before it began, without gaps after that; a server starts on it."""
    root = tmp_path / "root"
    server = SmallSegments(root)
    with QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.new_queue("cold")
        client.push_many("cold", ["cold"] * 50)
        load = Load(server.host, server.port)
        load.start()
        known: list[tuple[int, int]] = []
        try:
            for number in range(2):
                load.wait_for(1000 * (number + 1))
                before = load.pushed
                code, out, err = tool(capsys, "backup", "--root", root, "--to", tmp_path / f"backup{number}")
                known.append((before, load.deleting))
                assert (code, err) == (0, "")
                assert "complete up to frame" in out
        finally:
            load.enough.set()
            load.join()
            assert server.stop() == 0
    removed = min(path.name for path in (root / ".journal").glob("*.segment"))
    assert removed > f"{20:016d}.segment"
    for number, (pushed, deleted) in enumerate(known):
        with (
            serving(tmp_path / f"backup{number}", "--durability", "none") as server,
            QueueClient(server.host, server.port) as client,
        ):
            found = [int(payload) for payload in payloads(client, "q")]
            assert found == list(range(found[0], found[-1] + 1))
            assert found[0] <= deleted + 1
            assert found[-1] >= pushed
            assert payloads(client, "cold") == [b"cold"] * 50
        log = (tmp_path / f"backup{number}.log").read_text()
        assert "damaged" not in log
        assert "cut off" not in log


def test_segments_are_shared_and_the_target_is_made_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sealed segments are hard links; a target that exists is refused, and what cannot be read leaves nothing."""
    root = tmp_path / "root"
    for _ in range(2):
        with serving(root, *FAST) as server, QueueClient(server.host, server.port) as client:
            client.new_queue("q", exist_ok=True)
            client.push("q", "one")
    (root / "q" / "12").write_bytes(b"waits")
    code, out, _ = tool(capsys, "backup", "--root", root, "--to", tmp_path / "backup")
    assert (code, "hard links: 1;" in out) == (0, True)
    first, last = sorted((tmp_path / "backup" / ".journal").glob("*.segment"))
    assert (os.stat(first).st_nlink, os.stat(last).st_nlink) == (2, 1)
    assert tool(capsys, "backup", "--root", root, "--to", tmp_path / "backup")[0] == 1
    last_of_root = root / ".journal" / last.name
    last_of_root.write_bytes(b"x" * 10)
    code, _, err = tool(capsys, "backup", "--root", root, "--to", tmp_path / "other")
    assert (code, "queue-journal.py check" in err) == (1, True)
    assert not [path.name for path in tmp_path.iterdir() if "other" in path.name]
    with serving(tmp_path / "backup", *FAST) as server, QueueClient(server.host, server.port) as client:
        found = client.receive("q", 10, wait=10)
        found += client.receive("q", 10, wait=0 if len(found) == 3 else 10)
        assert sorted(delivery.payload for delivery in found) == [b"one", b"one", b"waits"]


def test_export_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exports all queues or some; a second time nothing is written; a server of files starts on the result. With a
    server running it is refused."""
    root, out = tmp_path / "root", tmp_path / "out"
    with serving(root, *FAST) as server, QueueClient(server.host, server.port) as client:
        for qid in ("a/b", "c"):
            client.new_queue(qid, visibility=77)
            client.push_many(qid, [f"{qid} {number}" for number in range(20)])
        client.push("c", "later", delay=1000)
        code, _, err = tool(capsys, "export", "--root", root, "--to", out)
        assert (code, "stop it first" in err) == (1, True)
    assert tool(capsys, "export", "--root", root, "c", "--to", out) == (0, f"{out}/c: 21 messages\n", "")
    code, said, _ = tool(capsys, "export", "--root", root, "--to", out)
    assert (code, said) == (
        0,
        f"{out}/a%2Fb: 20 messages\n{out}/c: 21 messages, 21 of them were there already\n",
    )
    assert tool(capsys, "export", "--root", root, "x", "--to", out)[0] == 1
    with serving(out, "--storage", "files") as server, QueueClient(server.host, server.port) as client:
        assert payloads(client, "a/b") == [b"a/b %d" % number for number in range(20)]
        stats = {queue.qid: queue for queue in client.stats()}
        assert (stats["c"].ready, stats["c"].delayed, stats["c"].storage) == (20, 1, "files")


def test_convert_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`convert` prints what it has done; a running server, a missing queue and another storage are one line each."""
    root = tmp_path / "root"
    with serving(root, *FAST) as server, QueueClient(server.host, server.port) as client:
        client.new_queue("q")
        client.new_queue("nothing", storage="null")
        client.push_many("q", ["a", "b"])
        code, _, err = tool(capsys, "convert", "--root", root, "q", "--to", "files")
        assert (code, "stop it first" in err) == (1, True)
    assert tool(capsys, "convert", "--root", root, "x", "--to", "files")[0] == 1
    assert "only journal and files" in tool(capsys, "convert", "--root", root, "nothing", "--to", "files")[2]
    done = "queue 'q' has the storage files now: 2 messages\n"
    assert tool(capsys, "convert", "--root", root, "q", "--to", "files") == (0, done, "")
    with serving(root, *FAST) as server, QueueClient(server.host, server.port) as client:
        assert client.stats("q")[0].storage == "files"
        assert payloads(client, "q") == [b"a", b"b"]
    program = str(PROJECT / "scripts" / "queue-journal.py")
    done_again = subprocess.run(
        [sys.executable, program, "convert", "--root", str(root), "q", "--to", "journal"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done_again.stdout == "queue 'q' has the storage journal now: 2 messages\n", done_again.stderr


def test_what_is_lost_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`export` and `convert` say in one line for the queue what files cannot keep, and nothing if they keep all."""
    root, out = tmp_path / "root", tmp_path / "out"
    root.mkdir()
    engine = JournalEngine(str(root), clock=wall_clock, durability=Durability.NONE)
    for qid in ("all", "some"):
        engine.create(qid, Options(rate=5.0) if qid == "some" else Options())
        engine.queue(qid).push([Draft(b"x", headers=(("a", "b"),))])
    engine.queue("some").push([Draft(b"x", priority=3, group="g"), Draft(b"x", group="g")])
    engine.close()
    lost = "files cannot keep: priority (1 message), group (2 messages), the option rate\n"
    exported = f"{out}/all: 1 message\n{out}/some: 3 messages\n{lost}"
    assert tool(capsys, "export", "--root", root, "--to", out) == (0, exported, "")
    done = "queue 'some' has the storage files now: 3 messages\n"
    assert tool(capsys, "convert", "--root", root, "some", "--to", "files") == (0, done + lost, "")
    done = done.replace("files", "journal")
    assert tool(capsys, "convert", "--root", root, "some", "--to", "journal") == (0, done, "")
