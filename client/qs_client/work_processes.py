"""`qs work` and its processes: starts them, replaces those that end, and stops them all.

Ensures: there are always as many as wanted, or one is about to be started; one that ends at once, again and again, is
started ever more slowly; at the end of `run` none is left. The function is never imported here, and no connection to
the server is open: whatever a job does, it cannot harm this process.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from .backoff import delays
from .command_output import Output, complain

if TYPE_CHECKING:
    from .client import QueueClient

_STOP = (signal.SIGTERM, signal.SIGINT)
_LONGEST_PAUSE = 30.0
"""Seconds, at most, until a process is started in place of one that has ended: what it needs may be back by then."""
_KILLED_AFTER = 5.0
"""Seconds for a process to end by itself after its grace: it gives its job back in that time."""

_SAME_SIGNAL = 0.5
"""Seconds in which the signal that has stopped it counts once: programs that pass a signal on, such as `timeout` and
`sudo`, and terminals may send it again."""


class Said(Enum):
    """The lines that a process writes: that it takes messages, how a job ended, or why it cannot work (with the
    exit code and a text)."""

    READY = "ready"
    DONE = "done"
    FAILED = "failed"
    TAKEN_AWAY = "taken-away"
    GIVEN_BACK = "given-back"
    CANNOT = "cannot"


def work(client: "QueueClient", arguments: Namespace, _: Output) -> int:
    """Works until a signal says to stop, and then shows a summary. Returns 0 then, 128 and its number after a second
    signal, and what `work_function` says if the function cannot be called at the start.

    client: is connected, so the address and the token are right; the processes have connections of their own.
    """
    client.disconnect()
    began = time.monotonic()
    processes = Processes(arguments.words, arguments.processes, arguments.grace, complain)
    code = processes.run()
    counts = processes.counts
    if processes.began:
        complain(
            f"{counts[Said.DONE]} done, {counts[Said.FAILED]} failed, {counts[Said.TAKEN_AWAY]} taken away, "
            f"{counts[Said.GIVEN_BACK]} given back, {processes.replaced} processes replaced, "
            f"in {time.monotonic() - began:.1f} s"
        )
    return code


class _Process:
    """A process that calls the function. steady: it has done a job, so starting another one is no waste."""

    def __init__(self, words: Sequence[str]) -> None:
        """Starts it, in a process group of its own: Ctrl-C at a terminal does not reach its jobs."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            # -P: a file queue.py in the current directory must not hide that of the standard library from qs.
            self.popen = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", f"{__package__}.work_process", str(theirs.fileno()), *words],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._socket.setblocking(False)
        self._begun = b""
        self.steady = False
        self.silent = False  # it has ended, or a job has closed whatever was open
        self.trouble: tuple[int, str] | None = None  # why it cannot work: its exit code, and a text

    def fileno(self) -> int:
        return self._socket.fileno()

    def said(self) -> Iterator[tuple[Said, str]]:
        """Yields what it has said since the last time."""
        try:
            while data := self._socket.recv(65536):
                self._begun += data
            self.silent = True
        except BlockingIOError:
            pass
        except OSError:  # it was killed
            self.silent = True
        *lines, self._begun = self._begun.split(b"\n")
        for line in lines:
            word, _, text = line.decode().partition(" ")
            yield Said(word), text

    def finish(self) -> None:
        """Tells it to end after the job that it does, however long that takes."""
        with contextlib.suppress(OSError):
            self._socket.send(b"finish\n")

    def stop(self) -> None:
        """Tells it to end after the job that it does, within its grace."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Ends it at once, and the programs that its job has started. Must not have been waited for."""
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def close(self) -> None:
        self._socket.close()

    def ending(self) -> str:
        """Returns how it has ended, in words."""
        if self.trouble is not None:
            return self.trouble[1]
        code = self.popen.returncode
        if code < 0:
            return f"process {self.popen.pid} was ended by {signal.Signals(-code).name}"
        return f"process {self.popen.pid} ended with exit code {code}"


