"""Time that somebody else is given, measured so that a moment in which this process did not run hardly counts.

A process that was stopped, or did not get a processor, finds a time-out over while what it waited for lies in the
socket. So time passes in steps, and a step counts as one however long it took; who watches a client looks at its socket
after each.
"""

from collections.abc import Awaitable, Callable

import trio

STEPS = 5
"""A pause of this process uses up no more than one part of so many."""


async def within(seconds: float, wait: Callable[[], Awaitable[object]]) -> bool:
    """Waits until `wait` returns, at most so many seconds. wait: is called again after each step, and so must be able
    to go on where it was cancelled. False when the time is over."""
    for _ in range(STEPS):
        with trio.move_on_after(seconds / STEPS):
            await wait()
            return True
    return False
