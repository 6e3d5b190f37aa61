"""A lifecycle record with a clock and a timer that stand still, on a disk that can fail."""

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

from qs_server.history.history import History, HistoryFolder, OpenFile
from qs_storage.disk import Disk
from support.storage.engines import ManualClock

PEER = "127.0.0.1:4711"


class FaultyDisk(Disk):
    """Takes `room` bytes more (None: any number), and fails the operations that `faults` names."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.faults: dict[str, int] = {}
        self.calls: list[str] = []

    def _step(self, name: str) -> None:
        self.calls.append(name)
        if name in self.faults:
            raise OSError(self.faults[name], os.strerror(self.faults[name]))

    def open(self, *args: Any) -> int:  # type: ignore[override]
        self._step("open")
        return os.open(*args)

    def _pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        self._step("pwrite")
        if self.room is None:
            return os.pwrite(fd, data, offset)
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.pwrite(fd, data[: self.room], offset)
        self.room -= written
        return written

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._step("fsync")

    def rename(self, old: str, new: str) -> None:  # type: ignore[override]
        self._step("rename")
        os.rename(old, new)

    def ftruncate(self, fd: int, size: int) -> None:  # type: ignore[override]
        self._step("ftruncate")
        os.ftruncate(fd, size)


class Folder(HistoryFolder):
    """A folder for lifecycle records, which tells when a file has been finished."""

    def __init__(self, path: str, disk: Disk, keep: int | None = None) -> None:
        super().__init__(path, disk, keep)
        self.finished = threading.Event()

    def finish(self, file: OpenFile) -> None:
        super().finish(file)
        self.finished.set()


class Bench:
    """A record, with a clock and a timer that stand still, on a disk that can fail."""

    def __init__(self, folder: Path, size: int = 1 << 24, age: float = 60, keep: int | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.clock = ManualClock()
        self.seconds = 0.0
        self.disk = FaultyDisk()
        files = Folder(str(folder), self.disk, keep)
        self.folder_done = files.finished
        self.history = History(files, size=size, age=age, clock=self.clock, timer=lambda: self.seconds)
        self.history.begin(PEER)

    def push(self, *mids: int, qid: str = "q") -> None:
        """Pushes these messages in a batch."""
        for mid in mids:
            self.history.note("pushed", qid, mid, 10, 0)
        self.history.commit()

    @property
    def finished(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if not path.name.startswith("."))

    @property
    def open(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.name.startswith("."))

    @property
    def mids(self) -> list[list[int]]:
        """Returns the ids of the lines in each finished file."""
        return [[line["mid"] for line in lines_of(path)] for path in self.finished]


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = path.read_text("ascii")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]
