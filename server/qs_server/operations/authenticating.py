"""The operation that authenticates a client."""

import qs_schemas as wire
from qs_schemas import Message
from qs_serving.access.caller import NotAllowedError
from qs_storage.engine import UnsupportedError

from ..broker.jobs import Pause
from .service import Answer, Service


def authenticate(service: Service, request: wire.Authenticate) -> Message | Answer:
    if service.caller is None:
        raise UnsupportedError("this server has no access file, and everybody may do everything: give it --access FILE")
    try:
        return wire.Authenticate(principal=service.caller.authenticate(request.token or ""))
    except NotAllowedError as error:
        return _refuse_slowly(error)
    finally:
        service.end_forbidden_subscriptions()


def _refuse_slowly(error: NotAllowedError) -> Answer:
    """Refuses after a while, so that one connection cannot try many tokens. Nobody else waits."""
    yield Pause(wait=error.delay)
    raise error
