"""What a process held for its subscribers when it was killed is visible at the next start, and not before."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engines import EPOCH, Crash, FaultyDisk, ManualClock, WithoutAttributes

from qs_server.storage.disk import Disk
from qs_server.storage.engine import Draft, Durability, Options, Receipt, State
from qs_server.storage.files import FilesEngine

WINDOW = 10**9

HOLDER = """
import sys
from qs_server.storage.engine import Draft, Durability, Options, Receipt
from qs_server.storage.files import FilesEngine

engine = FilesEngine(sys.argv[1], clock=lambda: {now}, durability=Durability.NONE)
engine.create("q", Options())
engine.push("q", [Draft(b"x")] * 4)
for held in (True, True, False):
    [message] = engine.receive(["q"], 1, {window}, 1000, held=held)
engine.extend("q", Receipt({now} + 1), 2 * {window})
print("ready", flush=True)
sys.stdin.read()
"""


def engine_on(root: Path, disk: Disk | None = None) -> FilesEngine:
    return FilesEngine(str(root), clock=ManualClock(EPOCH + 10), durability=Durability.NONE, disk=disk)


def locks(root: Path) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith(".holder-")]


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds the first two of four messages for a subscriber (the window of the second is
    extended), and has received the third."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(now=EPOCH, window=WINDOW), str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def test_killed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """At the start after a kill -9, what was held is visible at once and counted; what was received in the ordinary way
    is not. The lock file of the dead process goes."""
    kill(holder)
    engine = engine_on(tmp_path)
    assert engine.list_mids("q", State.READY, 9, -1) == [EPOCH, EPOCH + 1, EPOCH + 3]
    assert engine.list_mids("q", State.IN_FLIGHT, 9, -1) == [EPOCH + 2]
    assert engine.take_arrivals() == {"q": 3}
    assert [message.receives for message in engine.receive(["q"], 9, 10, 1000)] == [2, 2, 1]
    assert locks(tmp_path) == []
    engine.close()


@pytest.mark.parametrize("extended", [False, True])
def test_killed_at_every_step(tmp_path: Path, extended: bool) -> None:
    """Wherever in a delivery, or the extension of its window, the process ends: the message is visible at the start."""
    for step in range(1, 20):
        root = tmp_path / str(step)
        root.mkdir()
        disk = FaultyDisk()
        engine = engine_on(root, disk)
        engine.create("q", Options())
        engine.push("q", [Draft(b"x")] * 2)
        engine.receive(["q"], 1, WINDOW, 1000, held=True)
        disk.arm(step, Crash)
        try:
            if extended:
                engine.extend("q", Receipt(EPOCH + 10, 1), 2 * WINDOW)
            else:
                engine.receive(["q"], 1, WINDOW, 1000, held=True)
        except Crash:
            pass
        done = not disk.failed
        disk.crash()
        engine._watch.close()  # as the kernel does
        after = engine_on(root)
        assert after.list_mids("q", State.READY, 9, -1) == [EPOCH + 10, EPOCH + 11], disk.failed
        after.close()
        if done:
            assert step > 2
            return
    pytest.fail("it was never completed")


def test_alive(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """While the process lives, another one on the same root leaves what it holds alone, and its lock file too."""
    engine = engine_on(tmp_path)
    assert engine.list_mids("q", State.IN_FLIGHT, 9, -1) == [EPOCH, EPOCH + 1, EPOCH + 2]
    assert len(locks(tmp_path)) == 1
    kill(holder)
    assert engine.list_mids("q", State.READY, 9, -1) == [EPOCH + 3]  # it does not look again while it runs
    engine.close()
    engine = engine_on(tmp_path)
    assert engine.list_mids("q", State.READY, 9, -1) == [EPOCH, EPOCH + 1, EPOCH + 3]
    engine.close()


def test_closed(tmp_path: Path) -> None:
    """A process that closes its engine takes its lock file along; one that holds nothing has none."""
    engine = engine_on(tmp_path)
    engine.create("q", Options())
    engine.push("q", [Draft(b"x")])
    assert locks(tmp_path) == []
    engine.receive(["q"], 1, WINDOW, 1000, held=True)
    assert len(locks(tmp_path)) == 1
    engine.close()
    assert locks(tmp_path) == []
    again = engine_on(tmp_path)
    assert again.list_mids("q", State.READY, 9, -1) == [EPOCH + 10]
    again.close()


@pytest.mark.parametrize("how", ["received again", "another program", "released with a delay"])
def test_taken_over(tmp_path: Path, holder: subprocess.Popen[str], how: str) -> None:
    """A message that somebody else has hidden since, until another time, is left alone."""
    other = engine_on(tmp_path)
    if how == "another program":
        os.rename(tmp_path / "q" / f"{EPOCH}.{EPOCH + WINDOW}", tmp_path / "q" / f"{EPOCH}.{EPOCH + 5}")
    elif how == "received again":
        other.release("q", Receipt(EPOCH, 1), 0)
        assert [message.mid for message in other.receive(["q"], 1, WINDOW, 1000)] == [EPOCH]
    else:
        other.release("q", Receipt(EPOCH, 1), WINDOW)
    kill(holder)
    other.close()
    engine = FilesEngine(str(tmp_path), clock=ManualClock(EPOCH), durability=Durability.NONE)
    assert engine.list_mids("q", State.READY, 9, -1) == [EPOCH + 1, EPOCH + 3]
    engine.close()


def test_without_extended_attributes(tmp_path: Path) -> None:
    """Where there are none, what a killed process held is visible when its window ends."""
    engine = engine_on(tmp_path, WithoutAttributes())
    engine.create("q", Options())
    engine.push("q", [Draft(b"x")])
    engine.receive(["q"], 1, 100, 1000, held=True)
    after = FilesEngine(
        str(tmp_path), clock=ManualClock(EPOCH + 109), durability=Durability.NONE, disk=WithoutAttributes()
    )
    assert after.list_mids("q", State.IN_FLIGHT, 9, -1) == [EPOCH + 10]
    assert after.next_expiry() == EPOCH + 110
    after.close()
    engine.close()


@pytest.mark.parametrize("only", ["open", "rename"])
def test_a_process_that_cannot_register(tmp_path: Path, caplog: pytest.LogCaptureFixture, only: str) -> None:
    """On a disk without room for a lock file messages are received all the same; nothing is left behind; the log says
    once that a kill would not give them back at once; and it is tried again the next time."""
    disk = FaultyDisk()
    engine = engine_on(tmp_path, disk)
    engine.create("q", Options())
    engine.push("q", [Draft(b"x")] * 4)
    engine.flush()
    for _ in range(2):
        descriptors = set(disk.descriptors)
        disk.arm(1, 28, only)
        assert len(engine.receive(["q"], 1, WINDOW, 1000, held=True)) == 1
        assert (disk.failed, locks(tmp_path), disk.descriptors) == ([only], [], descriptors)
    assert caplog.text.count("not given back at once") == 1
    disk.disarm()
    assert len(engine.receive(["q"], 1, WINDOW, 1000, held=True)) == 1
    assert len(locks(tmp_path)) == 1
    engine.close()
