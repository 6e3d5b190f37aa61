"""Opens the clock and the engine on the root directory, and the engines of remote storages.

The clock comes first, because all later parts need it. Every error of a start is a StartError, with a text for
operators that names the directory and what to do.
"""

import errno
import logging
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
from qs_storage.door import Refusal
from qs_storage.engine import Clock, Durability, Engine, StorageError, UnsupportedError
from qs_storage.remote_engine import RemoteEngine, foreign_queues, installed_engines, open_engine
from qs_storage.shared import Lifecycle

from ..broker.remotes import Remotes, is_gathering
from .options import ServerOptions

if TYPE_CHECKING:
    from qs_payloads import Schemas

_logger = logging.getLogger(__name__)

ENGINES: dict[str, type[DirectoriesEngine]] = {
    "journal": JournalEngine,
    "files": FilesEngine,
    "dirq-simple": DirqSimpleEngine,
    "dirq": DirqEngine,
    "null": NullEngine,
}
"""Storages of the root directory; the first is the default."""


class Storages(Collection[str]):
    """Holds the names of all storages: those of ENGINES, and those of the installed engines. The installed engines are
    looked up only for a name that is not in ENGINES, because the search takes a fifth of the time of a start."""

    def __contains__(self, name: object) -> bool:
        return name in ENGINES or name in installed_engines()

    def __iter__(self) -> Iterator[str]:
        return iter([*ENGINES, *sorted(installed_engines())])

    def __len__(self) -> int:
        return sum(1 for _ in self)


@contextmanager
def open_clock(options: ServerOptions) -> Iterator[Clock]:
    """Opens the server's clock for a with block. Makes the root if it is missing. Raises StartError."""
    root = os.path.abspath(options.root)

    with _opening(root):
        disk = Disk()
        disk.make_directories(root, sync=options.durability is not Durability.NONE)
        if not os.access(root, os.R_OK | os.W_OK | os.X_OK):  # checked here, before anything fails half way
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), root)
        if reason := belongs_to_another(root):
            raise StorageError(reason)  # becomes a StartError here
        clock = ServerClock(root, disk)
    try:
        yield clock.now
    finally:
        clock.close()  # last of all: parts that are closed before may still ask for the time


def open_storage(
    options: ServerOptions,
    clock: Clock,
    lifecycle: Lifecycle | None = None,
    on_sync: Callable[[float], object] = lambda seconds: None,
    refusal: Refusal | None = None,
) -> Engine:
    """Opens the engine on the root directory. on_sync: called with the seconds that each sync took; refusal: says why
    a payload must not come into a queue with a schema from its directory. Raises StartError."""
    root = os.path.abspath(options.root)

    with _opening(root):
        # With a remote storage as the default, a client can still ask for a queue of the journal.
        engine = ENGINES.get(options.storage, JournalEngine)
        return engine(
            root,
            clock=clock,
            durability=options.durability,
            cache=options.cache,
            keys=options.max_keys,
            lifecycle=lifecycle,
            on_sync=on_sync,
            refusal=refusal,
        )


def read_schemas(directory: str) -> "tuple[Schemas, list[str]]":
    """Returns the schemas in a directory, and for each file that cannot be used a text. Raises StartError if there is
    no such directory."""
    from qs_payloads import Schemas  # noqa: PLC0415 - needs lxml, which help and man pages do without

    try:
        schemas = Schemas(directory)
        return schemas, schemas.reload()
    except OSError as error:
        raise StartError(
            f"cannot read the schemas in {directory}: {reason_of(error)}; name a directory with --schemas"
        ) from None


def belongs_to_another(root: str) -> str | None:
    """Returns why this process does not serve a directory: it runs as the user root, and the directory belongs to
    another user. Returns None otherwise. Raises OSError if there is no such directory."""
    owner = os.stat(root).st_uid
    if os.geteuid() != 0 or owner == 0:
        return None
    return (
        f"it belongs to the user {owner}, who could have root change any file, by links in the directory: start the "
        f"server as that user (sudo -u '#{owner}' ...), or give the directory to root"
    )


def open_remotes(
    options: ServerOptions,
    clock: Clock,
    lifecycle: Lifecycle | None = None,
    here: Callable[[], Collection[str]] = tuple,
) -> Remotes:
    """Opens the engines of remote storages that are needed by a queue in the root, by --storage or by an engine's own
    flags. Contacts no other server, so that this one starts also while another is down. Raises StartError, also if the
    default storage cannot be used. here: see Remotes."""
    root = os.path.abspath(options.root)

    def open_one(storage: str) -> RemoteEngine | None:
        return open_engine(storage, root, clock, options.engines.get(storage, {}))

    remotes = Remotes(open_one, ENGINES, options.storage, lifecycle, here)
    with _opening(root):
        queues = foreign_queues(root, ENGINES)
    # Only the needed ones: importing the library of an engine takes a good part of a start.
    for storage in sorted({*queues.values(), *options.engines, options.storage} - {*ENGINES}):
        with _opening(root, f"the storage {storage!r} cannot be used"):
            try:
                engine = remotes.open(storage)
            except UnsupportedError as error:
                if storage == options.storage:
                    raise StartError(str(error)) from None
                # Only queues of this storage are out of reach: a missing library must not stop those of the journal.
                engine = None
                qids = sorted(qid for qid, kept_in in queues.items() if kept_in == storage)
                refused = f"; requests about its queues are refused: {', '.join(map(repr, qids))}" if qids else ""
                _logger.warning("%s%s", error, refused)
                remotes.give_up(storage, qids)
        if engine is not None and (engine.queues() or storage == options.storage) and (remark := engine.describe()):
            _logger.warning("%s", remark)
        if engine is not None and is_gathering(engine) and storage in queues.values():
            names = ", ".join(repr(qid) for qid, kept_in in sorted(queues.items()) if kept_in == storage)
            _logger.warning(
                "queues of the storage %r have no directories: remove these of the root: %s", storage, names
            )
        if engine is not None and (hidden := sorted({*engine.queues()} & {*here()})):
            names = ", ".join(map(repr, hidden))
            _logger.warning("queues of the root hide those of the same names in the storage %r: %s", storage, names)
    return remotes


@contextmanager
def _opening(root: str, refused: str | None = None) -> Iterator[None]:
    """Turns an OSError or a StorageError of the with block into a StartError about the root. refused: the beginning of
    the text for a StorageError."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename not in (None, root) else ""
        raise StartError(f"cannot use root {root}: {reason_of(error)}{where}; name another with --root") from None
    except StorageError as error:
        raise StartError(f"{refused or f'cannot use root {root}'}: {error}") from None
