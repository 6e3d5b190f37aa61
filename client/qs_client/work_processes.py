"""`qs work` and its processes: starts them, replaces those that end, and stops them all. `work_process` is the program
that each of them runs."""

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
from functools import partial
from typing import TYPE_CHECKING

from .backoff import delays
from .command_output import Output, complain

if TYPE_CHECKING:
    from .client import QueueClient

_STOP = (signal.SIGTERM, signal.SIGINT)
_LONGEST_PAUSE = 30.0
"""Seconds, at most, until a process is started in place of one that has ended: what it needs may be back by then."""
_START_PAUSES = partial(delays, first=0.2, most=_LONGEST_PAUSE)
_KILLED_AFTER = 5.0
"""Seconds for a process to end by itself after its grace: it gives its job back in that time."""

_SAME_SIGNAL = 0.5
"""Seconds in which the signal that has stopped it counts once: programs that pass a signal on, such as `timeout` and
`sudo`, and terminals may send it again."""


class Report(Enum):
    """The lines that a process writes: that it takes messages, how a job ended, or why it cannot work (with the
    exit code and a text). A job that is reported as done is taken away late if the answer to its acknowledgement, which
    comes behind, says that somebody else has the message."""

    READY = "ready"
    DONE = "done"
    FAILED = "failed"
    TAKEN_AWAY = "taken-away"
    TAKEN_AWAY_LATE = "taken-away-late"
    GIVEN_BACK = "given-back"
    CANNOT = "cannot"


def work(client: "QueueClient", arguments: Namespace, _: Output) -> int:
    """Works until a signal says to stop, and then shows a summary. Returns 0 then, 128 and the signal's number after a
    second signal, and the code of `work_function` if the function cannot be called at the start.

    client: is connected, so the address and the token are right; the processes have connections of their own.
    """
    client.disconnect()
    began = time.monotonic()
    processes = Processes(arguments.words, arguments.processes, arguments.grace, complain)
    code = processes.run()
    counts = processes.counts
    if processes.began:
        complain(
            f"{counts[Report.DONE]} done, {counts[Report.FAILED]} failed, {counts[Report.TAKEN_AWAY]} taken away, "
            f"{counts[Report.GIVEN_BACK]} given back, {processes.replaced} processes replaced, "
            f"in {time.monotonic() - began:.1f} s"
        )
    return code


class WorkerProcess:
    """A process that calls the function, seen from the one that has started it.

    did_a_job: it has finished a job, so a process in its place is worth a start; socket_ended: nothing more will be
    reported; failure: why it cannot work, its exit code and a text.

    Ensures: it learns of the end of this process, however that comes, as the socket between them ends then.
    """

    def __init__(self, words: Sequence[str]) -> None:
        """Starts the process, in a process group of its own: Ctrl-C at a terminal does not reach its jobs, and `kill`
        also ends the programs that a job has started."""
        self._socket, theirs = socket.socketpair()
        with theirs:
            # -P: a file queue.py in the current directory must not hide that of the standard library from qs.
            self.popen = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", f"{__package__}.work_process", str(theirs.fileno()), *words],
                stdin=subprocess.DEVNULL,  # a process that read the terminal from another group would be stopped
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._socket.setblocking(False)
        self._begun = b""
        self.did_a_job = False
        self.socket_ended = False  # it has ended, or a job has closed whatever was open
        self.failure: tuple[int, str] | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def reports(self) -> Iterator[tuple[Report, str]]:
        """Yields the reports since the last call. Does not wait."""
        try:
            while data := self._socket.recv(65536):
                self._begun += data
            self.socket_ended = True
        except BlockingIOError:
            pass
        except OSError:  # it was killed
            self.socket_ended = True
        *lines, self._begun = self._begun.split(b"\n")
        for line in lines:
            word, _, text = line.decode().partition(" ")
            yield Report(word), text

    def finish(self) -> None:
        """Tells the process to end after its present job, however long that takes."""
        with contextlib.suppress(OSError):
            self._socket.send(b"finish\n")

    def stop(self) -> None:
        """Tells the process to end after its present job, within its grace."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Ends the process at once, and the programs that its job has started. Call it only before the process has been
        waited for."""
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def close(self) -> None:
        self._socket.close()

    def describe_end(self) -> str:
        """Returns how the process has ended, in words."""
        if self.failure is not None:
            return self.failure[1]
        code = self.popen.returncode
        if code < 0:
            return f"process {self.popen.pid} was ended by {signal.Signals(-code).name}"
        return f"process {self.popen.pid} ended with exit code {code}"


