"""Clients of the queue server and the bus: `QueueClient`, `BusClient`, an async twin of each, the messages of the
protocol, and the exceptions that they raise."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        RejectMessage,
        ReleaseClaim,
        ReleaseMessage,
        ResumeQueue,
        ServerStats,
        SetQueue,
        StageMessages,
        Subscribe,
        Unsubscribe,
    )

    from .async_bus_client import AsyncBusClient, AsyncBusMessages
    from .async_client import AsyncQueueClient
    from .async_deliveries import AsyncDeliveries
    from .bus_client import BusClient, BusMessages
    from .client import QueueClient
    from .deliveries import Deliveries
    from .errors import (
        BadRequest,
        Conflict,
        Disconnected,
        Forbidden,
        Full,
        InternalError,
        Invalid,
        NoAnswer,
        NotEmpty,
        NotFound,
        NotImplementedByServer,
        NotKnown,
        OtherProcess,
        ProtocolMismatch,
        Reject,
        RequestTimeout,
        Retry,
        ServerError,
        ServerUnavailable,
        ShuttingDown,
        Stale,
        TooLarge,
        TooMany,
        Unauthorized,
        Unavailable,
        WrongProgram,
    )

__all__ = [
    "AckClaim", "AsyncBusClient", "AsyncBusMessages", "AsyncDeliveries", "AsyncQueueClient", "Authenticate",
    "BadRequest", "BusClient", "BusMessages", "Claim", "ClaimMessages", "Conflict", "CopyMessage", "DeleteMessage",
    "DeleteQueue", "Deliveries", "Delivery", "Disconnected", "Draft", "Error", "ExtendMessage", "Figure", "Forbidden",
    "Full", "GetClaim", "GetMessage", "GetQueue", "InternalError", "Invalid", "ListClaims", "ListMessages",
    "ListQueues", "Message", "NewQueue", "NoAnswer", "NotEmpty", "NotFound", "NotImplementedByServer", "NotKnown",
    "OtherProcess", "Part", "PauseQueue", "Ping", "ProtocolError", "ProtocolMismatch", "PublishStaged", "PurgeQueue",
    "PushMessage", "QueueClient", "QueueInfo", "QueueOptions", "QueueStats", "Receipt", "ReceiveMessage",
    "RedriveMessages", "Reject", "RejectMessage", "ReleaseClaim", "ReleaseMessage", "RequestTimeout", "ResumeQueue",
    "Retry", "ServerError", "ServerStats", "ServerUnavailable", "SetQueue", "ShuttingDown", "StageMessages", "Stale",
    "Subscribe", "TooLarge", "TooMany", "Unauthorized", "Unavailable", "Unsubscribe", "WrongProgram",
]  # fmt: skip

_MODULES = {
    "async_bus_client": ("AsyncBusClient", "AsyncBusMessages"),
    "async_client": ("AsyncQueueClient",),
    "async_deliveries": ("AsyncDeliveries",),
    "bus_client": ("BusClient", "BusMessages"),
    "client": ("QueueClient",),
    "deliveries": ("Deliveries",),
}
"""The modules of names that are neither errors nor part of the contract."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a name on first use: a program starts without what it does not need, above all without anyio."""
    from importlib import import_module  # noqa: PLC0415

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HOMES:
        found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        contract, errors = import_module("qs_schemas"), import_module(".errors", __name__)
        found = getattr(errors if hasattr(errors, name) else contract, name)
    globals()[name] = found  # so this function is called once for a name
    return found
