"""Makes a queue's directory in the root atomically, for every storage."""

import errno
import os
import secrets
import shutil
from collections.abc import Callable

from .disk import Disk
from .engine import Options, QueueExistsError
from .names import directory_of
from .settings import write_options

MAKING = ".making-"
"""Begins the name of a directory that is not a queue yet."""


def make_queue(root: str, qid: str, options: Options, disk: Disk, *, made: Callable[[], None]) -> None:
    """Makes a queue's directory with its options. made: called then; if it raises, the directory is removed. The
    content is durable; the caller syncs the root. QueueExistsError, BadQueueNameError, OSError."""
    path = f"{root}/{directory_of(qid)}"
    if os.path.lexists(path):
        raise _exists(qid)
    making = f"{root}/{MAKING}{secrets.token_hex(8)}"
    disk.mkdir(making)
    try:
        write_options(making, options, disk)
        disk.sync_directory(making)
        _rename_new(making, path, qid, disk)
        try:
            made()
        except BaseException:
            disk.rename(path, making)
            raise
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _rename_new(old: str, new: str, qid: str, disk: Disk) -> None:
    try:
        disk.rename(old, new)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _exists(qid) from None
        raise


def _exists(qid: str) -> QueueExistsError:
    return QueueExistsError(f"'{qid}' is already an existing queue")
