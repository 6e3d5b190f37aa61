"""A server that goes away and comes back, or does not."""

from collections.abc import Callable

import pytest
from support.spark.claims import Ledger, LedgerClient

from qs_client import (
    NotFound,
    NotKnown,
    ProtocolMismatch,
    QueueClient,
    ServerUnavailable,
    ShuttingDown,
    TooMany,
    Unavailable,
)
from qs_pipeline.connection import QueueConnection
from qs_pipeline.errors import NoServerError, NoSuchQueueError
from qs_pipeline.options import Options


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time() -> Time:
    """A time that stands still until somebody sleeps."""
    return Time()


def _server(
    time: Time, trouble: Callable[[str], None], patience: float = 10.0, ledger: Ledger | None = None
) -> QueueConnection:
    client = LedgerClient(ledger or Ledger(), trouble)
    return QueueConnection(Options("orders"), patience, lambda *_, **__: client, time.clock, time.sleep)


def _stats(client: QueueClient) -> object:
    return client.stats("orders")


@pytest.mark.parametrize(
    "error",
    [
        ServerUnavailable("no queue server there"),
        ShuttingDown(503, "shutting-down", "bye"),
        TooMany(429, "too-many", "later"),
        Unavailable(503, "unavailable", "the database is away"),
        NotKnown(503, "not-known", "maybe"),
    ],
)
def test_ask_again_until_server_is_back(time: Time, error: Exception) -> None:
    """While the server restarts, or has no room, it is asked again, with pauses."""

    def trouble(_: str) -> None:
        if time.now < 105:
            raise error

    assert _server(time, trouble).ask(_stats) == []
    assert time.now >= 105


@pytest.mark.parametrize("patience", [0.0, 10.0])
def test_ask_gives_up_after_patience(time: Time, patience: float) -> None:
    """After the time that was given, the error says where, what, and for how long it was tried."""

    def trouble(_: str) -> None:
        raise ServerUnavailable("no queue server at h:1")

    with pytest.raises(NoServerError, match="no queue server at h:1") as raised:
        _server(time, trouble, patience).ask(_stats)
    assert ("tried for 10 s (option retrySeconds)" in str(raised.value)) is (patience > 0)
    assert 100 <= time.now <= 100 + patience


def test_ask_has_patience_for_each_outage(time: Time) -> None:
    """A server that was away and came back may go away again, for as long."""
    away = iter([True] * 3 + [False] + [True] * 3 + [False])

    def trouble(_: str) -> None:
        if next(away):
            time.now += 3
            raise ServerUnavailable("away")

    server = _server(time, trouble)
    assert server.ask(_stats) == server.ask(_stats) == []


def test_ask_of_no_queue_server(time: Time) -> None:
    """Something that speaks another protocol will not learn it by being asked again."""

    def trouble(_: str) -> None:
        raise ProtocolMismatch("h:1 does not speak the protocol")

    with pytest.raises(NoServerError, match="does not speak"):
        _server(time, trouble).ask(_stats)
    assert time.now == 100


def test_ask_raises_errors_of_server(time: Time) -> None:
    """The server's own errors are not retried; a missing queue is named."""

    def trouble(_: str) -> None:
        raise NotFound(404, "not-found", "there is no queue 'orders'")

    server = _server(time, trouble)
    with pytest.raises(NotFound):
        server.ask(_stats)
    with pytest.raises(NoSuchQueueError, match=r"there is no queue 'orders' on 127.0.0.1:9876: .*qs new"):
        server.must_have_queue()
    assert time.now == 100
