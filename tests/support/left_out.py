"""Leaves one place of the storage that makes something durable out of a log. The rest is as it was recorded."""

import os
from collections.abc import Callable, Iterator

from support.power_loss_disk import SYNCS, Entry

NOTHING_DONE = Entry("left_out", ())


def without_sync(log: list[Entry], place: str) -> list[Entry]:
    """The syncs of a place are not done, and O_DSYNC is not asked for."""

    def left(entry: Entry) -> Entry:
        if place not in entry.places:
            return entry
        if entry.kind in SYNCS:
            return NOTHING_DONE
        if entry.kind == "open" and entry.args[2] & os.O_DSYNC:
            return entry._replace(args=(*entry.args[:2], entry.args[2] & ~os.O_SYNC))
        return entry

    return [left(entry) for entry in log]


def in_place(log: list[Entry], place: str) -> list[Entry]:
    """Makes what a place gives a name to under that name from the beginning, instead of under a temporary one."""
    log = list(log)
    for number, entry in enumerate(log):
        if place in entry.places and entry.kind in ("rename", "link"):
            begin = _made(log, number, entry.args[0])
            if begin is not None:
                for at in range(begin, number):
                    log[at] = _moved(log[at], *entry.args)
                log[number] = NOTHING_DONE
                if entry.kind == "link":
                    log[_next_unlink(log, number, entry.args[0])] = NOTHING_DONE
    return log


def _made(log: list[Entry], end: int, path: str) -> int | None:
    for number in range(end - 1, -1, -1):
        entry = log[number]
        if entry.kind == "mkdir" and entry.args == (path,):
            return number
        if entry.kind == "open" and entry.args[1] == path and entry.args[2] & os.O_CREAT:
            return number
        if entry.kind in ("rename", "link") and path in entry.args:
            return None  # it has been something else
    return None


def _moved(entry: Entry, old: str, new: str) -> Entry:
    def path(arg: object) -> object:
        return new + arg[len(old) :] if isinstance(arg, str) and (arg == old or arg.startswith(old + "/")) else arg

    return entry._replace(args=tuple(map(path, entry.args)))


def _next_unlink(log: list[Entry], begin: int, path: str) -> int:
    return next(n for n in range(begin, len(log)) if log[n].kind == "unlink" and log[n].args == (path,))


def not_at_all(log: list[Entry], place: str) -> list[Entry]:
    """Leaves out both the writes of a place into an open file and its syncs."""
    return [NOTHING_DONE if place in entry.places and entry.kind in SYNCS | {"write"} else entry for entry in log]


WAYS: dict[str, Callable[[list[Entry], str], list[Entry]]] = {
    "no sync": without_sync,
    "in place": in_place,
    "not at all": not_at_all,
}


def removable(log: list[Entry]) -> Iterator[tuple[str, str]]:
    """A place that can be left out of a log, and the way."""
    found: dict[tuple[str, str], None] = {}
    for number, entry in enumerate(log):
        if not entry.places:
            continue
        if entry.kind in SYNCS or (entry.kind == "open" and entry.args[2] & os.O_DSYNC):
            found |= dict.fromkeys((place, "no sync") for place in entry.places)
        if entry.kind in ("rename", "link") and _made(log, number, entry.args[0]) is not None:
            found |= dict.fromkeys((place, "in place") for place in entry.places)
        if entry.kind == "write":
            found |= dict.fromkeys((place, "not at all") for place in entry.places if ": write_last" in place)
    return iter(found)
