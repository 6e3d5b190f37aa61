"""Faults inside the process of a server: its disk and its clock, as orders from outside have it.

`python -m qs_testing.inside SETUP FLAG...` is queue-server.py with that: SETUP is JSON, see `Setup`. A thread listens
on a socket of its own for orders, which `Orders` sends, and answers each when its effect is there. The faults stand in
the place of calls of `qs_storage.disk.Disk` and of Python's clocks, so that the server does what it does on a machine
that has the fault. Nothing of it is in a server that was not started so.
"""

import errno
import json
import os
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from qs_storage.clock import ServerClock
from qs_storage.disk import Disk
from qs_storage.journal.log.log import Transaction

from .unsynced import Unsynced

_BLOCK = 4096
"""Bytes in which file systems hand out room: a file grows to the end of its last block without more."""
_ANSWERS = 30.0
"""Seconds. The thread answers at once, unless the process stands still; a power loss undoes what was not synced."""
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Setup:
    """Tells the process what it needs. control: the name of the abstract Unix socket for orders; keep: see `Unsynced`;
    folders: the directories that hold all files of the server; standing: the orders that hold from the start, by name,
    with their arguments: a disk that is full stays so when the server is started again."""

    control: str
    keep: str
    folders: list[str]
    standing: dict[str, dict[str, Any]] = field(default_factory=dict)

    def arguments(self, *flags: str) -> list[str]:
        """Returns the arguments of the process."""
        return [json.dumps(asdict(self)), *flags]