class Processes:
    """Runs them. counts: of jobs, by how they ended; replaced: processes that were started in place of others; began:
    one of them has taken messages."""

    def __init__(self, words: Sequence[str], size: int, grace: float, complain: Callable[[str], None]) -> None:
        """words: the arguments of `qs`, which the processes get; grace: seconds for a job at the end; complain: shows a
        line to the operator."""
        self._words = words
        self._grace = grace
        self._complain = complain
        self.counts: Counter[Said] = Counter()
        self.replaced = 0
        self._places: list[_Process | None] = [None] * size
        self._due: dict[int, float] = dict.fromkeys(range(size), 0.0)  # place -> when one is to be started
        self._pauses = [_pauses() for _ in range(size)]
        self._leaving: set[_Process] = set()  # replaced, and finishing a job
        self._reloading: list[int] = []  # places whose process runs old code
        self._fresh: _Process | None = None  # for the first of them
        self._code: int | None = None  # the exit code; None: they are to work
        self._stopped_by = (signal.Signals(signal.SIGTERM), float("-inf"))  # which signal, and when
        self.began = False
        self._killed_at = float("inf")
        self._terminal = _terminal()

    def run(self) -> int:
        """Returns the exit code, once all have ended: 0 after a signal to stop, 128 and the signal's number after a
        second one; that of a process if none of them can work at the start."""
        with selectors.DefaultSelector() as self._selector, _signals() as signals:
            self._selector.register(signals, selectors.EVENT_READ)
            try:
                while self._code is None or self._all():
                    self._start_due()
                    ready = [key.fileobj for key, _ in self._selector.select(self._until())]
                    for number in signals.recv(1000) if signals in ready else b"":
                        self._signalled(signal.Signals(number))
                    for process in self._all():
                        self._look(process)
                    if time.monotonic() >= self._killed_at:
                        self._kill()
            finally:
                self._kill()
                for process in self._all():
                    process.popen.wait()
                    process.close()
        return self._code

    def _all(self) -> list[_Process]:
        return [each for each in (*self._places, self._fresh, *self._leaving) if each is not None]

    def _until(self) -> float | None:
        """Returns the seconds until something is to be done by itself."""
        first = min([*self._due.values(), self._killed_at])
        return None if first == float("inf") else max(first - time.monotonic(), 0)

    # -- starting and replacing ---------------------------------------------------------------------------------------

    def _start(self) -> _Process:
        process = _Process(self._words)
        self._selector.register(process, selectors.EVENT_READ)
        return process

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in [place for place, due in self._due.items() if due <= now]:
            del self._due[place]
            self._places[place] = self._start()
        if self._reloading and self._fresh is None:
            self._fresh = self._start()

    def _look(self, process: _Process) -> None:
        """Reads what a process has said, and whether it has ended."""
        ended = process.popen.poll() is not None  # before reading: what it said last is there by then
        for said, text in process.said():
            if said is Said.READY:
                self.began = True
                if process is self._fresh and self._code is None:
                    self._replace(process)
            elif said is Said.CANNOT:
                code, _, reason = text.partition(" ")
                process.trouble = int(code), reason
            else:
                process.steady = True
                self.counts[said] += 1
        if process.silent:  # there is always something to read then
            self._unregister(process)
        if ended:
            self._unregister(process)
            process.close()
            self._ended(process)

    def _replace(self, fresh: _Process) -> None:
        """Lets a process that has loaded the code again take its place."""
        place = self._reloading.pop(0)
        old, self._places[place], self._fresh = self._places[place], fresh, None
        self._due.pop(place, None)
        self.replaced += 1
        if old is not None:
            old.finish()
            self._leaving.add(old)
        if not self._reloading:
            self._complain("reloaded: all processes run the new code")

    def _ended(self, process: _Process) -> None:
        if process in self._leaving:
            self._leaving.discard(process)
        elif process is self._fresh:
            self._fresh, self._reloading = None, []
            if self._code is None:
                self._complain(f"not reloaded: {process.ending()}; the other processes go on with the code they have")
        else:
            place = self._places.index(process)
            self._places[place] = None
            if self._code is None and not self.began:
                self._complain(process.ending())
                self._stop(process.trouble[0] if process.trouble else 1)
            elif self._code is None:
                self._start_again(place, process)

    def _start_again(self, place: int, ended: _Process) -> None:
        if ended.steady:
            self._pauses[place] = _pauses()
        pause = next(self._pauses[place])
        self._due[place] = time.monotonic() + pause
        self.replaced += 1
        self._complain(f"{ended.ending()}; another one starts in {pause:.1f} s")

    def _unregister(self, process: _Process) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(process)

    # -- signals ------------------------------------------------------------------------------------------------------

    def _signalled(self, number: signal.Signals) -> None:
        if number in _STOP and self._code is None:
            self._stopped_by = number, time.monotonic()
            self._stop(0)
        elif number in _STOP:
            first, came_at = self._stopped_by
            if number != first or time.monotonic() >= came_at + _SAME_SIGNAL:
                self._code = 128 + number
                self._kill()
        elif number == signal.SIGHUP and self._code is None:
            if self._terminal and not _terminal():
                self._stop(0)
            else:
                if self._fresh is not None:  # it may have loaded what has changed since, or hang
                    self._fresh.finish()
                    self._leaving.add(self._fresh)
                    self._fresh = None
                self._reloading = list(range(len(self._places)))

    def _stop(self, code: int) -> None:
        self._code = code
        self._due.clear()
        self._reloading = []
        for process in self._all():
            process.stop()
        self._killed_at = time.monotonic() + self._grace + _KILLED_AFTER

    def _kill(self) -> None:
        self._killed_at = float("inf")
        for process in self._all():
            process.kill()


def _pauses() -> Iterator[float]:
    """Yields the seconds until a process is started in place of one that has ended."""
    return delays(first=0.2, most=_LONGEST_PAUSE)


def _terminal() -> bool:
    """Tells whether this process has a terminal. Without it, SIGHUP is a wish to reload; of one that has gone, it is
    the end."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Gives a socket from which the numbers of signals can be read: those to stop, to reload, and of a process's end.
    A signal that was ignored (`nohup`) stays so."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    former = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    handlers = {
        number: signal.signal(number, lambda *_: None)
        for number in (*_STOP, signal.SIGHUP, signal.SIGCHLD)
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(former)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        reading.close()
        writing.close()
