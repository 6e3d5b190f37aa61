"""One of the processes of `qs work`: takes messages, one at a time, and calls the function with each.

It is told what to do, and reports what it does, over a socket to the process that started it (the starter). A word
there means: take no further message. The end of the stream means the same, and that the running job has `--grace`
seconds left; it also comes when the starter has been killed, so no worker is ever left behind. SIGTERM and SIGINT end
the stream on this side.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Callable
from typing import NoReturn

from qs_schemas import GetMessage

from .client import QueueClient
from .command_arguments import command_line
from .command_output import complain
from .command_run import hint
from .errors import ServerError
from .handling import is_outcome, reason_of
from .security import Security
from .server_arguments import make_security
from .work_function import FAILED, UnusableError, calling, described, load, own_frames
from .work_processes import Report

_STOP = (signal.SIGTERM, signal.SIGINT)
_AT_ONCE = 0.05
"""Seconds, at most, in which a released message comes again if its queue has no back-off."""
_OFTEN = 3
"""Failures of such a message in a row before which a process pauses."""
_LONGEST_PAUSE = 5.0
"""Seconds, at most, of such a pause: the window of the message that comes next runs meanwhile."""
_LAST_WORD = 2.0
"""Seconds in which a job whose grace is over is given back: if the server does not answer, the end of the connection
does it."""


def main(descriptor: int, words: list[str]) -> int:
    """Works until it is told to stop. descriptor: of the socket; words: the arguments of `qs`."""
    os.set_inheritable(descriptor, False)  # programs that jobs start must not hold it open
    with socket.socket(fileno=descriptor) as starter:

        def report(kind: Report, text: str = "") -> None:
            with contextlib.suppress(OSError):  # nobody is left to hear it
                starter.sendall(f"{kind.value} {' '.join(text.split())}\n".encode())

        def stop(*_: object) -> None:
            with contextlib.suppress(OSError):
                starter.shutdown(socket.SHUT_RD)

        for number in _STOP:
            signal.signal(number, stop)
        _leave_children_alone(stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a reload, or the end of the terminal: the starter decides
        arguments = command_line(words)
        _prepare_output(arguments.verbose > 0)
        try:
            function = load(arguments.function)
            security = make_security(arguments, arguments.address, lambda _: None)  # the starter has warned
            arguments.has_token = security.token is not None
            _Worker(arguments, security, calling(function, as_json=arguments.json, as_xml=arguments.xml), report).run(
                starter
            )
        except UnusableError as error:
            report(Report.CANNOT, f"{error.code} {error}")
            return error.code
        except ServerError as error:
            report(Report.CANNOT, f"{FAILED} {error}{hint(error, arguments)}")
            return FAILED
        except (OSError, ValueError) as error:
            report(Report.CANNOT, f"{FAILED} {error}")
            return FAILED
    return 0


def _leave_children_alone(handler: Callable[..., None]) -> None:
    """Lets children that jobs fork, as multiprocessing does, end at the signals that this process handles: the handler
    would run there too. A signal that is sent to a child while it is made waits until then."""

    def as_usual() -> None:
        for number in _STOP:
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, _STOP),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP),
        after_in_child=as_usual,
    )


def _prepare_output(verbose: bool) -> None:
    """Shows what the client logs, and each line that a job prints at once."""
    # Into a file or a pipe, Python would write what a job prints in large blocks, so the log would be late.
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("qs: %(message)s"))
    logger = logging.getLogger("qs_client")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    logger.propagate = False  # a job may set up logging as it likes, and would show these lines once more


class _Worker:
    """The work of this process: jobs in the main thread, and a thread that listens to the starter.

    Ensures
    1. One job at a time. No exception of a job ends the process, not even SystemExit: its message is settled by
       `handling`, and the next one is taken.
    2. Told to stop, it takes no further message. A job that is not done when its grace is over is released, uncounted,
       and the process ends with all programs that the job has started.
    3. A child that a job forks and that comes back from the function is ended: it must not settle its parent's message,
       or take one of its own.
    4. A message that fails again and again without a back-off of its queue does not spin.

    Assumes that it is the leader of its process group, and that jobs run in the main thread: they may handle signals.
    """

    def __init__(
        self,
        arguments: Namespace,
        security: Security,
        call: Callable[[GetMessage], None],
        report: Callable[..., None],
    ) -> None:
        self._arguments = arguments
        self._security = security
        self._call = call
        self._report = report
        self._client = self._new_client(arguments.timeout)
        self._messages = self._client.subscribe(
            arguments.queues, prefetch=arguments.prefetch, visibility=arguments.visibility, ack=arguments.ack
        )
        self._reported_late = 0  # of the messages that were taken away before their acknowledgement came
        self._running: GetMessage | None = None
        self._idle = threading.Event()
        self._stopping = threading.Event()
        self._last: tuple[str | None, int | None] = None, None  # the last message
        self._failures = 0  # of the last message, one at once after the other
        self._free_since = 0.0
        self._pid = os.getpid()

    def _new_client(self, timeout: float) -> QueueClient:
        host, port, _ = self._arguments.address
        return QueueClient(host, port, timeout=timeout, tls=self._security.context, token=self._security.token)

    def run(self, starter: socket.socket) -> None:
        """Works until it is told to stop. Raises ServerError or OSError when the subscription does."""
        try:
            self._messages.open()
            self._report(Report.READY)
            threading.Thread(target=self._listen, args=(starter,), name="qs-listening", daemon=True).start()
            for message in self._messages:
                self._report_late()
                self._work(message)
        finally:
            self._idle.set()
            self._client.disconnect()
            self._report_late()

    def _work(self, message: GetMessage) -> None:
        """Does one job, and says how it ended."""
        began = time.monotonic()
        error: BaseException | None = None
        self._running = message
        handling = self._client.handling(message)
        try:
            with handling:
                try:
                    self._call(message)
                except BaseException as raised:
                    error = raised  # also a Reject, which `handling` does not let out
                    raise
                finally:
                    if os.getpid() != self._pid:
                        _end_child(error)
        except BaseException as raised:  # that of one job is not the end of the process
            error = raised
        self._running = None
        self._report_job(message, error, handling.taken_away, time.monotonic() - began)
        self._slow_down(message, began, failed=error is not None)

    def _report_late(self) -> None:
        """Takes back the reports of jobs that were said to be done before their acknowledgement was refused."""
        while self._reported_late < self._messages.taken_away:
            self._reported_late += 1
            self._report(Report.TAKEN_AWAY_LATE)

    def _slow_down(self, message: GetMessage, began: float, *, failed: bool) -> None:
        """Pauses after a message that fails again and again without a back-off of its queue, or the log would fill."""
        again = self._last == (message.qid, message.mid) and began - self._free_since <= _AT_ONCE
        self._failures = (self._failures + 1 if again else 1) if failed else 0
        self._last = message.qid, message.mid
        if self._failures > _OFTEN:
            self._stopping.wait(min(0.1 * 2 ** min(self._failures - _OFTEN - 1, 10), _LONGEST_PAUSE))
        self._free_since = time.monotonic()

    def _report_job(self, message: GetMessage, error: BaseException | None, taken_away: bool, took: float) -> None:
        rejected = error is not None and is_outcome(error)
        if error is not None and rejected:
            kind, result = Report.FAILED, f"rejected: {' '.join((reason_of(error) or '').split())}"
        elif error is not None:
            kind, result = Report.FAILED, f"failed: {described(error)}"
        elif taken_away:
            kind, result = Report.TAKEN_AWAY, "taken away"
        else:
            kind, result = Report.DONE, "done"
        if error is not None or self._arguments.verbose:
            complain(f"{message.qid} {message.mid}: try {message.receives}, {took:.3f} s, {result}")
        if error is not None and self._arguments.verbose > 1 and not rejected:
            with contextlib.suppress(OSError):
                traceback.print_exception(error.with_traceback(own_frames(error)))
        self._report(kind)

    def _listen(self, starter: socket.socket) -> None:
        """Ends the subscription when the starter says so, and this process when the grace is over."""
        try:
            while starter.recv(100):
                self._stopping.set()
                self._messages.close()
        except OSError:
            pass  # as its end
        self._stopping.set()
        ends = time.monotonic() + self._arguments.grace
        self._messages.close()  # waits for an answer of the server, in the time of the grace
        if not self._idle.wait(max(ends - time.monotonic(), 0)):
            self._end_now()

    def _end_now(self) -> None:
        """Gives the running job back, not counted as a try, and ends this process and the programs that the job has
        started, which are in its process group."""
        if (message := self._running) is not None:
            with contextlib.suppress(ServerError, OSError), self._new_client(_LAST_WORD) as other:
                other.release(message, count=False)
            complain(f"{message.qid} {message.mid}: given back, as it was not done {self._arguments.grace:g} s later")
            self._report(Report.GIVEN_BACK)
        # The message is back, so the job must not go on. It is in the main thread, and nothing else can stop it.
        os.killpg(0, signal.SIGKILL)


def _end_child(error: BaseException | None) -> NoReturn:
    """Ends a process that a job has forked and that has come back from the function: the message is its parent's."""
    with contextlib.suppress(Exception):
        if error is not None and not isinstance(error, SystemExit):
            traceback.print_exception(error.with_traceback(own_frames(error)))
        sys.stdout.flush()
        sys.stderr.flush()
    # Not by SystemExit: the blocks and exit handlers that it would run are those of the parent.
    os._exit(0 if error is None else 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
