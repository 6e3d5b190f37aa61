"""The options of a server, which the command's flags set, with their defaults."""

from dataclasses import dataclass, field

from qs_schemas import Limits
from qs_serving.options import ServerLimits
from qs_serving.tls import TlsFiles
from qs_storage.engine import Durability
from qs_storage.journal.cache import CACHE
from qs_storage.journal.store import KEYS

from ..history.record import HistoryOptions

__all__ = ["PORT", "HistoryOptions", "ServerLimits", "ServerOptions", "SqsOptions"]

PORT = 9876


@dataclass(frozen=True, slots=True)
class SqsOptions:
    """endpoint: a URL, None for Amazon's; region: None for that of the environment; prefix: of all queue names."""

    endpoint: str | None = None
    region: str | None = None
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """root: made if missing; umask: what others may not do with what the server makes; port: 0 for a free one; storage:
    the default engine; history: None for no record; cache: the most bytes of journal payloads in memory; max_keys: the
    most keys of pushes there; memcached: (host, port) of each server; early: True to assume that all clients end
    documents with an empty line; tls: None for none; access: path of the access file, None if everybody may do
    everything; open: True to allow that also from other machines; check: True to only check files and flags;
    log_format: text or json."""

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
    memcached: tuple[tuple[str, int], ...] = (("127.0.0.1", 11211),)
    sqs: SqsOptions = field(default_factory=SqsOptions)
    early: bool = False
    tls: TlsFiles | None = None
    access: str | None = None
    open: bool = False
    check: bool = False
    log_format: str = "text"
