"""The table of operations: what handles each, what it does in the storage, and which right it needs.

docs/operations-reference.md shows the same table. An operation that is not in it is answered with 501.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

import qs_schemas as wire
from qs_schemas import Message

from ..storage.engine import Batches, Claims, Engine, Queue
from . import claiming, messages, subscribing
from .service import Handler


class Right(Enum):
    """What a principal may do with a queue. READ: see and consume its messages; WRITE: add messages; CONFIGURE: make,
    change, empty and delete it."""

    READ = "read"
    WRITE = "write"
    CONFIGURE = "configure"


class Operation(NamedTuple):
    """One operation. rights: by each field of the request that names queues, the right that it needs to them; uses: the
    methods of the storage by which it is done."""

    handler: Handler
    rights: Mapping[str, Right] = {}
    uses: tuple[Callable[..., object], ...] = ()


_READ = {"qid": Right.READ}
_WRITE = {"qid": Right.WRITE}
_CONFIGURE = {"qid": Right.CONFIGURE}
_READ_ALL = {"qid": Right.READ, "queues": Right.READ}
_COPY = {"qid": Right.READ, "queues": Right.WRITE}

OPERATIONS: dict[type[Message], Operation] = {
    wire.ListQueues: Operation(messages.list_queues, {}, (Engine.queues,)),
    wire.NewQueue: Operation(messages.new_queue, _CONFIGURE, (Engine.create,)),
    wire.DeleteQueue: Operation(messages.delete_queue, _CONFIGURE, (Engine.remove,)),
    wire.PurgeQueue: Operation(messages.purge_queue, _CONFIGURE, (Queue.purge,)),
    wire.QueueStats: Operation(messages.queue_stats, _READ, (Queue.prepare_stats, Queue.stats)),
    wire.PushMessage: Operation(messages.push_message, _WRITE, (Queue.push,)),
    wire.ReceiveMessage: Operation(messages.receive_message, _READ_ALL, (Engine.receive,)),
    wire.DeleteMessage: Operation(messages.delete_message, _READ, (Queue.delete,)),
    wire.ReleaseMessage: Operation(messages.release_message, _READ, (Queue.release,)),
    wire.ExtendMessage: Operation(messages.extend_message, _READ, (Queue.extend,)),
    wire.Subscribe: Operation(subscribing.subscribe, _READ_ALL, (Engine.receive,)),
    wire.Unsubscribe: Operation(subscribing.unsubscribe),
    wire.CopyMessage: Operation(messages.copy_message, _COPY, (Engine.copy,)),
    wire.ClaimMessages: Operation(claiming.claim_messages, _READ, (Claims.claim,)),
    wire.GetClaim: Operation(claiming.get_claim, _READ, (Claims.part,)),
    wire.AckClaim: Operation(claiming.ack_claim, _READ, (Claims.acknowledge,)),
    wire.ReleaseClaim: Operation(claiming.release_claim, _READ, (Claims.release,)),
    wire.ListClaims: Operation(claiming.list_claims, _READ, (Claims.all,)),
    wire.StageMessages: Operation(claiming.stage_messages, _WRITE, (Batches.stage,)),
    wire.PublishStaged: Operation(claiming.publish_staged, _WRITE, (Batches.publish,)),
    wire.ListMessages: Operation(messages.list_messages, _READ, (Queue.list_mids,)),
    wire.GetMessage: Operation(messages.get_message, _READ, (Queue.get, Queue.read)),
    wire.Ping: Operation(messages.ping),
}

HANDLERS: dict[type[Message], Handler] = {message: each.handler for message, each in OPERATIONS.items()}
"""The handler of each operation, from the table: looked up once for each request."""
