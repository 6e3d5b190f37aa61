"""Tests what a client of the bus may do, by who it is, for every operation of the bus."""

from types import SimpleNamespace
from typing import Any

import pytest

from qs_bus.operations import EVERYBODY, OPERATIONS, operation_of
from qs_bus.rights import RefusedError, Rights
from qs_schemas import (
    OPERATIONS as ALL_OPERATIONS,
)
from qs_schemas import (
    Authenticate,
    DeleteMessage,
    Error,
    ListQueues,
    Message,
    Ping,
    ReleaseMessage,
    ServerStats,
    Subscribe,
)
from qs_serving.access.caller import Caller, NotAllowedError
from qs_serving.access.principal import Principal, Right

ANONYMOUS = Principal(None, {Right.READ: ["q", "public-*"]})
READER = Principal("reader", {Right.READ: ["q", "q-*", "a[1].\\*"]})
WRITER = Principal("writer", {Right.WRITE: ["*"], Right.CONFIGURE: ["*"]})
MONITOR = Principal("monitor", monitor=True)
ADMIN = Principal("ops", admin=True)


def rights(principal: Principal | None) -> Rights:
    """Returns the rights of a client of this principal. None: the client may only authenticate."""
    access = SimpleNamespace(table=SimpleNamespace(anonymous=principal))
    return Rights(Caller(access, "client:1"))  # type: ignore[arg-type]


def asked(request: Message, client: Rights) -> int:
    """Returns the code with which a request is refused before any work is done, 0 for an allowed one."""
    try:
        operation_of(request, SimpleNamespace(rights=client, server_name="server:1"))  # type: ignore[arg-type]
    except (RefusedError, NotAllowedError) as error:
        return error.error.code
    return 0


def test_every_operation_has_its_rights() -> None:
    """Every operation of the bus has a row in the table of rights."""
    read = {Subscribe: {"qid": Right.READ, "queues": Right.READ}, ListQueues: {"queues": Right.READ}}
    assert {each: operation.rights for each, operation in OPERATIONS.items()} == {
        Authenticate: None,
        Ping: None,
        DeleteMessage: {},
        ReleaseMessage: {},
        ServerStats: {"op": Right.MONITOR},
        **read,
    }
    assert [each for each, operation in OPERATIONS.items() if operation.rights is EVERYBODY] == [Authenticate, Ping]


@pytest.mark.parametrize(
    ("principal", "subscribes", "other", "unknown"),
    [
        (None, 401, 401, 401),
        (ANONYMOUS, 0, 401, 501),
        (READER, 0, 403, 501),
        (WRITER, 403, 403, 501),
        (MONITOR, 403, 403, 501),
        (ADMIN, 0, 0, 501),
    ],
)
def test_every_operation_for_every_kind_of_client(
    principal: Principal | None, subscribes: int, other: int, unknown: int
) -> None:
    """Every client with any `read` may read `q`, only an admin may read `secret`."""
    client = rights(principal)
    handled = 401 if principal is None else 0
    figures = 0 if principal in {MONITOR, ADMIN} else 401 if principal in {None, ANONYMOUS} else 403
    expected: list[tuple[Message, int]] = [
        (Authenticate(token="x"), 0),
        (Ping(), 0),
        (DeleteMessage("secret", 1), handled),
        (ReleaseMessage("secret", 1), handled),
        (Subscribe("q"), subscribes),
        (Subscribe("secret"), other),
        (Subscribe(queues=["q", "secret"]), other),
        (ListQueues(["q"]), subscribes),
        (ListQueues(["q", "secret"]), other),
        (ServerStats(), figures),
        (Error(), 400),
    ]
    for request, code in expected:
        assert asked(request, client) == code, request
    for kind in set(ALL_OPERATIONS.values()) - set(OPERATIONS):
        assert asked(kind(), client) == unknown, kind


def test_everything_is_allowed_without_access_file() -> None:
    """Everybody may do everything, and names belong to nobody."""
    client = Rights(None)
    assert asked(Subscribe("secret"), client) == 0
    assert client.may_read("any")
    assert client.may_use("anybody")
    assert client.owner is None


@pytest.mark.parametrize("qid", ["q-", "q-\N{GRINNING FACE}", "a[1].\\", "a[1].\\x"])
def test_patterns(qid: str) -> None:
    """Only `*` and `?` mean something."""
    assert rights(READER).may_read(qid)
    for other in ("Q", "xq", "a1.\\", "bus:q:reader:n"):
        assert not rights(READER).may_read(other)


@pytest.mark.parametrize(
    ("principal", "usable", "owner"),
    [
        (None, [], None),
        (ANONYMOUS, [None], None),
        (READER, ["reader"], "reader"),
        (ADMIN, [None, "reader", "ops", "other"], "ops"),
    ],
)
def test_names(principal: Principal | None, usable: list[Any], owner: str | None) -> None:
    """A principal may use its own names, a client without one those without an owner, an admin all names."""
    client = rights(principal)
    assert [each for each in (None, "reader", "ops", "other") if client.may_use(each)] == usable
    assert client.owner == owner


def test_what_a_refused_client_reads() -> None:
    """401 says to authenticate, 403 names the principal, its missing right and the queue."""
    for principal, code, parts in (
        (None, 401, ("authenticate",)),
        (ANONYMOUS, 401, ("authenticate", "'secret'")),
        (READER, 403, ("'reader'", "read", "'secret'")),
    ):
        with pytest.raises(NotAllowedError) as raised:
            operation_of(
                Subscribe("secret"),
                SimpleNamespace(rights=rights(principal), server_name="s"),  # type: ignore[arg-type]
            )
        assert raised.value.error.code == code
        assert all(part in str(raised.value) for part in parts), raised.value
