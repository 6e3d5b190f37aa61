"""When `qs work` starts a process in place of one that has ended, with played processes. Real ones:
tests/integration/test_command_work.py."""

import signal
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qs_client.work_processes import Processes, Report

STOP = signal.SIGTERM


class Played:
    """A process that says words and ends, or, told to stop, runs until it is stopped."""

    def __init__(self, words: list[Report | signal.Signals]) -> None:
        self._socket, self._theirs = socket.socketpair()
        self._theirs.sendall(b"x")  # there is something to read
        self._words = words
        self._code = None if STOP in words else 3
        self.did_a_job = self.socket_ended = False
        self.failure = None
        self.popen = SimpleNamespace(poll=lambda: self._code, wait=lambda: self._code)

    def fileno(self) -> int:
        return self._socket.fileno()

    def reports(self) -> Iterator[tuple[Report, str]]:
        words, self._words = self._words, []
        for word in words:
            if isinstance(word, signal.Signals):
                signal.raise_signal(word)
            else:
                yield word, "1 no such thing" if word is Report.CANNOT else ""

    def stop(self) -> None:
        self._code = 0

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self._socket.close()
        self._theirs.close()

    def describe_end(self) -> str:
        return "it ended"


def run(*played: list[Report | signal.Signals]) -> tuple[int, list[int], list[str]]:
    """Runs one process after the other, as they are played. Returns the exit code, which pauses were made (the number
    of each in its series), and what was said."""
    rest = [Played(words) for words in played]
    pauses: list[int] = []
    lines: list[str] = []

    def series() -> Iterator[float]:
        for number in range(100):
            pauses.append(number)
            yield 0.0

    def start(_: object) -> Any:
        return rest.pop(0)

    return Processes([], 1, 30.0, lines.append, start=start, pauses=series).run(), pauses, lines


def test_run_starts_failing_processes_ever_more_slowly() -> None:
    """A process that ends without having done a job is started ever more slowly; one that has done a job, again at
    once."""
    ends = [Report.READY]
    code, pauses, lines = run(ends, ends, ends, [Report.READY, Report.FAILED], ends, [Report.READY, STOP])
    assert (code, pauses) == (0, [0, 1, 2, 0, 1])
    assert lines == ["it ended; another one starts in 0.0 s"] * 5


def test_run_after_the_start_goes_on() -> None:
    """Once one was ready, a process that cannot work is started again: the server may be away."""
    code, pauses, _ = run([Report.READY], [Report.CANNOT], [], [Report.READY, STOP])
    assert (code, pauses) == (0, [0, 1, 2])


@pytest.mark.parametrize(("words", "code"), [([Report.CANNOT], 1), ([], 1)])
def test_run_with_trouble_at_the_start_ends(words: list[Report], code: int) -> None:
    """If none was ever ready, that is the end, said once."""
    assert run([*words]) == (code, [], ["it ended"])


@pytest.mark.parametrize(("again", "code"), [(STOP, 0), (signal.SIGINT, 130)])
def test_run_with_a_signal_twice(again: signal.Signals, code: int) -> None:
    """The signal that stopped it counts once, though `timeout` and the like send it twice; another one ends all."""
    assert run([Report.READY, STOP, again])[0] == code


def test_run_restores_signal_handlers() -> None:
    """The handlers of signals are those of before; a reload that was ignored (nohup) stays so."""
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        code, _, lines = run([Report.READY, signal.SIGHUP, STOP])
        assert (code, lines) == (0, [])
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == before
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)
