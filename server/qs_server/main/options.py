"""Defines the options of a server, which the command's flags set. The defaults are also those of the flags."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qs_schemas import Limits
from qs_serving.options import ServerLimits
from qs_serving.tls import TlsFiles
from qs_storage.engine import Durability
from qs_storage.journal.log.reader import CACHE
from qs_storage.journal.queues.keys import KEYS

from ..history.history import HistoryOptions

__all__ = ["PORT", "HistoryOptions", "ServerLimits", "ServerOptions"]

PORT = 9876


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Holds the options with which a server is started."""

    root: str
    """The directory of the queues, made if it is missing."""
    umask: int = 0o077
    """The rights that others do not have to what the server makes. By default, payloads are for its own user alone."""
    host: str = "127.0.0.1"
    port: int = PORT
    """The port, 0 for a free one."""
    storage: str = "journal"
    """The storage of new queues whose request names none."""
    durability: Durability = Durability.ALWAYS
    limits: ServerLimits = field(default_factory=ServerLimits)
    wire: Limits = field(default_factory=Limits)
    """The limits of documents, which the framing and the parser know."""
    history: HistoryOptions | None = None
    """The options of the lifecycle record, None without one."""
    cache: int = CACHE
    """The most bytes of payloads of the journal in memory."""
    max_keys: int = KEYS
    """The most keys of pushes that the journal remembers."""
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By storage on another server: the arguments of its engine that flags have given."""
    schemas: str | None = None
    """The directory of the schemas of payloads, None without one."""
    early: bool = False
    """True to send every client documents that end with an empty line, as early clients need them: see `Peer`."""
    tls: TlsFiles | None = None
    """The certificate and its key, None for connections without TLS."""
    access: str | None = None
    """The path of the access file, None without one."""
    open: bool = False
    """True to let everybody do everything, also from other machines."""
    migrate: bool = False
    """True to make the schema in the database of `engines`, without serving."""
    check: bool = False
    """True to check files and flags only, without serving."""
    log_format: str = "text"
    """The form of lines in the log: text or json."""
