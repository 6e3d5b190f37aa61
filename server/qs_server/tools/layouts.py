"""Recognizes the layout of a queue's directory. Changes nothing."""

import os

from qs_storage.dirq.element_names import OBSOLETE_DIRECTORY, TEMPORARY_DIRECTORY, is_directory, is_element
from qs_storage.engine import StorageError
from qs_storage.names import JOURNAL, parse_message
from qs_storage.settings import FILE

VSQS, DIRQ_SIMPLE, DIRQ = LAYOUTS = ("vsqs", "dirq-simple", "dirq")
MAX_TEMP, MAX_TEMP_VSQS, MAX_LOCK = 300, 600, 600
"""Seconds after which a purge removes what is written, or locked: dirq's, and in vsqs our engines'."""
_EMPTY_SIMPLE = "?"


def layout_of(path: str, wanted: str | None = None) -> str | None:
    """Returns the layout of an existing directory, `wanted` for an empty one. StorageError for another layout than
    the wanted one, or a directory of other things; OSError."""
    others = False
    found: str | None = None
    with os.scandir(path) as entries:
        for entry in entries:
            told = _told_by(entry)
            if told in LAYOUTS:
                found = told
                break
            found = told or found
            others = others or (told is None and not entry.name.startswith("."))
    found = DIRQ_SIMPLE if found == _EMPTY_SIMPLE else found
    if wanted is None and found is None and (others or _is_root(path)):
        raise StorageError(f"{path} holds no queue of a known layout{_hint(path)}")
    if wanted is not None and found is not None and wanted != found:
        raise StorageError(f"{path} has the layout {found}, not {wanted}")
    return found or wanted


def _told_by(entry: "os.DirEntry[str]") -> str | None:
    name = entry.name
    if entry.is_dir(follow_symlinks=False):
        if name in (TEMPORARY_DIRECTORY, OBSOLETE_DIRECTORY):
            return DIRQ
        try:
            return _layout_within(entry.path) if is_directory(name) else None
        except FileNotFoundError:
            return _EMPTY_SIMPLE  # a purge has just removed it: then it was empty
    if name == FILE or (parse_message(os.fsencode(name)) and entry.is_file(follow_symlinks=False)):
        return VSQS
    return None


def _layout_within(intermediate: str) -> str | None:
    nothing = True
    with os.scandir(intermediate) as entries:
        for entry in entries:
            nothing = False
            if is_element(entry.name[:14]):
                return DIRQ if entry.is_dir(follow_symlinks=False) else DIRQ_SIMPLE
    return _EMPTY_SIMPLE if nothing else None


def _is_root(path: str) -> bool:
    return os.path.isdir(os.path.join(path, JOURNAL))


def _hint(path: str) -> str:
    if _is_root(path):
        return ": it is the root of a server, and each directory in it is a queue"
    return f" (with --layout {'|'.join(LAYOUTS)} it is taken for one)"


def intermediates(path: str) -> list[str]:
    """Returns the intermediate directories, oldest first."""
    return sorted(name for name, is_dir in names_in(path) if is_dir and is_directory(name))


def names_in(path: str) -> list[tuple[str, bool]]:
    """Returns each name, and whether it is a directory; nothing if the directory is gone."""
    try:
        with os.scandir(path) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return []
