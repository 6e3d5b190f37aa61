"""The part that `qs-dir pump` and `qs-dir sink` share."""

from argparse import Namespace

from ..storage.engine import StorageError
from .bodies import DEFAULT, Body
from .errors import CutShortError, UsageError, described
from .layouts import DIRQ, VSQS, layout_of
from .meter import Meter, counted

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


def cut_short(error: OSError | StorageError | MemoryError, directory: str, meter: Meter, done: str) -> CutShortError:
    """Returns the error to raise when some messages have gone through. done: as in `5 messages were stored before`."""
    meter.clear()
    were = "was" if meter.messages == 1 else "were"
    return CutShortError(f"{described(error, directory)}; {counted(meter.messages, 'message')} {were} {done} before")
