"""Lists the segments of a journal, and has the checks with which `opening.py` refuses a damaged one.

`damage.py` finds the readable records of a damaged journal, and `repair.py` keeps them.
"""

import logging
import mmap
import os
import re
import shlex

from ...disk import Disk, has_no_room
from ...engine import StorageError
from .frames import BLOCK, Gap, Header
from .places import segment_name

_logger = logging.getLogger(__name__)
_SEGMENT = re.compile(r"([0-9]{16})\.segment")


class JournalDamagedError(StorageError):
    """The journal is damaged. The text says where and what to do; `what` says only where."""

    def __init__(self, directory: str, what: str) -> None:
        root = shlex.quote(os.path.dirname(directory))
        self.what = what
        super().__init__(
            f"the journal is damaged: {what}. Nothing was changed. 'queue-journal.py check --root {root}' says what "
            f"can be read still, 'queue-journal.py repair --root {root}' keeps that and sets the damaged files aside"
        )


def numbers_in(directory: str, disk: Disk) -> list[int]:
    """Returns the numbers of the segments in a directory, in increasing order."""
    return sorted(int(match[1]) for name in disk.files_in(directory) if (match := _SEGMENT.fullmatch(name)))


def map_file(path: str) -> memoryview:
    """Maps a file into memory for reading; later writes to it show. OSError."""
    with open(Disk().open_file(path, os.O_RDONLY), "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def release(data: memoryview, end: int | None = None) -> None:
    """Lets the kernel take back the memory of a mapped file up to a byte, None for all of it. It is read again if it is
    needed again. A reader of a whole journal calls this, or all of the journal would count as its memory."""
    if isinstance(data.obj, mmap.mmap) and (length := len(data) if end is None else end & -mmap.PAGESIZE):
        data.obj.madvise(mmap.MADV_DONTNEED, 0, length)


def check_last(directory: str, last: int, begun: int) -> None:
    """Raises JournalDamagedError if the last segment is missing or foreign. last: the greatest number present; begun:
    see `read_last`."""
    if last < begun:
        raise damage(f"{directory}/{segment_name(begun)}", "it is missing")
    if last > begun + 1:
        what = f"it does not belong to this journal, whose last segment is {begun} or {begun + 1}"
        raise damage(f"{directory}/{segment_name(last)}", what)


def check_tail(path: str, header: Header, gap: Gap, following: int) -> None:
    """Raises JournalDamagedError unless a power loss may have torn the last segment at the gap. following: the number
    of the frame after its last valid one."""
    if following == header.first:  # the first frame was durable before the file got its name
        raise damage(path, f"byte {gap.start}: {gap.why or 'there are zeros'}; its first frame is not whole")
    if gap.later is not None and gap.later.synced >= following:
        behind = f"frame {gap.later.sequence} behind it, at byte {gap.later.start}, says that it was durable"
        raise damage(path, f"byte {gap.start}: {gap.why}; {behind}")


def damage(path: str, what: str) -> JournalDamagedError:
    """Makes the error for a damaged file of the journal."""
    return JournalDamagedError(os.path.dirname(path), f"{path}: {what}")


def set_torn_aside(path: str, data: memoryview, gap: Gap, disk: Disk) -> None:
    """Copies the torn end of a segment to a file for the operator, and logs that. On a full disk, only logs.
    OSError."""
    directory, name = os.path.split(path)
    rest = bytes(data[gap.start :]).rstrip(b"\0")
    kept = f"{directory}/cut-{int(name[:16])}-{gap.start // BLOCK}"
    try:
        disk.write_file(kept, rest, sync=True)
        disk.sync_directory(directory)  # the copy has to be durable before the segment may be removed
        where = f"kept in {kept}"
    except OSError as error:
        if not has_no_room(error):
            raise
        where = f"not kept in {kept}, for which there is no room: copy the segment now if you want to examine them"
    _logger.warning(
        "%s ends in %d bytes that were being written when the machine or the server stopped (%s); nothing shows that "
        "they were durable (with durability 'always' no answer was sent for them): they are cut off and %s",
        path,
        len(rest),
        gap.why,
        where,
    )
