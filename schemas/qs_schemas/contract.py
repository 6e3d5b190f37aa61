"""The public names of the package `qs_schemas`, except `parse`: that function needs lxml, which few clients use."""

from .errors import TABLE, ErrorCode, ProtocolError
from .framing import Framer
from .limits import CLIENT_LIMITS, Limits
from .messages import (
    OPERATIONS,
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
    set_codec,
)
from .peer import Fault, Peer, read_document
from .serializing import LINE_END, serialize
from .wire import NAMESPACE

# The parser and the serializer import the message classes, so the message classes cannot import them. This module
# imports both, and hands the functions over.
set_codec(read_document, serialize)

__all__ = [
    "CLIENT_LIMITS", "LINE_END", "NAMESPACE", "OPERATIONS", "TABLE", "AckClaim", "Authenticate", "Claim",
    "ClaimMessages", "CopyMessage", "DeleteMessage", "DeleteQueue", "Delivery", "Draft", "Error", "ErrorCode",
    "ExtendMessage", "Fault", "Figure", "Framer", "GetClaim", "GetMessage", "GetQueue", "Limits", "ListClaims",
    "ListMessages", "ListQueues", "Message", "NewQueue", "Part", "PauseQueue", "Peer", "Ping", "ProtocolError",
    "PublishStaged", "PurgeQueue", "PushMessage", "QueueInfo", "QueueOptions", "QueueStats", "Receipt",
    "ReceiveMessage", "RedriveMessages", "RejectMessage", "ReleaseClaim", "ReleaseMessage", "ResumeQueue",
    "ServerStats", "SetQueue", "StageMessages", "Subscribe", "Unsubscribe", "serialize",
]  # fmt: skip
