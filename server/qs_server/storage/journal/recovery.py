"""Which segments a journal's directory holds, and what of them a start may not find: see `opening.py`.

What can be read of a journal that is damaged, `damage.py` finds, and `repair.py` keeps.
"""

import logging
import mmap
import os
import re
import shlex

from ..disk import Disk, has_no_room
from ..engine import StorageError
from .frames import BLOCK, Gap, Header

_logger = logging.getLogger(__name__)
_SEGMENT = re.compile(r"([0-9]{16})\.segment")


class JournalDamagedError(StorageError):
    """The journal is not as it was written. The text says what is damaged, and what to do.

    what: the first part of that alone."""

    def __init__(self, directory: str, what: str) -> None:
        root = shlex.quote(os.path.dirname(directory))
        self.what = what
        super().__init__(
            f"the journal is damaged: {what}. Nothing was changed. 'queue-journal.py check --root {root}' says what "
            f"can be read still, 'queue-journal.py repair --root {root}' keeps that and sets the damaged files aside"
        )


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"{number:016d}.segment"


def numbers_in(directory: str, disk: Disk) -> list[int]:
    """The numbers of the segments in a directory, sorted."""
    return sorted(int(match[1]) for name in disk.files_in(directory) if (match := _SEGMENT.fullmatch(name)))


def map_file(path: str) -> memoryview:
    """The bytes of a file, as it is from now on. OSError."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def check_last(directory: str, last: int, begun: int) -> None:
    """Whether the last segment that is there is the one that was begun last. begun: see `read_last`."""
    if last < begun:
        raise damage(f"{directory}/{segment_name(begun)}", "it is missing")
    if last > begun + 1:
        what = f"it does not belong to this journal, whose last segment is {begun} or {begun + 1}"
        raise damage(f"{directory}/{segment_name(last)}", what)


def check_tail(path: str, header: Header, gap: Gap, following: int) -> None:
    """Whether the last segment may end like that. following: the number of the frame after its last whole one."""
    if following == header.first:  # it was durable before the file had its name
        raise damage(path, f"byte {gap.start}: {gap.why or 'there are zeros'}; its first frame is not whole")
    if gap.later is not None and gap.later.synced >= following:
        behind = f"frame {gap.later.sequence} behind it, at byte {gap.later.start}, says that it was durable"
        raise damage(path, f"byte {gap.start}: {gap.why}; {behind}")


def damage(path: str, what: str) -> JournalDamagedError:
    """What says that a file of the journal is not as it was written."""
    return JournalDamagedError(os.path.dirname(path), f"{path}: {what}")


def set_torn_aside(path: str, data: memoryview, gap: Gap, disk: Disk) -> None:
    """Copies what a torn tail of a segment holds, up to its last byte that is not zero, to a file of its own, and says
    so. For a look by hand: what counts as durable is not in there. A full disk does not stop the start: then the tail
    is in its segment alone, until that is removed. OSError."""
    directory, name = os.path.split(path)
    rest = bytes(data[gap.start :]).rstrip(b"\0")
    kept = f"{directory}/cut-{int(name[:16])}-{gap.start // BLOCK}"
    try:
        disk.write_file(kept, rest, sync=True)
        disk.sync_directory(directory)  # before the segment can go
        where = f"kept in {kept}"
    except OSError as error:
        if not has_no_room(error):
            raise
        where = f"there is no room to keep them in {kept}: copy the segment now if you want to examine them"
    _logger.warning(
        "%s ends in %d bytes that were being written when the machine or the server stopped (%s); nothing says that "
        "they were durable (with durability 'always' they were never answered for): they are cut off, and %s",
        path,
        len(rest),
        gap.why,
        where,
    )
