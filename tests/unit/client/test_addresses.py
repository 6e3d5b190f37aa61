"""Where a client connects: the forms of an address are the same for every client, and in the options of Spark."""

from typing import Any

import pytest

from qs_client import AsyncBusClient, AsyncQueueClient, BusClient, QueueClient
from qs_pipeline.errors import BadOptionError
from qs_pipeline.options import Options, parse_options

CLIENTS = {QueueClient: 9876, AsyncQueueClient: 9876, BusClient: 9878, AsyncBusClient: 9878}
FORMS: dict[str, tuple[str, int | None]] = {
    "127.0.0.1:7": ("127.0.0.1", 7), "host:7": ("host", 7), "[::1]:7": ("::1", 7), "qs://host:7": ("host", 7),
    "qss://[::1]:7": ("::1", 7), "host": ("host", None), "::1": ("::1", None), "[::1]": ("::1", None),
    "fe80::1%eth0": ("fe80::1%eth0", None), "qs://host": ("host", None),
}  # fmt: skip
WRONG = [
    "9876",
    "host:",
    "host:x",
    "host:0",
    "host:65536",
    "a:b:c",
    "[::1",
    "[host]:7",
    ":7",
    "user:secret@host",
    "http://h:1",
]


def place(client: Any) -> tuple[str, int]:
    return client.host, client.port


@pytest.mark.parametrize("made", CLIENTS)
@pytest.mark.parametrize("form", FORMS)
def test_address_forms(made: Any, form: str) -> None:
    """A port comes with the host or beside it, or is the usual one; twice the same is not a contradiction."""
    host, port = FORMS[form]
    assert place(made(form)) == (host, port or CLIENTS[made])
    assert place(made(form, port or 8)) == (host, port or 8)
    if port is not None:
        with pytest.raises(ValueError, match=f"names the port {port}, and the port 8 is given too"):
            made(form, 8)


@pytest.mark.parametrize("made", CLIENTS)
@pytest.mark.parametrize("text", WRONG)
def test_address_malformed_is_refused(made: Any, text: str) -> None:
    """A malformed address raises ValueError at once, and the text shows no password."""
    with pytest.raises(ValueError, match=r"HOST:PORT|is not|unknown scheme|no user") as raised:
        made(text)
    assert "secret" not in str(raised.value)


def test_host_set_later_takes_no_port() -> None:
    """A host that is set later may be an IPv6 address. A port or a scheme needs a new client."""
    client = QueueClient("host:7")
    client.host = "::1"
    assert place(client) == ("::1", 7)
    for host in ("host:8", "[::1]:8", "qs://host"):
        with pytest.raises(ValueError, match="only a new client"):
            client.host = host


@pytest.mark.parametrize("form", FORMS)
def test_options_of_spark(form: str) -> None:
    """The option `host` of Spark takes the same forms, with the option `port` or without."""
    host, port = FORMS[form]
    found = parse_options({"queue": "q", "host": form})
    assert (found.host, found.port, found.tls) == (host, port or Options("q").port, form.startswith("qss:"))
    if port is not None:
        assert parse_options({"queue": "q", "host": form, "port": str(port)}).port == port
        with pytest.raises(BadOptionError, match=r"the option host: .* and the port 8 is given too"):
            parse_options({"queue": "q", "host": form, "port": "8"})


def test_wrong_options_of_spark() -> None:
    """Options that are no address, and a scheme that contradicts others, are errors of the option."""
    for given in ({"host": "host:x"}, {"host": "qs://h", "tls": "true"}, {"host": "qs://h", "ca": "ca.pem"}):
        with pytest.raises(BadOptionError, match="the option host: "):
            parse_options({"queue": "q", **given})
