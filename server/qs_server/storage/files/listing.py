"""Lists a queue's directory in the vsqs layout, in little more time than it takes to read the names."""

import os
from array import array
from bisect import bisect_left
from itertools import islice
from operator import eq
from typing import NamedTuple

from ..disk import Disk
from ..names import NEW, parse_message, ready_among


class Listing(NamedTuple):
    """The ready messages in order, the hidden ones with their extensions, and the names of all other files."""

    ready: "array[int]"
    hidden: dict[int, int]
    others: list[str]


def list_messages(path: str, disk: Disk) -> Listing:
    """Lists a directory. OSError."""
    found = array("Q")
    hidden: dict[int, int] = {}
    others: list[str] = []
    for names in disk.file_blocks_in(path):
        mids, rest = ready_among(names)
        found.fromlist(mids)
        for name in rest:
            parsed = parse_message(name)
            if parsed is None or parsed[1] == NEW:
                others.append(os.fsdecode(name))
            elif parsed[1]:
                hidden[parsed[0]] = parsed[1]
            else:
                found.append(parsed[0])
    mids = sorted(found)  # each block is in order already
    if any(map(eq, mids, islice(mids, 1, None))):
        mids = sorted(set(mids))  # a name may be read twice when it is removed and made again meanwhile
    ready = array("Q", mids)
    for mid in list(hidden):
        at = bisect_left(ready, mid)
        if at < len(ready) and ready[at] == mid:
            del hidden[mid]  # the same message twice: it is not hidden
    return Listing(ready, hidden, others)
