"""The programs of qs as real processes: on a free port of loopback, known to be ready, ended by their own id."""

import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Self

from qs_storage.watch import CREATE, DELETE, MOVED_FROM, MOVED_TO, Inotify

from .forking import ForkedProcess, forking

WITHIN = 20
"""Seconds: only a failure waits that long."""
READY_WITHIN = 30
"""Seconds that a program has to start, and to end."""
_MODIFY = 0x2  # inotify(7)
_ANY = _MODIFY | CREATE | MOVED_FROM | MOVED_TO | DELETE


def until(condition: Callable[[], object], *directories: Path, within: float = WITHIN, every: float = WITHIN) -> None:
    """Returns once the condition holds. The condition is asked at once, and again when a file in one of the directories
    has been made, written, renamed or removed: such a change must follow whatever makes the condition true. Raises
    AssertionError after `within` seconds. every: seconds after which it is asked again anyway."""
    watch = Inotify()
    try:
        for directory in directories:
            watch.add(str(directory), _ANY)
        changes = select.poll()
        changes.register(watch.fd, select.POLLIN)
        end = time.monotonic() + within
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f"it does not come within {within:g} s")
            if changes.poll(min(left, every) * 1000):
                watch.events()
    finally:
        watch.close()


class StartFailedError(RuntimeError):
    """Reports that a program did not start. The text has its log."""


class Fault:
    """A fault that has begun, and ends at the end of a `with` block; without one it lasts until `heal`."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


class Program:
    """A program that listens, as a process forked from one that has imported `modules`.

    Ensures that it listens when the constructor, or `start`, has returned; that it is ended by its own id; and that it
    ends when the tests' process does. host, port: where it listens; process: the running process, or the last one."""

    name: str
    """The name of the program in texts."""
    modules: tuple[str, ...]
    """The modules that the process which forks imports."""

    def __init__(self, script: Path | str, flags: Sequence[str], port: int, log: Path) -> None:
        """script: the path of a script, or the name of a module; port: 0 for a free one; log: the file for its stderr.
        StartFailedError."""
        self._script = script
        self._flags = flags
        self._log = log
        self.host, self.port = "127.0.0.1", port
        self.start()

    def start(self) -> None:
        """Starts the program, or starts it again after it has ended: on the same port, with the same flags and the same
        log. StartFailedError."""
        with self._log.open("ab") as log:
            self.process = self._launch([*self._flags, "--port", str(self.port)], log)
        line = self.process.stdout.readline().decode()
        ready = re.fullmatch(r"listening on (.+):(\d+)\n", line)
        if ready is None:
            self.wait()
            raise StartFailedError(f"the {self.name} did not start: {line!r}\n{self.log()}")
        self.host, self.port = ready.group(1), int(ready.group(2))

    def _launch(self, flags: list[str], log: BinaryIO) -> ForkedProcess:
        """Starts the process. log: the file for its stderr; its stdout is a pipe."""
        return forking(*self.modules).start(self._script, *flags, log=log)

    def log(self) -> str:
        """Returns what the program has written to its stderr since its first start."""
        return self._log.read_text(errors="replace")

    def until_logged(self, text: str, times: int = 1) -> None:
        """Waits until the text is in the log `times` times."""
        until(lambda: self.log().count(text) >= times, self._log.parent)

    def connect(self, timeout: float = 20) -> socket.socket:
        """Returns a new connection to the program. timeout: seconds."""
        return socket.create_connection((self.host, self.port), timeout)

    @property
    def pid(self) -> int:
        """The id of the process, or of the last one."""
        return self.process.pid

    def kill(self) -> None:
        """Ends the process at once, with SIGKILL."""
        self.process.kill()
        self.wait()

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Sends a signal that stops the process. Returns its exit code."""
        self.process.send_signal(sig)  # nothing is sent to a process that has ended
        return self.wait()

    def freeze(self) -> Fault:
        """Stops the process without ending it (SIGSTOP). It stands still when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        self.process.until_stopped()
        return Fault(self.thaw)

    def thaw(self) -> None:
        """Lets the process go on after `freeze`."""
        self.process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Returns the exit code, once the process has ended. Raises subprocess.TimeoutExpired if it does not end
        within READY_WITHIN."""
        code = self.process.wait(READY_WITHIN)
        self.process.stdout.close()
        return code


def is_running(pid: int) -> bool:
    """Tells whether there is a process of this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
