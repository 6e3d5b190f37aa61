"""Implements the operations on the connection itself: authenticate, ping, subscribe and unsubscribe."""

import qs_schemas as wire
from qs_schemas import Message
from qs_schemas.wire import SERVER
from qs_serving.access.caller import NotAllowedError
from qs_storage.engine import UnsupportedError

from ..broker.jobs import Pause
from ..broker.subscriber import Subscription
from .service import Answer, BadRequestError, NoSuchSubscriptionError, Service, microseconds, qid_of

_PREFETCH = 100
"""The most unacknowledged messages of a subscription, unless it asks for another number."""
_MOST = 1000
"""The most subscriptions of a connection, including ended ones that still hold messages."""


def ping(service: Service, request: wire.Ping) -> Message:
    return wire.Ping(SERVER)


def authenticate(service: Service, request: wire.Authenticate) -> Message | Answer:
    if service.caller is None:
        raise UnsupportedError("this server has no access file, and everybody may do everything: give it --access FILE")
    try:
        return wire.Authenticate(principal=service.caller.authenticate(request.token or ""))
    except NotAllowedError as error:
        return _refuse_slowly(error)
    finally:
        service.end_forbidden_subscriptions()  # the client may have another principal now, or none


def _refuse_slowly(error: NotAllowedError) -> Answer:
    """Refuses a token after a delay, so that one connection cannot try many tokens. No other client waits meanwhile."""
    yield Pause(wait=error.delay)
    raise error


def subscribe(service: Service, request: wire.Subscribe) -> Message:
    if request.where is not None or request.match is not None:  # a client that asked a server must not get everything
        raise UnsupportedError(
            "conditions ('where') and patterns ('match') are for a bus: connect to queue-bus.py, on port 9878"
        )
    qids = _queues_of(service, request)  # may raise, so before the connection becomes a subscriber
    service.subscriber = service.subscriber or service.become_subscriber()
    prefetch, visibility = request.prefetch or _PREFETCH, microseconds(request.visibility)
    known = service.subscriber.subscriptions  # also those that have ended and still hold messages
    open_one = known.get(request.req)
    if open_one is None and len(known) >= _MOST:
        raise BadRequestError(
            f"this connection has {_MOST} subscriptions, and no more are taken: subscribe to several queues at once "
            "with 'queues', or on another connection"
        )
    if open_one is None:
        subscription = Subscription(service.subscriber, request.req, qids, prefetch, visibility)
        service.subscriptions.open(subscription)
    elif open_one.closed or open_one.qids != qids:
        raise BadRequestError(f"there is a subscription of req {request.req!r} already; give this one another req")
    else:
        open_one.prefetch, open_one.visibility = prefetch, visibility
        service.subscriptions.feed(open_one)
    return wire.Subscribe(request.qid, request.queues)


def _queues_of(service: Service, request: wire.Subscribe) -> set[str]:
    """Returns the queues to subscribe to. Raises NoSuchQueueError, BadRequestError or UnsupportedError."""
    if request.qid is not None and request.queues:
        raise BadRequestError("subscribe takes either 'qid' or 'queues', and this one has both")
    if request.ack is not None or request.name is not None:
        # A client of the bus at the wrong port must not take messages from others.
        raise UnsupportedError(
            "'ack' and 'name' belong on the bus: this is the queue server, where every message is to be acknowledged"
        )
    if request.visibility == 0:
        raise BadRequestError("a subscription with 'visibility' 0 would be sent the same message again and again")
    qids = set(request.queues) or {qid_of(request)}
    known = service.queues()
    for qid in sorted(qids):
        if qid not in known:
            service.storage.queue(qid)  # raises, unless another process has just made it
    return qids


def unsubscribe(service: Service, request: wire.Unsubscribe) -> Message:
    known = service.subscriber.subscriptions if service.subscriber else {}
    subscription = known.get(request.subscription)
    if subscription is None or subscription.closed:
        raise NoSuchSubscriptionError(f"there is no subscription of req {request.subscription!r} on this connection")
    service.subscriptions.close(subscription)
    return wire.Unsubscribe(request.subscription)