class Processes:
    """Keeps a number of processes running until a signal says to stop.

    counts: of jobs, by how they ended; replaced: processes that were started in place of others; began: one of them has
    taken messages.

    Ensures
    1. There are as many processes as wanted, or one is about to be started: one that ends is replaced.
    2. One that ends again and again without having done a job is started ever more slowly. One that cannot work at the
       first start is the end: a wrong name or a missing module does not come right by itself.
    3. A reload starts a new process before it lets an old one finish, so it makes no gap, and code that cannot be
       imported changes nothing.
    4. At the end of `run` no process is left, and no program that a job has started.

    Never imports the function, and has no connection to the server: whatever a job does, it cannot harm this process.
    """

    def __init__(
        self,
        words: Sequence[str],
        size: int,
        grace: float,
        complain: Callable[[str], None],
        *,
        start: Callable[[Sequence[str]], WorkerProcess] = WorkerProcess,
        pauses: Callable[[], Iterator[float]] = _START_PAUSES,
    ) -> None:
        """words: the arguments of `qs`, which the processes get; grace: seconds for a job at the end; complain: shows a
        line to the operator; start: starts a process; pauses: the seconds before each start in place of one that has
        ended."""
        self._words = words
        self._start_process = start
        self._new_pauses = pauses
        self._grace = grace
        self._complain = complain
        self.counts: Counter[Report] = Counter()
        self.replaced = 0
        self._slots: list[WorkerProcess | None] = [None] * size
        self._due: dict[int, float] = dict.fromkeys(range(size), 0.0)  # slot -> when one is to be started
        self._pauses = [pauses() for _ in range(size)]
        self._finishing: set[WorkerProcess] = set()  # replaced, and finishing a job
        self._reloading: list[int] = []  # places whose process runs old code
        self._newcomer: WorkerProcess | None = None  # for the first of them
        self._code: int | None = None  # the exit code; None: they are to work
        self._stopped_by = (signal.Signals(signal.SIGTERM), float("-inf"))  # which signal, and when
        self.began = False
        self._killed_at = float("inf")
        self._terminal = _terminal()

    def run(self) -> int:
        """Runs the processes. Returns the exit code, once all have ended: 0 after a signal to stop, 128 and the
        signal's number after a second one; the code of a process if none can work at the start."""
        with selectors.DefaultSelector() as self._selector, _signals() as signals:
            self._selector.register(signals, selectors.EVENT_READ)
            try:
                while self._code is None or self._all():
                    self._start_due()
                    ready = [key.fileobj for key, _ in self._selector.select(self._seconds_left())]
                    for number in signals.recv(1000) if signals in ready else b"":
                        self._signalled(signal.Signals(number))
                    for process in self._all():  # all: SIGCHLD does not say which one has ended
                        self._read_reports(process)
                    if time.monotonic() >= self._killed_at:
                        self._kill()
            finally:  # also after an error in this process: it must not leave workers behind
                self._kill()
                for process in self._all():
                    process.popen.wait()
                    process.close()
        return self._code

    def _all(self) -> list[WorkerProcess]:
        return [each for each in (*self._slots, self._newcomer, *self._finishing) if each is not None]

    def _seconds_left(self) -> float | None:
        """Returns the seconds until something is to be done by itself."""
        first = min([*self._due.values(), self._killed_at])
        return None if first == float("inf") else max(first - time.monotonic(), 0)

    # -- starting and replacing ---------------------------------------------------------------------------------------

    def _start(self) -> WorkerProcess:
        process = self._start_process(self._words)
        self._selector.register(process, selectors.EVENT_READ)
        return process

    def _start_due(self) -> None:
        now = time.monotonic()
        for slot in [slot for slot, due in self._due.items() if due <= now]:
            del self._due[slot]
            self._slots[slot] = self._start()
        if self._reloading and self._newcomer is None:
            self._newcomer = self._start()

    def _read_reports(self, process: WorkerProcess) -> None:
        """Reads the reports of a process, and notes whether it has ended."""
        ended = process.popen.poll() is not None  # before reading: what it said last is there by then
        for report, text in process.reports():
            if report is Report.READY:
                self.began = True
                if process is self._newcomer and self._code is None:
                    self._replace(process)
            elif report is Report.CANNOT:
                code, _, reason = text.partition(" ")
                process.failure = int(code), reason
            elif report is Report.TAKEN_AWAY_LATE:
                self.counts[Report.DONE] -= 1
                self.counts[Report.TAKEN_AWAY] += 1
            else:
                process.did_a_job = True
                self.counts[report] += 1
        if process.socket_ended:  # there is always something to read then
            self._unregister(process)
        if ended:
            self._unregister(process)
            process.close()
            self._ended(process)

    def _replace(self, newcomer: WorkerProcess) -> None:
        """Lets a process that has loaded the code again take its place."""
        slot = self._reloading.pop(0)
        old, self._slots[slot], self._newcomer = self._slots[slot], newcomer, None
        self._due.pop(slot, None)
        self.replaced += 1
        if old is not None:
            old.finish()
            self._finishing.add(old)
        if not self._reloading:
            self._complain("reloaded: all processes run the new code")

    def _ended(self, process: WorkerProcess) -> None:
        if process in self._finishing:
            self._finishing.discard(process)
        elif process is self._newcomer:
            self._newcomer, self._reloading = None, []
            if self._code is None:
                self._complain(
                    f"not reloaded: {process.describe_end()}; the other processes go on with the code they have"
                )
        else:
            slot = self._slots.index(process)
            self._slots[slot] = None
            if self._code is None and not self.began:
                self._complain(process.describe_end())
                self._stop(process.failure[0] if process.failure else 1)
            elif self._code is None:
                self._start_again(slot, process)

    def _start_again(self, slot: int, ended: WorkerProcess) -> None:
        if ended.did_a_job:
            self._pauses[slot] = self._new_pauses()
        pause = next(self._pauses[slot])
        self._due[slot] = time.monotonic() + pause
        self.replaced += 1
        self._complain(f"{ended.describe_end()}; another one starts in {pause:.1f} s")

    def _unregister(self, process: WorkerProcess) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(process)

    # -- signals ------------------------------------------------------------------------------------------------------

    def _signalled(self, number: signal.Signals) -> None:
        if number in _STOP and self._code is None:
            self._stopped_by = number, time.monotonic()
            self._stop(0)
        elif number in _STOP:
            first, came_at = self._stopped_by
            if number != first or time.monotonic() >= came_at + _SAME_SIGNAL:  # really a second one
                self._code = 128 + number
                self._kill()
        elif number == signal.SIGHUP and self._code is None:
            if self._terminal and not _terminal():  # the terminal was closed
                self._stop(0)
            else:
                if self._newcomer is not None:  # it may have loaded what has changed since, or hang
                    self._newcomer.finish()
                    self._finishing.add(self._newcomer)
                    self._newcomer = None
                self._reloading = list(range(len(self._slots)))

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


def _terminal() -> bool:
    """Tells whether this process has a terminal. Without a terminal, SIGHUP asks for a reload; with one, it means that
    the terminal has gone, and ends the process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yields a socket from which the numbers of signals can be read: those to stop, to reload, and of a process's end.
    A signal that was ignored (`nohup`) stays ignored."""
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    # The selector has to wake, and a handler could do nothing safe in the middle of other code. So the numbers come
    # over a socket. Without a handler of Python's, none would be written there. A full socket wakes the selector, too.
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
