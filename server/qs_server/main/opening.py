"""Opens the clock and the engine on the root directory, and the engines of remote storages."""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TypeVar

from qs_serving.errors import StartError
from qs_storage.clock import ServerClock
from qs_storage.directories import (
    DirectoriesEngine,
    DirqEngine,
    DirqSimpleEngine,
    FilesEngine,
    JournalEngine,
    NullEngine,
)
from qs_storage.disk import Disk, reason_of
from qs_storage.engine import Clock, Durability, Engine, StorageError
from qs_storage.lifecycle import Lifecycle
from qs_storage.remote.memcached import MemcachedEngine
from qs_storage.remote.registry import queues_in
from qs_storage.remote.sqs import SqsEngine
from qs_storage.remote_engine import RemoteEngine

from ..broker.remotes import Remotes
from .options import ServerOptions

_logger = logging.getLogger(__name__)
Opened = TypeVar("Opened")

ENGINES: dict[str, type[DirectoriesEngine]] = {
    "journal": JournalEngine,
    "files": FilesEngine,
    "dirq-simple": DirqSimpleEngine,
    "dirq": DirqEngine,
    "null": NullEngine,
}
"""Storages of the root directory; the first is the default."""
REMOTE = {"memcached": "pymemcache", "sqs": "boto3"}
"""Remote storages, and the library that each needs."""


@contextmanager
def open_clock(options: ServerOptions) -> Iterator[Clock]:
    """Opens the server's clock for a with block. Makes the root if it is missing. StartError."""
    root = os.path.abspath(options.root)

    def make() -> ServerClock:
        disk = Disk()
        disk.make_directories(root, sync=options.durability is not Durability.NONE)
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), root)
        if reason := belongs_to_another(root):
            raise StorageError(reason)
        return ServerClock(root, disk)

    clock = _start(root, f"cannot use root {root}", make)
    try:
        yield clock.now
    finally:
        clock.close()


def open_storage(
    options: ServerOptions,
    clock: Clock,
    lifecycle: Lifecycle | None = None,
    on_sync: Callable[[float], object] = lambda seconds: None,
) -> Engine:
    """Opens the engine on the root directory. on_sync: see DirectoriesEngine. StartError."""
    root = os.path.abspath(options.root)

    def make() -> Engine:
        engine = ENGINES.get(options.storage, JournalEngine)
        return engine(
            root,
            clock=clock,
            durability=options.durability,
            cache=options.cache,
            keys=options.max_keys,
            lifecycle=lifecycle,
            on_sync=on_sync,
        )

    return _start(root, f"cannot use root {root}", make)


def belongs_to_another(root: str) -> str | None:
    """Returns why root does not serve a directory of another user, None if that is not the case. OSError."""
    owner = os.stat(root).st_uid
    if os.geteuid() != 0 or owner == 0:
        return None
    return (
        f"it belongs to the user {owner}, who could have root change any file, by links in the directory: start the "
        f"server as that user (sudo -u '#{owner}' ...), or give the directory to root"
    )


def open_remotes(options: ServerOptions, clock: Clock, lifecycle: Lifecycle | None = None) -> Remotes:
    """Opens the engines of remote storages whose libraries are installed, without contacting a server. StartError, also
    if the library of the default storage is missing."""
    root = os.path.abspath(options.root)
    sqs = options.sqs
    makers: dict[str, Callable[[], RemoteEngine]] = {
        "memcached": partial(MemcachedEngine, root, clock=clock, servers=options.memcached),
        "sqs": partial(SqsEngine, root, clock=clock, endpoint=sqs.endpoint, region=sqs.region, prefix=sqs.prefix),
    }
    missing = {name: library for name, library in REMOTE.items() if find_spec(library) is None}
    engines = {
        name: _start(root, f"the storage {name!r} cannot be used", make)
        for name, make in makers.items()
        if name not in missing
    }
    found = _start(root, f"cannot use root {root}", lambda: queues_in(root, missing, Disk())) if missing else {}
    out_of_reach = {qid: queue.storage for qid, queue in found.items()}
    default = options.storage if options.storage in REMOTE else None
    remotes = Remotes(engines, missing, default, lifecycle, out_of_reach)
    if options.storage in missing:
        raise StartError(str(remotes.library_missing(options.storage)))
    for name in sorted(set(out_of_reach.values())):
        qids = ", ".join(repr(qid) for qid, storage in sorted(out_of_reach.items()) if storage == name)
        _logger.warning("%s; requests about its queues are refused: %s", remotes.library_missing(name), qids)
    for name, engine in engines.items():
        if (engine.queues() or name == options.storage) and (remark := engine.describe()):
            _logger.warning("%s", remark)
    return remotes


def _start(root: str, refused: str, make: Callable[[], Opened]) -> Opened:
    """Raises StartError for an OSError about the root, or a StorageError, whose text begins with `refused`."""
    try:
        return make()
    except OSError as error:
        where = f" ({error.filename})" if error.filename not in (None, root) else ""
        raise StartError(f"cannot use root {root}: {reason_of(error)}{where}; name another with --root") from None
    except StorageError as error:
        raise StartError(f"{refused}: {error}") from None
