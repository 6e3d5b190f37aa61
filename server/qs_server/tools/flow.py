"""The part that `qs-dir pump` and `qs-dir sink` share."""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..storage.engine import StorageError
from .bodies import DEFAULT, Body
from .end import End
from .errors import UsageError, described
from .interrupts import Interrupts
from .layouts import DIRQ, VSQS, layout_of
from .meter import Meter, counted, meter_for

TICK = 0.2
"""Seconds of one wait, after which Ctrl-C is looked for. New messages are reported by inotify."""


def layout_for(arguments: Namespace, *, exists: bool) -> str:
    """Returns the layout of the directory, vsqs if nothing tells it, and sets a missing --schema. UsageError when a
    schema does not go with the layout."""
    layout = layout_of(arguments.directory, arguments.layout) if exists else arguments.layout
    if arguments.schema is not None and layout != DIRQ:
        raise UsageError(
            f"--schema is for the layout dirq; {arguments.directory} has {layout or 'none yet: give --layout dirq'}"
        )
    if arguments.schema is None:
        arguments.schema = Body(DEFAULT)
    return layout or VSQS


@contextmanager
def flow(
    directory: str, done: tuple[str, str], open_end: Callable[[], End], *, live: bool = True
) -> Iterator[tuple[End, Meter, Interrupts]]:
    """Opens an end, a meter and a watch for signals for the length of a with block. An error in the block is raised as
    one that says how many messages went through before. done: as in `stored 5 messages` and `5 messages were stored
    before`; live: see `meter_for`."""
    meter = meter_for(done[0], live=live)
    with Interrupts() as interrupts:
        end = open_end()
        try:
            yield end, meter, interrupts
        except BrokenPipeError:
            meter.clear()
            raise
        except (OSError, StorageError, MemoryError) as error:
            meter.clear()
            before = f"{counted(meter.messages, 'message')} {'was' if meter.messages == 1 else 'were'} {done[1]} before"
            raise StorageError(f"{described(error, directory)}; {before}") from error
        finally:
            end.close()
