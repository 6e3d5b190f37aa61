"""The options of a server, which the command's flags set, with their defaults. The defaults of the flags are these."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qs_schemas import Limits
from qs_serving.options import ServerLimits
from qs_serving.tls import TlsFiles
from qs_storage.engine import Durability
from qs_storage.journal.log.cache import CACHE
from qs_storage.journal.queues.keys import KEYS

from ..history.history import HistoryOptions

__all__ = ["PORT", "HistoryOptions", "ServerLimits", "ServerOptions"]

PORT = 9876


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """root: made if missing; umask: what others may not do with what the server makes; port: 0 for a free one; storage:
    the default engine; history: None for none; cache: the most bytes of journal payloads in memory; max_keys: the
    most keys of pushes there; engines: by storage on another server, what flags say of it, as arguments of its engine;
    early: True to assume that all clients end documents with an empty line; tls: None for none; access: path of the
    access file, None if everybody may do everything; open: True to allow that also from other machines; check: True to
    only check files and flags; log_format: text or json."""

    root: str
    umask: int = 0o077
    host: str = "127.0.0.1"
    port: int = PORT
    storage: str = "journal"
    durability: Durability = Durability.ALWAYS
    limits: ServerLimits = field(default_factory=ServerLimits)
    wire: Limits = field(default_factory=Limits)
    history: HistoryOptions | None = None
    cache: int = CACHE
    max_keys: int = KEYS
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    early: bool = False
    tls: TlsFiles | None = None
    access: str | None = None
    open: bool = False
    check: bool = False
    log_format: str = "text"
