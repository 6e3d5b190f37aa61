"""What a server can be told, with the defaults. The command's flags are these."""

from dataclasses import dataclass, field

from qs_schemas import Limits
from qs_serving.options import ServerLimits

from .storage.engine import Durability

__all__ = ["PORT", "ServerLimits", "ServerOptions"]

PORT = 9876


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """root: the directory of the queues, made when missing; port 0: any free one; storage: the default engine."""

    root: str
    host: str = "127.0.0.1"
    port: int = PORT
    storage: str = "files"
    durability: Durability = Durability.ALWAYS
    limits: ServerLimits = field(default_factory=ServerLimits)
    wire: Limits = field(default_factory=Limits)
