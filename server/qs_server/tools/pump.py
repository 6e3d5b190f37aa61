"""`qs-dir pump`: stores messages in a directory, one by one."""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial

from .flow import TICK, End, Interrupts, OpenEnd, flow, layout_for
from .layouts import DIRQ, VSQS
from .meter import Meter
from .output import UsageError

_PIECE = 1024 * 1024
"""Bytes of input a read."""
_CATCH_UP = 0.1
"""Seconds of delay that following messages make up for with --rate."""


def pump(arguments: Namespace, open_end: OpenEnd) -> int:
    """Returns the exit code."""
    layout = layout_for(arguments, exists=os.path.lexists(arguments.directory))
    if arguments.capacity is not None and layout != VSQS:
        raise UsageError("--capacity is for the layout vsqs")
    if layout == DIRQ and arguments.schema.others:
        raise UsageError(
            f"--schema: {', '.join(arguments.schema.others)} would be missing in each element (a ? allows that)"
        )
    where = arguments.directory, layout, arguments.schema
    opener = partial(open_end, *where, sync=not arguments.no_sync, capacity=arguments.capacity, put_only=True)
    with flow(arguments.directory, ("stored", "stored"), opener) as (end, meter, interrupts):
        _pump_into(end, arguments, interrupts, meter)
    meter.summary()
    return interrupts.exit_code if interrupts.caught else 0


def _pump_into(end: End, arguments: Namespace, interrupts: Interrupts, meter: Meter) -> None:
    due = time.monotonic()
    payloads = _lines(interrupts, meter) if arguments.lines else _numbers(arguments.size)
    for payload in payloads:
        while not interrupts.caught and (left := due - time.monotonic()) > 0:
            interrupts.wait(min(left, 1.0))
            meter.tick()
        while not interrupts.caught:
            if end.put(payload, TICK):
                meter.add(len(payload))
                break
            meter.tick()
            interrupts.wait(0.01)  # `put` did not wait: another process took the last place
        if interrupts.caught:
            return
        if arguments.rate:
            due = max(due + 1 / arguments.rate, time.monotonic() - _CATCH_UP)
        meter.tick()
        if meter.messages == arguments.count:
            return


def _numbers(size: int | None) -> Iterator[bytes]:
    """Yields 1, 2, 3 and so on, each filled up or cut off to the size."""
    number = 0
    while True:
        number += 1
        text = b"%d" % number
        yield text if size is None else text.ljust(size, b".")[:size]


def _lines(interrupts: Interrupts, meter: Meter) -> Iterator[bytes]:
    """Yields the lines of standard input without their ends, as they come."""
    if sys.stdin is None:
        raise UsageError("standard input is closed: redirect it")
    descriptor = sys.stdin.fileno()
    begun: list[bytes] = []
    while not interrupts.caught:
        if not interrupts.wait(1.0, descriptor):
            meter.tick()
            continue
        piece = os.read(descriptor, _PIECE)
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = b"".join([*begun, whole[0]])
            begun.clear()
            yield from whole
        if rest:
            begun.append(rest)
        if not piece:
            if begun:
                yield b"".join(begun)
            return
