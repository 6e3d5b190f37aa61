"""Calls in threads, and tasks that wait for them: whoever is not to wait any longer still gets what came of them."""

from typing import Any

import trio

from .remotes import Call


async def run_call(call: Call[Any], limiter: trio.CapacityLimiter) -> None:
    """Until it is done. When the task is cancelled, the call is told to stop, and its end is waited for."""
    done = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run, call, limiter, done)
        try:
            await done.wait()
        except trio.Cancelled:
            call.stop.set()
            raise
        finally:
            with trio.CancelScope(shield=True):
                await done.wait()


async def _run(call: Call[Any], limiter: trio.CapacityLimiter, done: trio.Event) -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(call.run, limiter=limiter)
    done.set()
