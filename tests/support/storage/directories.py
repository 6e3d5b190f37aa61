"""Queues that are directories: the command qs-dir, the package dirq 1.8 beside an engine, and disks that let another
process come in between."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dirq.queue import Queue
from dirq.queue import Queue as OriginalQueue
from dirq.QueueSimple import QueueSimple
from dirq.QueueSimple import QueueSimple as OriginalSimple

from qs_server.main.qs_dir import main
from qs_storage.directories import DirectoriesEngine, DirqEngine, DirqSimpleEngine
from qs_storage.disk import Disk
from qs_storage.engine import Draft, Durability, Headers, Message, Options, Receipt, State, StorageError
from qs_storage.settings import read_options
from qs_storage.tools.convert import Conversion
from support.storage.engines import LOTS, FaultyDisk, JournalEngine, ManualClock

COMMAND = [sys.executable, "-m", "qs_server.main.qs_dir"]
WITHIN = 30
"""Seconds: only a failure takes that long."""
DIRQ = ("dirq-simple", "dirq")


def dir_tool(*words: object, stdin: bytes = b"", check: int | None = 0) -> "subprocess.CompletedProcess[str]":
    """Runs the command to its end: in this process, unless it has to read from stdin. check: the expected exit code,
    None for any."""
    arguments = [str(word) for word in words]
    code, out, err = _in_a_process(arguments, stdin) if stdin else _here(arguments)
    done = subprocess.CompletedProcess(arguments, code, out, err)
    assert "Traceback" not in done.stderr, done.stderr
    assert check is None or done.returncode == check, done
    return done


def _in_a_process(arguments: list[str], stdin: bytes) -> tuple[int, str, str]:
    ran = subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=WITHIN, check=False)
    return ran.returncode, ran.stdout.decode(errors="replace"), ran.stderr.decode(errors="replace")


def _here(arguments: list[str]) -> tuple[int, str, str]:
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+", errors="replace") as out,  # sink writes to the descriptor
        tempfile.TemporaryFile("w+", errors="replace") as err,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, stream in (("stdin", nothing), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stream)
        try:
            code: Any = main(arguments)
        except SystemExit as end:
            code = end.code
        for stream in (out, err):
            stream.flush()
            stream.seek(0)
        return code, out.read(), err.read()


def start(*words: object, **options: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        **{
            "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options,
        },
    )  # fmt: skip


def finish(process: "subprocess.Popen[str]", sig: int | None = None) -> tuple[int, str, str]:
    """Waits until a process ends, or ends it with a signal. Returns exit code, stdout and stderr."""
    if sig is not None:
        process.send_signal(sig)
    out, err = process.communicate(timeout=WITHIN)
    assert "Traceback" not in err
    return process.returncode, out, err


def listed(path: Path) -> list[dict[str, Any]]:
    """Returns the line that `ls` prints for each message."""
    return [json.loads(line) for line in dir_tool("ls", path, "--json").stdout.splitlines()]


def states(path: Path) -> list[str]:
    return [element["state"] for element in listed(path)]


def tree(path: Path) -> dict[str, tuple[int, int]]:
    """Returns the mode and time of change of everything in a directory."""
    return {str(found): (found.lstat().st_mode, found.lstat().st_mtime_ns) for found in path.rglob("*")}


def original_dirq(path: Path, layout: str) -> Any:
    """Returns the queue of the package dirq 1.8, and its way of writing a payload."""
    if layout == "dirq":
        return OriginalQueue(str(path), schema={"body": "string", "header": "table?"})
    return OriginalSimple(str(path))


def element(layout: str, text: str) -> Any:
    return {"body": text, "header": {"a": "b"}} if layout == "dirq" else text.encode()


def age(path: Path, seconds: float) -> None:
    """Makes a file or directory look unchanged for that many seconds."""
    then = time.time() - seconds
    os.utime(path, (then, then))


LATER = 10**9
SMALL: Headers = (("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), ("a", "\u00e9"))
LARGE: Headers = (("large", "x" * 2000),)
"""More than an attribute of a file has room for."""
Seen = list[tuple[int, str, int, int | None, bytes | None, str | None, Headers]]


class Root:
    """A root with queues, no server on it."""

    def __init__(self, root: Path, storage: str | None, disk: Disk | None = None) -> None:
        """storage: the one of the queues, which are made; None: the queues are there already."""
        self.root = root
        self.disk = FaultyDisk()
        self.used = disk or self.disk
        """The disk that the engine and the conversion work on."""
        self.clock = ManualClock()
        if storage is not None:
            root.mkdir(exist_ok=True)
            self._make(storage)

    def _make(self, storage: str) -> None:
        engine = self.open()
        for qid in ("q", "other"):
            engine.create(qid, Options(storage=storage, visibility=LATER))
            drafts = [Draft(b"one", headers=SMALL), Draft(b"two", headers=LARGE), Draft(b"three")]
            engine.queue(qid).push([*drafts, Draft(b"later", LATER + 1, headers=SMALL)])
        engine.commit()
        first, _ = engine.receive(["q"], 2, None, 1 << 20)
        engine.queue("q").release(Receipt(first.mid), 0, reason="why\nand where")
        engine.close()

    def open(self) -> JournalEngine:
        return JournalEngine(str(self.root), clock=self.clock, durability=Durability.ALWAYS, disk=self.used)

    def convert(self, storage: str) -> int:
        return Conversion(str(self.root), "q", self.used, self.clock, lambda count: None).run(storage)

    def crash(self) -> None:
        self.disk.crash()
        self.disk.disarm()

    def storage(self) -> str:
        return read_options(str(self.root / "q"), "?").storage

    def seen(self, qid: str = "q") -> Seen:
        """Returns what a server shows of the queue's messages, now and when all are visible."""
        engine = self.open()
        try:
            for _ in engine.ingest_files(qid):
                pass
            found: Seen = []
            for mid in engine.queue(qid).list_mids(State.ALL, 100, -1):
                message = engine.queue(qid).get(mid, peek=True, visibility=None)
                shown = message.status, message.receives, message.visible_at, message.payload, message.reason
                found.append((mid, *shown, engine.queue(qid).read(Receipt(mid)).headers))
            return found
        finally:
            engine.close()

    def seen_by_a_start(self) -> Seen | str:
        """Returns the result of `seen`, or "refused" if the start is refused with a hint at the command."""
        try:
            return self.seen()
        except StorageError as error:
            return "refused" if "queue-journal.py convert" in str(error) else str(error)


