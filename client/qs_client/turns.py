"""The turns of the threads that share an object, with signal handlers and interrupts in mind."""

import threading
from collections.abc import Callable
from typing import Any


class Turn:
    """One thread at a time has the turn: `with turn.thread, turn.lock:` waits for it, and `take` may give up.

    thread: is held by the thread whose turn it is, which can be asked for; lock: keeps a signal handler out that runs
    in this thread. Whoever takes the lock has `thread` first.

    Ensures
    1. An interrupt, such as KeyboardInterrupt, at any moment leaves nothing locked. Python looks for signals behind a
       call of a function, but not between the entry of a C lock's with block and the block: so every lock is taken and
       released by a with statement, without Python code of its own.
    2. `take` never waits for its own thread, as in a signal handler or in the end of an object that is collected.

    Never waits in `take` longer than it is told to.
    """

    __slots__ = ("lock", "thread")

    def __init__(self) -> None:
        self.thread = threading.RLock()
        self.lock = threading.Lock()

    @property
    def is_mine(self) -> bool:
        """Tells whether this thread has the turn: what asks was called in the middle of it."""
        return self.thread._is_owned()  # type: ignore[attr-defined, no-any-return]

    def take(self, work: Callable[[], object], seconds: float = 0.0) -> bool:
        """Calls `work` when it is this thread's turn. Returns False, and calls nothing, if this thread has the turn
        already, or no turn comes within these seconds."""
        if self.is_mine:
            return False
        entered = False
        try:
            with _Attempt(self.thread, seconds), self.lock:
                entered = True
                work()
        except StopIteration:  # of the attempt
            if entered:
                raise
        return entered


class _Attempt:
    """A with block that raises StopIteration, and is not entered, if a lock cannot be taken in time.

    Its entry and its exit are functions of C, which the with statement finds in the slots. Methods in Python could be
    interrupted between the lock and the block. Good for one block.
    """

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, lock: Any, seconds: float) -> None:
        # The first true result of `lock.acquire(True, seconds)`, or StopIteration.
        self.__enter__ = filter(None, map(lock.acquire, (True,), (seconds,))).__next__
        self.__exit__ = lock.__exit__
