"""The sources of subscriptions when no other server keeps a queue."""

from qs_server.broker.fetcher import FetchedSource
from qs_server.broker.remotes import Remotes
from qs_storage.engine import Engine


def source(storage: Engine) -> FetchedSource:
    """An engine as subscriptions see it."""
    return FetchedSource(storage, Remotes())
