"""Every client against everything that can go wrong with a connection: each raises what the table says, and goes on."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.every_client import BOUND, CLIENTS, SCENARIOS, TIMEOUT, Scenario, healthy, kinds
from support.clients.scripted_server import GIVE_UP, scripted
from support.servers.tls import authority, serving_context

from qs_client import ProtocolMismatch, TooLarge, WrongProgram


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port of loopback where nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.what.replace(" ", "-"))
def test_what_is_raised(name: str, scenario: Scenario, tls: bool, nobody: int) -> None:
    """Each client raises the exception of the table, and its next call works; the same over TLS."""
    options: dict[str, Any] = {"max_document": BOUND} | ({"reconnect": False} if "Bus" in name else {})
    context = serving_context() if tls else None
    if tls:
        options["tls"] = authority().cert
    if scenario.script is None:
        assert kinds(CLIENTS[name]((TIMEOUT,), port=nobody, **options)) == [scenario.raises]
    elif scenario.raises is None:
        with scripted(scenario.script, context=context) as server:
            assert kinds(CLIENTS[name]((TIMEOUT,), port=server.port, **options)) == ["x"]
    else:
        with scripted(scenario.script, healthy, context=context) as server:
            assert kinds(CLIENTS[name]((TIMEOUT, GIVE_UP), port=server.port, **options)) == [scenario.raises, "x"]


@pytest.mark.parametrize("name", [name for name in CLIENTS if "Bus" in name])
@pytest.mark.parametrize(
    "scenario",
    [each for each in SCENARIOS if each.script is not None and each.raises is not None],
    ids=lambda scenario: scenario.what.replace(" ", "-"),
)
def test_a_bus_client_goes_on_by_itself(name: str, scenario: Scenario) -> None:
    """With reconnect, a bus client comes back after everything that another attempt may cure, and raises the rest."""
    assert scenario.script is not None
    expected = scenario.raises if scenario.raises in (ProtocolMismatch, WrongProgram, TooLarge) else "x"
    with scripted(scenario.script, healthy) as server:
        options = {"max_document": BOUND, "on_trouble": lambda text: None}
        assert kinds(CLIENTS[name]((TIMEOUT,), port=server.port, **options)) == [expected]
