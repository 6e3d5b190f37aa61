"""The requests of one connection without a connection: made of messages, and answered with messages."""

from collections import deque
from collections.abc import Iterable

from qs_schemas import CLIENT_LIMITS, Fault, Message, Peer
from qs_schemas.parsing import parse
from qs_server.operations.service import Service
from qs_server.session.requests import RequestBatch


def batch_of(events: Iterable[Message | Fault], service: Service, outbox: int = 1 << 20) -> RequestBatch:
    """Returns a batch that has taken these requests and faults."""
    batch = RequestBatch(service, Peer(serving=True), outbox)
    batch.begin(deque(events))
    return batch


def answers_of(batch: RequestBatch) -> list[Message]:
    """Returns the answers that have not been taken, as a client reads them."""
    return [parse(document, CLIENT_LIMITS) for document in batch.answers]
