"""Clients of the queue server and the bus: `QueueClient`, `BusClient`, an async twin of each, the messages of the
protocol, and the exceptions that they raise."""

from typing import TYPE_CHECKING, Any

from qs_schemas import (
    AckClaim,
    Authenticate,
    Claim,
    ClaimMessages,
    CopyMessage,
    DeleteMessage,
    DeleteQueue,
    Delivery,
    Draft,
    Error,
    ExtendMessage,
    Figure,
    GetClaim,
    GetMessage,
    GetQueue,
    ListClaims,
    ListMessages,
    ListQueues,
    Message,
    NewQueue,
    Part,
    PauseQueue,
    Ping,
    ProtocolError,
    PublishStaged,
    PurgeQueue,
    PushMessage,
    QueueInfo,
    QueueOptions,
    QueueStats,
    Receipt,
    ReceiveMessage,
    RedriveMessages,
    ReleaseClaim,
    ReleaseMessage,
    ResumeQueue,
    ServerStats,
    SetQueue,
    StageMessages,
    Subscribe,
    Unsubscribe,
)

from .bus_client import BusClient, BusMessages
from .client import QueueClient
from .deliveries import Deliveries
from .errors import (
    BadRequest,
    Conflict,
    Forbidden,
    Full,
    InternalError,
    NoAnswer,
    NotEmpty,
    NotFound,
    NotImplementedByServer,
    OtherProcess,
    ProtocolMismatch,
    RequestTimeout,
    ServerError,
    ServerUnavailable,
    ShuttingDown,
    Stale,
    TooLarge,
    TooMany,
    Unauthorized,
)

if TYPE_CHECKING:
    from .async_bus_client import AsyncBusClient, AsyncBusMessages
    from .async_client import AsyncQueueClient
    from .async_deliveries import AsyncDeliveries

__all__ = [
    "AckClaim", "AsyncBusClient", "AsyncBusMessages", "AsyncDeliveries", "AsyncQueueClient", "Authenticate",
    "BadRequest", "BusClient", "BusMessages", "Claim", "ClaimMessages", "Conflict", "CopyMessage", "DeleteMessage",
    "DeleteQueue", "Deliveries", "Delivery", "Draft", "Error", "ExtendMessage", "Figure", "Forbidden", "Full",
    "GetClaim", "GetMessage", "GetQueue", "InternalError", "ListClaims", "ListMessages", "ListQueues", "Message",
    "NewQueue", "NoAnswer", "NotEmpty", "NotFound", "NotImplementedByServer", "OtherProcess", "Part", "PauseQueue",
    "Ping", "ProtocolError", "ProtocolMismatch", "PublishStaged", "PurgeQueue", "PushMessage", "QueueClient",
    "QueueInfo", "QueueOptions", "QueueStats", "Receipt", "ReceiveMessage", "RedriveMessages", "ReleaseClaim",
    "ReleaseMessage", "RequestTimeout", "ResumeQueue", "ServerError", "ServerStats", "ServerUnavailable", "SetQueue",
    "ShuttingDown", "StageMessages", "Stale", "Subscribe", "TooLarge", "TooMany", "Unauthorized", "Unsubscribe",
]  # fmt: skip

_ASYNC = {
    "AsyncBusClient": "async_bus_client",
    "AsyncBusMessages": "async_bus_client",
    "AsyncDeliveries": "async_deliveries",
    "AsyncQueueClient": "async_client",
}


def __getattr__(name: str) -> Any:
    """Imports the async clients on first use, so that other programs start without anyio."""
    if name not in _ASYNC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f".{_ASYNC[name]}", __name__), name)
