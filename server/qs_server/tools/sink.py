"""`qs-dir sink`: takes messages out of a directory, one by one."""

import sys
import time
from argparse import Namespace
from functools import partial

from qs_storage.disk import Disk
from qs_storage.in_use import check_no_server

from .flow import TICK, End, Interrupts, OpenEnd, Taken, flow, layout_for
from .layouts import VSQS
from .meter import Meter
from .output import UsageError, to_stdout

_FEWER = 3


def sink(arguments: Namespace, open_end: OpenEnd) -> int:
    """Returns the exit code."""
    layout = layout_for(arguments, exists=True)
    if arguments.visibility is not None and layout != VSQS:
        raise UsageError("--visibility is for the layout vsqs: with dirq a lock stays until somebody takes it away")
    if layout == VSQS:
        check_no_server(arguments.directory)
    visibility = 10.0 if arguments.visibility is None else arguments.visibility
    where = arguments.directory, layout, arguments.schema
    opener = partial(open_end, *where, sync=not arguments.no_sync, visibility=visibility)
    live = not (arguments.print and sys.stdout.isatty())
    with flow(arguments.directory, ("took", "taken out"), opener, live=live) as (end, meter, interrupts):
        disordered = _sink_from(end, arguments, interrupts, meter)
    meter.summary(f"; {disordered} came out of order" if disordered else "")
    if interrupts.caught:
        return interrupts.exit_code
    return _FEWER if arguments.count is not None and meter.messages < arguments.count else 0


def _sink_from(end: End, arguments: Namespace, interrupts: Interrupts, meter: Meter) -> int:
    """Returns how many messages came after a newer one."""
    disordered = 0
    newest = ""
    waiting_since = time.monotonic()
    while not interrupts.caught and meter.messages != arguments.count:
        left = TICK if arguments.wait is None else waiting_since + arguments.wait - time.monotonic()
        taken = end.take(max(min(left, TICK), 0.0))
        if taken is not None:
            if arguments.print:
                _print(end, taken)
            end.remove(taken)
            meter.add(len(taken.payload))
            disordered += taken.order <= newest
            newest = max(newest, taken.order)
            waiting_since = time.monotonic()
        elif left <= 0:
            break
        meter.tick()
    return disordered


def _print(end: End, taken: Taken) -> None:
    """Writes the payload and a line end to the descriptor of standard output."""
    try:
        with to_stdout():
            # Not by sys.stdout, which would try again at the end what could not be written.
            Disk().write(sys.stdout.fileno(), taken.payload if taken.payload.endswith(b"\n") else taken.payload + b"\n")
    except BaseException:
        end.give_back(taken)
        raise
