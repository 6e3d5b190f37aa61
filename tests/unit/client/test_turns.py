"""The turns of threads: interrupts at any moment, signal handlers, other threads."""

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from qs_client import turns
from qs_client.turns import Turn

_LOOKS = ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME")
"""The instructions behind which Python looks for signals."""


class _InterruptAt:
    """Raises KeyboardInterrupt in this module and in `turns`, behind one of the instructions at which a signal could
    be noticed. number: which one, counted from 0; raised: whether there were so many."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.raised = False
        self._last: dict[FrameType, str] = {}

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename != turns.__file__ and frame.f_code not in _OBSERVED:
            return None
        frame.f_trace_opcodes = True
        if event != "opcode" or self.raised:
            return self
        last = self._last.get(frame, "")
        self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if last in _LOOKS:
            if self._left == 0:
                self.raised = True
                raise KeyboardInterrupt
            self._left -= 1
        return self


def _taking(turn: Turn) -> None:
    turn.take(list)


def _waiting(turn: Turn) -> None:
    turn.take(list, 10.0)


def _within(turn: Turn) -> None:
    with turn.thread, turn.lock:
        len(_LOOKS)  # a call, behind which there is a look for signals


_OBSERVED: set[CodeType] = {each.__code__ for each in (_taking, _waiting, _within)}


def _interrupted(use: Callable[[Turn], None]) -> Iterator[Turn]:
    """Uses a turn again and again, interrupted at each moment once."""
    for number in range(1000):
        turn, interrupt = Turn(), _InterruptAt(number)
        tracer = sys.gettrace()
        sys.settrace(interrupt)
        try:
            use(turn)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        if not interrupt.raised:
            return
        yield turn


@pytest.mark.parametrize("use", [_taking, _waiting, _within])
def test_interrupt_leaves_nothing_locked(use: Callable[[Turn], None]) -> None:
    """Whenever an interrupt comes, any thread can have the turn afterwards."""
    turns_used = list(_interrupted(use))
    assert turns_used
    for turn in turns_used:
        assert not turn.is_mine
        assert not turn.lock.locked()
        assert turn.take(list)


def test_turn_of_this_thread() -> None:
    """In the middle of its own turn, as in a signal handler, nothing is called or waited for."""
    turn, called = Turn(), list[int]()
    with turn.thread, turn.lock:
        assert turn.is_mine
        assert not turn.take(lambda: called.append(1), 1000.0)
    assert turn.take(lambda: called.append(2))
    assert called == [2]


def test_turn_of_another_thread() -> None:
    """While another thread has the turn, nothing is called; one that waits gets it afterwards."""
    turn, begun, go_on = Turn(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(20)

    other = threading.Thread(target=turn.take, args=(hold,))
    other.start()
    assert begun.wait(20)
    assert not turn.is_mine
    assert not turn.take(list)
    go_on.set()
    assert turn.take(list, 20.0)
    other.join(20)


def test_error_of_the_work() -> None:
    """An error of the work goes on, also StopIteration, and the turn is over."""
    turn = Turn()
    for error in (StopIteration, ZeroDivisionError):

        def fail(error: type[Exception] = error) -> None:
            raise error

        with pytest.raises(error):
            turn.take(fail)
        assert turn.take(list)
