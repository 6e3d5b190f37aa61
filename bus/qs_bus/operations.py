"""Implements the operations of the bus, with a table of their handlers and of the rights that they need.

An operation that is not in the table is answered with 501: such requests belong on the queue server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from qs_schemas import (
    Authenticate,
    DeleteMessage,
    Error,
    Figure,
    ListQueues,
    Message,
    Ping,
    Receipt,
    ReleaseMessage,
    ServerStats,
    Subscribe,
    Unsubscribe,
    errors,
)
from qs_schemas.wire import BUS
from qs_serving.access import caller as access
from qs_serving.access.principal import Right
from qs_serving.timers import Timers

from .feeds import HeldMessage
from .rights import RefusedError, Rights
from .subscription import Subscription


class Client(Protocol):
    """Describes one connection, as the operations use it. A protocol because the module of the session imports the
    table below."""

    @property
    def rights(self) -> Rights:
        """The client's present rights."""

    @property
    def subscriptions(self) -> list[Subscription]:
        """The subscriptions from which the client gets messages."""

    @property
    def acknowledged(self) -> dict[Subscription, list[HeldMessage]]:
        """Messages that the client has acknowledged, for the session to report when the requests at hand are
        handled."""

    @property
    def timers(self) -> Timers:
        """Calls functions at a later time."""

    @property
    def server_name(self) -> str:
        """HOST:PORT of the queue server."""

    def figures(self, connections: bool) -> list[Figure]:
        """Returns the figures of the bus. connections: True to include those of each connection."""

    async def subscribe(self, request: Subscribe | ListQueues, qids: list[str], answer: Message) -> None:
        """Subscribes the client to queues, and sends the answer before the first message. Raises RefusedError."""

    async def authenticate(self, token: str) -> str:
        """Makes the client the principal of a token, and returns its name. Raises RefusedError, NotAllowedError."""


class Operation(NamedTuple):
    """Describes one operation. handler: takes the client and its request, and returns the answer; rights: for each
    field of the request that names queues, the right that a client needs to these queues; EVERYBODY or ANY_PRINCIPAL
    for an operation that needs no right; waits: True if the handler is a coroutine function, which returns None if it
    has sent the answer itself."""

    handler: Callable[[Any, Any], Any]
    rights: access.Rights | None
    waits: bool = False


async def _authenticate(client: Client, request: Authenticate) -> Message:
    return Authenticate(principal=await client.authenticate(request.token or ""))


async def _subscribe(client: Client, request: Subscribe) -> None:
    if request.qid is not None and request.queues:
        raise RefusedError(errors.BAD_REQUEST, "subscribe takes either 'qid' or 'queues', not both")
    await client.subscribe(request, request.queues or [request.qid or ""], Subscribe(request.qid, request.queues))


async def _list_queues(client: Client, request: ListQueues) -> None:
    """Subscribes an early client, for which this operation is the request to subscribe."""
    if not request.queues:
        raise RefusedError(
            errors.NOT_IMPLEMENTED,
            "the bus knows list-queues only with names, to subscribe to these queues; ask the queue server at "
            f"{client.server_name} for a list",
        )
    await client.subscribe(request, request.queues, ListQueues(list(request.queues)))


def _delete_message(client: Client, request: DeleteMessage) -> Message:
    qid = request.qid or ""
    if request.mid is not None:
        if request.mids:
            raise RefusedError(errors.BAD_REQUEST, "delete-message takes either 'mid' or 'messages', not both")
        _acknowledge(client, qid, request.mid)
        return DeleteMessage(qid, request.mid)
    deleted: list[int | Receipt] = []
    for entry in request.mids:
        mid = entry.mid if isinstance(entry, Receipt) else entry
        try:
            _acknowledge(client, qid, mid)
        except RefusedError:
            continue  # the answer names the acknowledged ids, like the server's answer
        deleted.append(mid)
    return DeleteMessage(qid, mids=deleted)


def _acknowledge(client: Client, qid: str, mid: int) -> None:
    subscription, message = _take_unacknowledged(client, qid, mid)
    client.acknowledged.setdefault(subscription, []).append(message)


def _take_unacknowledged(client: Client, qid: str, mid: int) -> tuple[Subscription, HeldMessage]:
    for subscription in client.subscriptions:
        message = subscription.take((qid, mid))
        if message is not None:
            return subscription, message
    raise RefusedError(
        errors.NOT_FOUND,
        f"message {mid} of queue {qid!r} is not held by this client: it was not delivered to it, or is "
        "handled already, or its subscription has no ack='client'",
    )


def _release_message(client: Client, request: ReleaseMessage) -> Message:
    subscription, message = _take_unacknowledged(client, request.qid or "", request.mid or 0)
    # Before the release, which sends the reason to the server. Without a reason, that of an earlier release stays.
    if request.reason:
        message.reason = request.reason
    if message.feed.release_counted(message, subscription, request.delay, counts=not request.uncounted):
        subscription.pump()
    elif not request.delay:
        message.feed.resend(message, subscription)
    else:
        subscription.delay(message, request.delay, client.timers)
    return ReleaseMessage(request.qid, request.mid)


def _ping(client: Client, request: Ping) -> Message:
    return Ping(BUS)


def _server_stats(client: Client, request: ServerStats) -> Message:
    return ServerStats(client.figures(request.connections))


EVERYBODY = None
"""Allowed also to clients that may do nothing else."""
ANY_PRINCIPAL: access.Rights = {}
"""Allowed to every principal, and to clients that have not authenticated if the access file has a section for them."""

OPERATIONS: dict[type[Message], Operation] = {
    Authenticate: Operation(_authenticate, EVERYBODY, waits=True),
    Subscribe: Operation(_subscribe, {"qid": Right.READ, "queues": Right.READ}, waits=True),
    ListQueues: Operation(_list_queues, {"queues": Right.READ}, waits=True),
    # These requests name only messages that the client got while it had the right to the queue.
    DeleteMessage: Operation(_delete_message, ANY_PRINCIPAL),
    ReleaseMessage: Operation(_release_message, ANY_PRINCIPAL),
    ServerStats: Operation(_server_stats, access.MONITOR),
    Ping: Operation(_ping, EVERYBODY),
}


WAITING = frozenset(kind for kind, operation in OPERATIONS.items() if operation.waits)
"""The requests whose operations may wait, and send their answers themselves."""


def operation_of(request: Message, client: Client) -> Operation:
    """Returns the operation of a request, after a check of the client's rights. Every request passes here before
    anything else is done. Raises RefusedError if the bus has no such operation, NotAllowedError if the client may not
    make the request."""
    operation = OPERATIONS.get(type(request))
    if operation is not None:
        # A pattern needs no right by itself: each queue that matches is checked before the client gets its messages.
        by_pattern = isinstance(request, Subscribe) and request.match is not None
        client.rights.check(ANY_PRINCIPAL if by_pattern else operation.rights, request)
        return operation
    if not isinstance(request, Error):
        client.rights.check(ANY_PRINCIPAL, request)
    raise _unknown(request, client.server_name)


def _unknown(request: Message, server_name: str) -> RefusedError:
    if isinstance(request, Error):
        return RefusedError(errors.BAD_REQUEST, "this document is an error; send requests only")
    if isinstance(request, Unsubscribe):
        return RefusedError(errors.NOT_IMPLEMENTED, "the bus does not know unsubscribe: close the connection instead")
    return RefusedError(
        errors.NOT_IMPLEMENTED, f"the bus does not know {request.op}; send it to the queue server at {server_name}"
    )
