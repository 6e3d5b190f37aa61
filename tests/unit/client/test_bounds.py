"""The bounds of arguments, and the errors beyond them, before anything is sent."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from support.clients.scripted_server import answering, client_of, scripted

from qs_client import (
    AsyncBusClient,
    AsyncQueueClient,
    BusClient,
    Draft,
    PushMessage,
    QueueClient,
    Receipt,
    ReceiveMessage,
)
from qs_client.command import main

LONG = "x" * 300
NAN = float("nan")
CLIENTS = (QueueClient, AsyncQueueClient, BusClient, AsyncBusClient)
NOBODY = QueueClient("host.invalid")


@pytest.mark.parametrize("made", CLIENTS)
@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("timeout", (0, -1, NAN, float("inf"), 1e9, "5", True), (None, 0.1, 999_999_999)),
        ("port", (0, -1, 65536, "9876", 1.5), (1, 65535)),
        ("host", ("", None, b"h"), ("h", "::1")),
        ("max_document", (0, -1, 1.5, "9", None), (1,)),
    ],
)
def test_settings_out_of_bounds(
    made: Callable[..., Any], name: str, wrong: tuple[object, ...], right: tuple[object, ...]
) -> None:
    """Every client checks the arguments with which it is made, and later settings, and names the wrong one."""
    client = made()
    for value in wrong:
        with pytest.raises((ValueError, TypeError), match=f"^{name} is"):
            made(**{name: value})
        with pytest.raises((ValueError, TypeError), match=f"^{name} is"):
            setattr(client, name, value)
    for value in right:
        assert getattr(made(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("wait", lambda value: NOBODY.receive("q", wait=value)),
        ("visibility", lambda value: NOBODY.receive("q", visibility=value)),
        ("delay", lambda value: NOBODY.push("q", "x", delay=value)),
        ("delay", lambda value: NOBODY.push_many("q", [Draft("x", delay=value)])),
        ("expires", lambda value: NOBODY.push("q", "x", expires=value)),
        ("expires", lambda value: NOBODY.push_many("q", [Draft("x", expires=value)])),
        ("delay", lambda value: NOBODY.release("q", 1, delay=value)),
        ("visibility", lambda value: NOBODY.extend("q", 1, visibility=value)),
        ("visibility", lambda value: NOBODY.get("q", 1, visibility=value)),
        ("visibility", lambda value: NOBODY.subscribe("q", visibility=value)),
        ("visibility", lambda value: NOBODY.new_queue("q", visibility=value)),
        ("retention", lambda value: NOBODY.new_queue("q", retention=value)),
    ],
)
def test_seconds_out_of_bounds(name: str, call: Callable[[Any], object]) -> None:
    """A time that is none, or over the protocol's bound, is refused before anything is asked, in words."""
    for value in (NAN, -1, float("inf"), 1e9, "5", b"5", True):
        with pytest.raises((ValueError, TypeError), match=f"^{name} is a number of seconds"):
            call(value)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("max", lambda value: NOBODY.receive("q", value)),
        ("mid", lambda value: NOBODY.peek("q", value)),
        ("mid", lambda value: NOBODY.delete("q", value)),
        ("mid", lambda value: NOBODY.delete_many("q", [1, value])),
        ("mid", lambda value: NOBODY.release("q", Receipt(value, 1))),
        ("after", lambda value: list(NOBODY.list_messages("q", after=value))),
        ("prefetch", lambda value: NOBODY.subscribe("q", prefetch=value)),
        ("prefetch", lambda value: BusClient().subscribe("q", prefetch=value)),
        ("capacity", lambda value: NOBODY.new_queue("q", capacity=value)),
        ("group_in_flight", lambda value: NOBODY.new_queue("q", group_in_flight=value)),
        ("max_in_flight", lambda value: NOBODY.set_queue("q", max_in_flight=value)),
        ("priority", lambda value: NOBODY.push("q", "x", priority=value)),
        ("seq", lambda value: NOBODY.claim_messages("q", "c", value)),
        ("batch", lambda value: NOBODY.stage_messages("q", "p", ["x"], batch=value)),
    ],
)
def test_whole_out_of_bounds(name: str, call: Callable[[Any], object]) -> None:
    """An invalid count or id is refused too."""
    for value in (-1, 10**18, 1.5, "1", True):
        with pytest.raises((ValueError, TypeError), match=f"^{name} is a whole number"):
            call(value)


