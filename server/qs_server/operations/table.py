"""Holds the table of operations: for each, the handler, the rights it needs, and the methods of the storage it uses.

docs/operations-reference.md shows the same table. An operation that is not in the table is answered with 501.
"""

from collections.abc import Callable
from typing import NamedTuple

import qs_schemas as wire
from qs_schemas import Message
from qs_serving.access.caller import MONITOR, Rights
from qs_serving.access.principal import Right
from qs_storage.engine import Batches, Claims, Engine, Queue, Redrive

from . import claiming, connecting, messages, queues
from .service import Handler


class Operation(NamedTuple):
    """Describes one operation. rights: for each field of the request that names queues, the right that a client needs
    to these queues; EVERYBODY or ANY_PRINCIPAL for an operation that needs no right; uses: the methods of the storage
    that the handler uses, for the page."""

    handler: Handler
    rights: Rights | None
    uses: tuple[Callable[..., object], ...] = ()


EVERYBODY = None
"""Allowed even to clients that may do nothing else."""
ANY_PRINCIPAL: Rights = {}
"""Allowed to every principal, and to clients that have not authenticated if the access file has a section for them."""
_READ = {"qid": Right.READ}
_STATS = {"qid": Right.STATS}
_WRITE = {"qid": Right.WRITE}
_CONFIGURE = {"qid": Right.CONFIGURE}
# Dead letters, moves and copies write into other queues, so a client needs the right to push there.
_SET = {"qid": Right.CONFIGURE, "dead_letter": Right.WRITE}
_REDRIVE = {"qid": Right.CONFIGURE, "queues": Right.WRITE}
_READ_ALL = {"qid": Right.READ, "queues": Right.READ}
_COPY = {"qid": Right.READ, "queues": Right.WRITE}

OPERATIONS: dict[type[Message], Operation] = {
    wire.ListQueues: Operation(queues.list_queues, ANY_PRINCIPAL, (Engine.queues,)),
    wire.NewQueue: Operation(queues.new_queue, _SET, (Engine.create,)),
    wire.SetQueue: Operation(queues.set_queue, _SET, (Engine.configure,)),
    wire.GetQueue: Operation(queues.get_queue, _CONFIGURE),
    wire.DeleteQueue: Operation(queues.delete_queue, _CONFIGURE, (Engine.remove,)),
    wire.PurgeQueue: Operation(queues.purge_queue, _CONFIGURE, (Queue.purge,)),
    wire.PauseQueue: Operation(queues.pause_queue, _CONFIGURE, (Engine.configure,)),
    wire.ResumeQueue: Operation(queues.resume_queue, _CONFIGURE, (Engine.configure,)),
    wire.RedriveMessages: Operation(queues.redrive_messages, _REDRIVE, (Redrive.letters, Redrive.move)),
    wire.QueueStats: Operation(queues.queue_stats, _STATS, (Queue.prepare_stats, Queue.stats)),
    wire.ServerStats: Operation(queues.server_stats, MONITOR),
    wire.PushMessage: Operation(messages.push_message, _WRITE, (Queue.push,)),
    wire.ReceiveMessage: Operation(messages.receive_message, _READ_ALL, (Engine.receive,)),
    wire.DeleteMessage: Operation(messages.delete_message, _READ, (Queue.delete,)),
    wire.ReleaseMessage: Operation(messages.release_message, _READ, (Queue.release,)),
    wire.RejectMessage: Operation(messages.reject_message, _READ, (Queue.reject,)),
    wire.ExtendMessage: Operation(messages.extend_message, _READ, (Queue.extend,)),
    wire.Subscribe: Operation(connecting.subscribe, _READ_ALL, (Engine.receive,)),
    wire.Unsubscribe: Operation(connecting.unsubscribe, ANY_PRINCIPAL),
    wire.CopyMessage: Operation(messages.copy_message, _COPY, (Engine.copy, Queue.get, Queue.read)),
    wire.ClaimMessages: Operation(claiming.claim_messages, _READ, (Claims.claim,)),
    wire.GetClaim: Operation(claiming.get_claim, _READ, (Claims.part,)),
    wire.AckClaim: Operation(claiming.ack_claim, _READ, (Claims.open_before, Claims.acknowledge)),
    wire.ReleaseClaim: Operation(claiming.release_claim, _READ, (Claims.release,)),
    wire.ListClaims: Operation(claiming.list_claims, _READ, (Claims.all,)),
    wire.StageMessages: Operation(claiming.stage_messages, _WRITE, (Batches.stage,)),
    wire.PublishStaged: Operation(claiming.publish_staged, _WRITE, (Batches.publish,)),
    wire.ListMessages: Operation(messages.list_messages, _READ, (Queue.list_mids,)),
    wire.GetMessage: Operation(messages.get_message, _READ, (Queue.get, Queue.read)),
    wire.Authenticate: Operation(connecting.authenticate, EVERYBODY),
    wire.Ping: Operation(connecting.ping, EVERYBODY),
}