class Faults:
    """The faults of one process, and the calls in which they are.

    Ensures that without a fault the calls do what the system's do, but that syncs are only recorded: see `Unsynced`."""

    def __init__(self, keep: str, folders: Sequence[str]) -> None:
        self.record = Unsynced(keep)
        self._folders = folders
        self._is_full = False
        self._writes_fail = self._reads_fail = False
        self._slow = 0.0
        self._healed = threading.Event()
        """Wakes those who wait because of `_slow`."""
        self._skew = 0
        self._clocks: list[ServerClock] = []
        self._time, self._time_ns = time.time, time.time_ns
        self._free_bytes = Disk().free_bytes

    # -- orders ---------------------------------------------------------------------------------------------------

    def full_disk(self) -> None:
        with self.record.lock:
            self._is_full = True

    def failing_disk(self, *, reads: bool = False) -> None:
        with self.record.lock:
            self._writes_fail, self._reads_fail = True, reads

    def slow(self, seconds: float) -> None:
        self._slow = seconds

    def skew_clock(self, seconds: float) -> None:
        self._skew = round(seconds * 1e9)
        self._look_at_clock()

    def heal(self, fault: str | None = None) -> None:
        """Ends a fault, or all of them."""
        with self.record.lock:
            if fault in (None, "full_disk"):
                self._is_full = False
            if fault in (None, "failing_disk"):
                self._writes_fail = self._reads_fail = False
            if fault in (None, "slow"):
                self._slow = 0.0
                self._healed.set()
                self._healed = threading.Event()
        if fault in (None, "skew_clock") and self._skew:
            self.skew_clock(0)

    def _look_at_clock(self) -> None:
        # The server's time looks at the wall clock once a second at most: here it looks now, and again if some other
        # thread was looking just before.
        for clock in self._clocks:
            clock._look_at = 0
            clock.now()

    def power_loss(self) -> None:
        """Undoes what is not durable, and ends the process. Never returns."""
        with self.record.lock:  # from here on nothing is written
            try:
                self.record.undo(self._folders)
            except BaseException:
                traceback.print_exc()  # into the log, where whoever looks for the reason finds it
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    # -- calls ----------------------------------------------------------------------------------------------------

    def calls(self) -> dict[str, Callable[..., Any]]:
        """Returns the calls by their names in Disk."""
        record = self.record
        return {
            "open": self._open,
            "close": record.close,
            "read": self._read,
            "pread": self._pread,
            "_write": self._write,
            "_pwrite": self._pwrite,
            "_copy_range": self._copy_range,
            "ftruncate": self._ftruncate,
            "fsync": self._fsync,
            "fdatasync": self._fdatasync,
            "_syncfs": self._syncfs,
            "rename": record.rename,
            "link": record.link,
            "unlink": record.unlink,
            "mkdir": self._mkdir,
            "rmdir": record.rmdir,
            "setxattr": self._setxattr,
            "removexattr": record.removexattr,
            "free_bytes": self._count_free_bytes,
        }

    def install(self) -> None:
        """Puts the calls in the place of those of Disk, and of the clocks. Call it before the server opens anything."""
        for name, call in self.calls().items():
            setattr(Disk, name, call)
        shutil.rmtree = self.record.remove_tree  # type: ignore[assignment]
        time.time = lambda: self._time() + self._skew / 1e9
        time.time_ns = lambda: self._time_ns() + self._skew
        begin = ServerClock.__init__

        def note(clock: ServerClock, *arguments: Any, **named: Any) -> None:
            begin(clock, *arguments, **named)
            self._clocks.append(clock)

        ServerClock.__init__ = note  # type: ignore[assignment,method-assign]
        # The journal stores pushes in room that it has reserved, also while the disk is full. Who asks for a full disk
        # wants it at once, as if that room were used up, and not after some MB.
        name = "left_to_pushes"
        left = property(
            lambda transaction: -1 if self._is_full else transaction.__dict__[name],
            lambda transaction, value: transaction.__dict__.__setitem__(name, value),
        )
        setattr(Transaction, name, left)

    def _open(self, path: str, flags: int, mode: int = 0o777) -> int:
        with self.record.lock:
            if self._is_full and flags & os.O_CREAT and not os.path.lexists(path):
                raise _error(errno.ENOSPC, path)
            return self.record.open(path, flags, mode)

    def _mkdir(self, path: str, mode: int = 0o777) -> None:
        with self.record.lock:
            if self._is_full and not os.path.lexists(path):
                raise _error(errno.ENOSPC, path)
            self.record.mkdir(path, mode)

    def _read(self, fd: int, size: int) -> bytes:
        self._fail_reads()
        return os.read(fd, size)

    def _pread(self, fd: int, size: int, offset: int) -> bytes:
        self._fail_reads()
        return os.pread(fd, size, offset)

    def _write(self, fd: int, data: bytes) -> int:
        self._wait_if_durable(fd)
        with self.record.lock:
            self._fail_writes(fd, self.record.position(fd) + len(data))
            return self.record.write(fd, data)

    def _pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._wait_if_durable(fd)
        with self.record.lock:
            self._fail_writes(fd, offset + len(data))
            return self.record.pwrite(fd, data, offset)

    def _copy_range(self, source: int, target: int, count: int) -> int:
        with self.record.lock:
            self._fail_reads()
            left = os.fstat(source).st_size - os.lseek(source, 0, os.SEEK_CUR)
            self._fail_writes(target, self.record.position(target) + min(left, count))
            return self.record.copy_range(source, target, count)

    def _ftruncate(self, fd: int, size: int) -> None:
        with self.record.lock:
            self._fail_writes(fd, 0)  # to grow takes no room
            self.record.ftruncate(fd, size)

    def _setxattr(
        self, path: str | int, attribute: str, value: bytes, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        with self.record.lock:
            if self._is_full and len(value) > _length_of(path, attribute, follow_symlinks):
                raise _error(errno.ENOSPC, path if isinstance(path, str) else None)
            self.record.setxattr(path, attribute, value, flags, follow_symlinks=follow_symlinks)

    def _fsync(self, fd: int) -> None:
        self._sync(lambda last: self.record.end_sync(fd, last))

    def _fdatasync(self, fd: int) -> None:
        self._sync(lambda last: self.record.end_sync(fd, last, data_only=True))

    def _syncfs(self, fd: int) -> None:
        self._sync(self.record.end_sync_of_all)

    def _count_free_bytes(self, path: str) -> int:
        return 0 if self._is_full else self._free_bytes(path)

    # -- what they do with a fault --------------------------------------------------------------------------------

    def _fail_reads(self) -> None:
        if self._reads_fail:
            raise _error(errno.EIO)

    def _fail_writes(self, fd: int, end: int) -> None:
        """Raises the error of a write that ends at a byte of a file."""
        if self._writes_fail:
            raise _error(errno.EIO)
        if self._is_full and end > -(-os.fstat(fd).st_size // _BLOCK) * _BLOCK:
            raise _error(errno.ENOSPC)

    def _sync(self, end: Callable[[int], None]) -> None:
        last = self.record.begin_sync()
        self._wait()
        with self.record.lock:
            if self._writes_fail:
                raise _error(errno.EIO)
            end(last)

    def _wait_if_durable(self, fd: int) -> None:
        if self._slow and self.record.is_durable(fd):
            self._wait()

    def _wait(self) -> None:
        if self._slow:
            self._healed.wait(self._slow)


def _error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


def _length_of(path: str | int, attribute: str, follow: bool) -> int:
    try:
        return len(os.getxattr(path, attribute, follow_symlinks=follow))
    except OSError:
        return -1


# -- orders ---------------------------------------------------------------------------------------------------------


class Orders:
    """Gives orders to a process with faults: methods of `Faults`, by name. Each has its effect when the call returns.

    A process that does not run has no faults until it is started with what `standing` is then: a disk that is full when
    a server is killed is full when it is started again, and what is ordered meanwhile holds from the start."""

    def __init__(self, control: str) -> None:
        """control: see `Setup`."""
        self._control = control
        self.standing: dict[str, dict[str, Any]] = {}
        """The faults that are there: see `Setup`."""

    def send(self, order: str, **arguments: Any) -> None:
        """Raises ValueError if the order is wrong, and TimeoutError if the process stands still."""
        answer = self._ask({"order": order, **arguments})
        if answer and (error := json.loads(answer)["error"]):
            raise ValueError(error)
        if order == "heal":
            for fault in list(self.standing) if arguments.get("fault") is None else [arguments["fault"]]:
                self.standing.pop(fault, None)
        elif order != "power_loss":
            self.standing[order] = arguments

    def _ask(self, order: dict[str, Any]) -> bytes:
        """Returns the answer, empty if the process does not run or has just ended."""
        with socket.socket(socket.AF_UNIX) as connected, connected.makefile("rb") as lines:
            connected.settimeout(_ANSWERS)
            try:
                connected.connect(f"\0{self._control}")
                connected.sendall(json.dumps(order).encode() + b"\n")
                return lines.readline()
            except ConnectionError:
                return b""


_ORDERS = ("full_disk", "failing_disk", "slow", "skew_clock", "heal", "power_loss")


def obey(faults: Faults, listener: socket.socket) -> None:
    """Carries out orders until the process ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the server's own threads
    while True:
        connected, _ = listener.accept()
        with connected:
            try:
                _obey_one(faults, connected)
            except Exception:
                traceback.print_exc()


def _obey_one(faults: Faults, connected: socket.socket) -> None:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
        return  # another user of the machine
    with connected.makefile("rb") as lines:
        arguments = json.loads(lines.readline())
    order, error = arguments.pop("order"), None
    try:
        if order not in _ORDERS:
            raise ValueError(f"there is no order {order!r}")
        getattr(faults, order)(**arguments)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    connected.sendall(json.dumps({"error": error}).encode() + b"\n")


def install(setup: Setup) -> None:
    """Prepares this process for faults, and listens for orders."""
    faults = Faults(setup.keep, setup.folders)
    faults.install()
    for order, arguments in setup.standing.items():
        getattr(faults, order)(**arguments)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{setup.control}")
    listener.listen()
    threading.Thread(target=obey, args=(faults, listener), name="faults", daemon=True).start()


def main(arguments: Sequence[str]) -> int:
    """Runs queue-server.py with faults. Returns its exit code."""
    from qs_server.main import queue_server  # noqa: PLC0415 - the tests' own process needs only Orders

    install(Setup(**json.loads(arguments[0])))
    return queue_server.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