LAYOUTS: dict[str, type[DirectoriesEngine]] = {"dirq-simple": DirqSimpleEngine, "dirq": DirqEngine}
SCHEMA = {"body": "binary", "header": "table?"}


class PresentClock:
    """The present time, plus the microseconds by which the test has moved it on."""

    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return time.time_ns() // 1000 + self.ahead


class Foreign:
    """Another program, with one interface to both layouts of dirq's queues."""

    def __init__(self, layout: str, path: Path) -> None:
        self.layout = layout
        self.path = path
        self.queue: Any = QueueSimple(str(path)) if layout == "dirq-simple" else Queue(str(path), schema=SCHEMA)

    def add(self, payload: bytes, **others: Any) -> str:
        return str(self.queue.add(payload if self.layout == "dirq-simple" else {"body": payload, **others}))

    def payload(self, name: str) -> bytes:
        found = self.queue.get(name)
        return bytes(found if self.layout == "dirq-simple" else found["body"])

    def names(self) -> list[str]:
        return list(self.queue.names())

    def consume(self) -> list[bytes]:
        """Removes every element that can be locked, and returns the payloads."""
        found = []
        for name in self.names():
            if self.queue.lock(name):
                found.append(self.payload(name))
                self.queue.remove(name)
        return found


def mid_of(name: str) -> int:
    return int(name.partition("/")[2], 16)


@dataclass
class Shared:
    """A root with the queue `q`, an engine over it, and another program that uses the queue."""

    layout: str
    root: Path
    clock: PresentClock
    engine: DirectoriesEngine
    foreign: Foreign

    def open(self, disk: Disk | None = None, clock: Callable[[], int] | None = None) -> DirectoriesEngine:
        """Opens a further engine."""
        return LAYOUTS[self.layout](
            str(self.root), clock=clock or self.clock, durability=Durability.ALWAYS, disk=disk or Disk()
        )

    def push(self, *payloads: bytes, delay: int = 0) -> list[int]:
        mids = self.engine.queue("q").push([Draft(payload, delay) for payload in payloads])
        self.engine.commit()
        return mids

    def receive(self, count: int = 100, visibility: int | None = None) -> list[Message]:
        found = self.engine.receive(["q"], count, visibility, LOTS)
        self.engine.commit()
        return found


@contextmanager
def sharing(layout: str, root: Path) -> Iterator[Shared]:
    clock = PresentClock()
    foreign = Foreign(layout, root / "q")  # a directory of dirq, taken up in place
    shared = Shared(layout, root, clock, LAYOUTS[layout](str(root), clock=clock, durability=Durability.ALWAYS), foreign)
    yield shared
    shared.engine.close()


class SteppingDisk(Disk):
    """Calls actions of the test before and after operations, each once, with the operation's arguments."""

    def __init__(self) -> None:
        self.before: dict[str, Callable[..., object]] = {}
        self.after: dict[str, Callable[..., object]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def _run(self, name: str, operation: Callable[..., Any], *arguments: Any) -> Any:
        self.calls.append((name, arguments))
        if (before := self.before.pop(name, None)) is not None:
            before(*arguments)
        result = operation(*arguments)
        if (after := self.after.pop(name, None)) is not None:
            after(*arguments)
        return result

    def link(self, old: str, new: str) -> None:  # type: ignore[override]
        self._run("link", os.link, old, new)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._run("unlink", os.unlink, path)

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        self._run("rename", os.rename, old, new)

    def mkdir(self, path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        self._run("mkdir", os.mkdir, path, mode)

    def rmdir(self, path: str) -> None:  # type: ignore[override]
        self._run("rmdir", os.rmdir, path)

    def lstat(self, path: str) -> os.stat_result:  # type: ignore[override]
        result: os.stat_result = self._run("lstat", os.lstat, path)
        return result

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        fd: int = self._run("open", os.open, path, flags, mode)
        return fd

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._run("fsync", os.fsync, fd)


STEPS = ("open", "lstat", "directories_in", "rename", "link", "unlink", "mkdir", "rmdir", "setxattr")
"""Operations that use a path: another program's change makes a difference before one of them, not between two
others."""


class PurgingDisk(Disk):
    """A disk that calls `happen` after step number `at`, one of `STEPS`. Syncs nothing."""

    def __init__(self) -> None:
        self.steps = 0
        self.at = -1
        self.happen: Callable[[], object] = lambda: None

    def _run(self, operation: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            return operation(*args, **named)
        finally:
            self.steps += 1
            if self.steps == self.at:
                self.happen()

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        pass

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return partial(self._run, found) if name in STEPS else found
