"""What `qs-dir pump` and `qs-dir sink` have in common. Ctrl-C ends either between two messages."""

from argparse import Namespace

from ..storage.engine import StorageError
from .bodies import DEFAULT, Body
from .errors import CutShortError, UsageError, described
from .layouts import DIRQ, VSQS, layout_of
from .meter import Meter, counted

TICK = 0.2
"""Seconds that something waits at most before it sees whether Ctrl-C was pressed. Messages are not looked for by that:
the directory is waited on with inotify."""


def opened_layout(arguments: Namespace, *, exists: bool) -> str:
    """The layout; vsqs where nothing tells. UsageError when --schema does not go with it."""
    layout = layout_of(arguments.directory, arguments.layout) if exists else arguments.layout
    if arguments.schema is not None and layout != DIRQ:
        raise UsageError(
            f"--schema is for the layout dirq; {arguments.directory} has {layout or 'none yet: give --layout dirq'}"
        )
    if arguments.schema is None:
        arguments.schema = Body(DEFAULT)
    return layout or VSQS


def cut_short(error: OSError | StorageError | MemoryError, directory: str, meter: Meter, done: str) -> CutShortError:
    """What is said of an error when some messages have gone through. done: as in `5 messages were stored before`."""
    meter.clear()
    were = "was" if meter.messages == 1 else "were"
    return CutShortError(f"{described(error, directory)}; {counted(meter.messages, 'message')} {were} {done} before")
