"""Calls in threads, and tasks that wait for them: whoever is not to wait any longer still gets what came of them."""

from typing import Any

import trio

from .remotes import Call

_LEAVE = 10
"""Seconds that a call is given to end once nobody wants to wait for it: a server that hangs must not keep this one from
stopping for minutes."""


async def run_call(call: Call[Any], limiter: trio.CapacityLimiter) -> None:
    """Until it is done. When the task is cancelled, the call is told to stop, and its end is waited for, but not for
    long: it goes on by itself then, and its result is an error."""
    done = trio.Event()
    running = trio.CancelScope(shield=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run, call, limiter, running, done)
        try:
            await done.wait()
        except trio.Cancelled:
            call.stop.set()
            raise
        finally:
            with trio.move_on_after(_LEAVE, shield=True):
                await done.wait()
            running.cancel()


async def _run(call: Call[Any], limiter: trio.CapacityLimiter, running: trio.CancelScope, done: trio.Event) -> None:
    with running:
        await trio.to_thread.run_sync(call.run, limiter=limiter, abandon_on_cancel=True)
    done.set()
