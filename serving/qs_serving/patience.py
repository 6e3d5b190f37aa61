"""Time-outs for others that hardly count the time in which this process did not run.

A process that was stopped, or got no processor, could find a time-out over while the awaited bytes are in the socket.
So a time-out is split into steps, each of which counts the same however long it took, and the caller looks at the
socket after each.
"""

from collections.abc import Awaitable, Callable

import trio

STEPS = 5
"""Steps of a time-out: a pause of this process uses up one of them at most."""


async def within(seconds: float, wait: Callable[[], Awaitable[object]]) -> bool:
    """Waits at most so many seconds until `wait` returns. wait: is cancelled and called again after each step, and has
    to go on where it was. Returns False if the time is over."""
    for _ in range(STEPS):
        with trio.move_on_after(seconds / STEPS):
            await wait()
            return True
    return False