@pytest.mark.parametrize(
    "call",
    [
        lambda value: BusClient().subscribe("q", where=value),
        lambda value: AsyncBusClient().subscribe("q", where=value),
        lambda value: NOBODY.new_queue("q", where=value),
        lambda value: NOBODY.set_queue("q", where=value),
    ],
)
def test_conditions_out_of_bounds(call: Callable[[Any], object]) -> None:
    """A condition that is empty, longer than 1 KiB, or no text is refused before anything is asked."""
    for value in ("", "x" * 1025):
        with pytest.raises(ValueError, match=r"^where is a condition of 1 to 1024 characters, not of (0|1025)"):
            call(value)
    with pytest.raises(TypeError, match=r"^where is text"):
        call(5)


@pytest.mark.parametrize("client", [BusClient(), AsyncBusClient()])
def test_match_that_there_is_not(client: BusClient | AsyncBusClient) -> None:
    """The only other way to give queues is "pattern"; True, or a pattern itself, is a slip."""
    for value in ("", "orders-*", True, 1):
        with pytest.raises(ValueError, match=r"^match is 'pattern' if the queues are patterns, else None, not"):
            client.subscribe("q", match=value)  # type: ignore[arg-type]
    client.subscribe("q-*", match="pattern", where="x" * 1024)


@pytest.mark.parametrize("call", [NOBODY.new_queue, NOBODY.set_queue])
def test_schemas_out_of_bounds(call: Callable[..., object]) -> None:
    """The name of a schema is no path, and has at most 100 characters."""
    for value in ("", "../order", "/etc/order", ".order", "-order", "order xsd", "order\n", "x" * 101):
        with pytest.raises(ValueError, match=r"^schema names a file of the server's schemas"):
            call("q", schema=value)
    with pytest.raises(TypeError, match=r"^schema is text"):
        call("q", schema=5)


def test_seconds_at_their_bound() -> None:
    """The longest times that may be given are waited for, though the system counts milliseconds in 31 bits."""
    with (
        scripted(answering(ReceiveMessage("q"), ReceiveMessage("q"))) as server,
        client_of(server, timeout=999_999_999) as client,
    ):
        assert client.receive("q", wait=999_999_999) == []
        client.push_many("q", [])
        client.timeout = None
        assert client.receive("q", wait=999_999_999) == []


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("key", lambda client: client.push("q", "x", key=LONG)),
        ("key", lambda client: client.push("q", "x", key="")),
        ("key", lambda client: client.push_many("q", [Draft("x", key=LONG)])),
        ("qid", lambda client: client.push(LONG, "x")),
        ("qid", lambda client: client.push("", "x")),
        ("qid", lambda client: client.push("a\nb", "x")),
        ("qid", lambda client: client.receive("x" * 201)),
        ("queues", lambda client: client.receive(["q", LONG])),
        ("queues", lambda client: client.copy("q", 1, [LONG])),
        ("dead_letter", lambda client: client.new_queue("q", dead_letter=LONG)),
        ("consumer", lambda client: client.claim_messages("q", LONG, 1)),
        ("producer", lambda client: client.stage_messages("q", LONG, ["x"], batch=1, part=1, attempt=1)),
        ("req", lambda client: client.send(ReceiveMessage("q", req="r" * 129))),
    ],
)
def test_names_over_their_length(field: str, call: Callable[[Any], object]) -> None:
    """A name, key or id that the contract does not allow is a ValueError, which names it, before anything is sent. The
    connection goes on."""
    with scripted(answering(ReceiveMessage("q"))) as server, client_of(server) as client:
        with pytest.raises(ValueError, match=rf"^{field}\b.*(characters, and 1 to|control character)"):
            call(client)
        assert client.receive("q") == []


def test_names_over_their_length_without_a_server() -> None:
    """A name that is too long is an error without a server too, and not an outage to be waited for."""
    with pytest.raises(ValueError, match=r"^key\b.* has 300 characters"):
        NOBODY.push("q", "x", key=LONG)

    async def push() -> None:
        await AsyncQueueClient("host.invalid").push("q", "x", key=LONG)

    with pytest.raises(ValueError, match=r"^key\b.* has 300 characters"):
        anyio.run(push)


def test_names_at_their_length() -> None:
    """A name of the greatest length is sent, white space around a name not counted."""
    with scripted(answering(PushMessage("q", mid=1), ReceiveMessage("q"))) as server, client_of(server) as client:
        assert client.push("x" * 200, "x", key="k" * 200) == 1
        assert client.receive(f" {'x' * 200}\n") == []


def test_command_with_values_out_of_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """`qs` reports a value out of bounds in one line, and sends nothing to the server."""
    with scripted(answering()) as server:
        assert main(["-s", f"{server.host}:{server.port}", "push", LONG, "x"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "has 300 characters, and 1 to 200 are allowed" in said
