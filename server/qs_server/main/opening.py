"""Opening what a server keeps its queues in: the engine on the root directory, and those that ask other servers."""

import errno
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TypeVar

from qs_serving.listening import StartError

from ..broker.remotes import Remotes
from ..history.record import History
from ..storage.directories import DirectoriesEngine
from ..storage.dirqueue.engines import DirqEngine, DirqSimpleEngine, NullEngine
from ..storage.disk import Disk, reason_of
from ..storage.engine import Clock, Durability, Engine, StorageError
from ..storage.files import FilesEngine
from ..storage.journal.engine import JournalEngine
from ..storage.remote.memcached import MemcachedEngine
from ..storage.remote.registry import queues_in
from ..storage.remote.sqs import SqsEngine
from ..storage.remote_engine import RemoteEngine
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
"""The storages of the root directory; the first is the default."""
REMOTE = {"memcached": "pymemcache", "sqs": "boto3"}
"""The storages of other servers, and the library that each needs."""


def wall_clock() -> int:
    """Microseconds since the Epoch."""
    return time.time_ns() // 1000


def open_storage(options: ServerOptions, clock: Clock, history: History | None = None) -> Engine:
    """The engine on the root directory. history: is told of what happens to messages. StartError when the root cannot
    be used."""
    root = os.path.abspath(options.root)

    def make() -> Engine:
        Disk().make_directories(root, sync=options.durability is not Durability.NONE)
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), root)
        engine = ENGINES.get(options.storage, JournalEngine)
        return engine(root, clock=clock, durability=options.durability, cache=options.cache, lifecycle=history)

    return _opened(root, make)


def open_remotes(options: ServerOptions, clock: Clock, history: History | None = None) -> Remotes:
    """The engines of the other storages, as far as their libraries are there. Asks no other server for anything yet.
    history: is told of what is done with messages. StartError when one is needed and its library is not there."""
    root = os.path.abspath(options.root)
    engines: dict[str, RemoteEngine] = {}
    missing: list[str] = []
    for name, library in REMOTE.items():
        if find_spec(library) is None:
            missing.append(name)
        elif name == "memcached":
            made = partial(MemcachedEngine, root, clock=clock, servers=options.memcached)
            engines[name] = _opened(root, made, "the storage 'memcached' cannot be used")
        else:
            engines[name] = _opened(root, partial(_sqs, root, clock, options), "the storage 'sqs' cannot be used")
    found = _opened(root, lambda: queues_in(root, missing, Disk())) if missing else {}
    out_of_reach = {qid: queue.storage for qid, queue in found.items()}
    default = options.storage if options.storage in REMOTE else None
    remotes = Remotes(engines, missing, default, history, out_of_reach)
    if options.storage in missing:
        raise StartError(str(remotes.library_missing(options.storage)))
    for name in sorted(set(out_of_reach.values())):
        qids = ", ".join(repr(qid) for qid, storage in sorted(out_of_reach.items()) if storage == name)
        _logger.warning("%s; requests about its queues are refused: %s", remotes.library_missing(name), qids)
    for name, engine in engines.items():
        if (engine.queues() or name == options.storage) and (remark := engine.describe()):
            _logger.warning("%s", remark)
    return remotes


def _sqs(root: str, clock: Clock, options: ServerOptions) -> SqsEngine:
    sqs = options.sqs
    return SqsEngine(root, clock=clock, endpoint=sqs.endpoint, region=sqs.region, prefix=sqs.prefix)


def _opened(root: str, make: Callable[[], Opened], refused: str | None = None) -> Opened:
    """refused: what a StorageError means; None: that the root cannot be used."""
    try:
        return make()
    except OSError as error:
        reason = reason_of(error)
        where = f" ({error.filename})" if error.filename not in (None, root) else ""
        raise StartError(f"cannot use root {root}: {reason}{where}; name another with --root") from None
    except StorageError as error:
        raise StartError(f"{refused or f'cannot use root {root}'}: {error}") from None
