"""`qs-dir sink`: messages out of a directory, one after the other. One is counted when it is removed, not before."""

import sys
import time
from argparse import Namespace

from ..storage.disk import Disk
from ..storage.engine import StorageError
from .ends import End, Taken, open_end
from .errors import UsageError
from .flow import TICK, cut_short, opened_layout
from .interrupts import Interrupts
from .layouts import VSQS
from .meter import Meter, meter_for
from .output import ToStdout

_FEWER = 3


def sink(arguments: Namespace) -> int:
    """Takes messages out; the exit code."""
    layout = opened_layout(arguments, exists=True)
    if arguments.visibility is not None and layout != VSQS:
        raise UsageError("--visibility is for the layout vsqs: with dirq a lock stays until somebody takes it away")
    meter = meter_for("took", live=not (arguments.print and sys.stdout.isatty()))
    with Interrupts() as interrupts:
        visibility = 10.0 if arguments.visibility is None else arguments.visibility
        end = open_end(arguments.directory, layout, arguments.schema, sync=not arguments.no_sync, visibility=visibility)
        try:
            disordered = _sink_from(end, arguments, interrupts, meter)
        except BrokenPipeError:
            meter.clear()
            raise
        except (OSError, StorageError, MemoryError) as error:
            raise cut_short(error, arguments.directory, meter, "taken out") from error
        finally:
            end.close()
        meter.summary(f"; {disordered} came out of order" if disordered else "")
        if interrupts.caught:
            return interrupts.exit_code
        return _FEWER if arguments.count is not None and meter.messages < arguments.count else 0


def _sink_from(end: End, arguments: Namespace, interrupts: Interrupts, meter: Meter) -> int:
    """How many came after one that is newer."""
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
    """The payload, and a line end if it has none; with whoever reads it (or the system) when this returns."""
    try:
        with ToStdout():
            # Not by sys.stdout, which would try again at the end what could not be written.
            Disk().write(sys.stdout.fileno(), taken.payload if taken.payload.endswith(b"\n") else taken.payload + b"\n")
    except BaseException:
        end.give_back(taken)
        raise
