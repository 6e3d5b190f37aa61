"""Every client over TLS: whose certificates it believes, which one it shows, and what it says when TLS cannot begin."""

import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support.clients.every_client import CLIENTS, healthy
from support.clients.scripted_server import GIVE_UP, Conversation, scripted
from support.servers.tls import LOCAL, authority, serving_context

from qs_client import NoAnswer, ProtocolMismatch, ServerUnavailable


def ours() -> ssl.SSLContext:
    """The context of a client that trusts the tests' CA, and shows no certificate."""
    return authority().trusting()


def only_1_2(context: ssl.SSLContext) -> ssl.SSLContext:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def older(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    return context


@dataclass(frozen=True)
class Trouble:
    """A handshake that fails. serving, trusting: make the contexts of the two sides; says: a part of the error's
    text."""

    serving: Callable[[], ssl.SSLContext]
    trusting: Callable[[], object]
    says: tuple[str, ...]


_OTHER = "another CA"
TROUBLE = {
    "wrong CA": Trouble(serving_context, lambda: authority(_OTHER).cert, ("local issuer certificate", "--ca")),
    "system's CAs": Trouble(serving_context, lambda: True, ("local issuer certificate", "--ca")),
    "wrong name": Trouble(
        lambda: serving_context(authority().sign("DNS:example.org")), ours, ("not valid for '127.0.0.1'", "by a name")
    ),
    "expired": Trouble(lambda: serving_context(authority().sign(*LOCAL, days=-1)), ours, ("expired", "renew")),
    "no client certificate": Trouble(
        lambda: serving_context(None, authority()), ours, ("asks for a client certificate", "--cert")
    ),
    "no client certificate, TLS 1.2": Trouble(
        lambda: serving_context(None, authority()), lambda: only_1_2(ours()), ("client certificate", "--cert")
    ),
    "a client certificate of another CA": Trouble(
        lambda: serving_context(None, authority()),
        lambda: authority().trusting(authority(_OTHER).sign("DNS:me")),
        ("does not know the authority", "--cert"),
    ),
    "an expired client certificate": Trouble(
        lambda: serving_context(None, authority()),
        lambda: authority().trusting(authority().sign("DNS:me", days=-1)),
        ("this side's certificate has expired", "--cert"),
    ),
    "older TLS": Trouble(lambda: older(serving_context()), lambda: authority().cert, ("1.2 and 1.3",)),
}


@pytest.mark.filterwarnings("ignore:.*TLSv1.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("trouble", TROUBLE.values(), ids=TROUBLE)
def test_tls_cannot_begin(name: str, trouble: Trouble) -> None:
    """A certificate that is not right, on either side, is ServerUnavailable, and the text says what to do."""
    options: dict[str, Any] = {"reconnect": False} if "Bus" in name else {}
    with scripted(healthy, context=trouble.serving()) as server:
        (raised,) = CLIENTS[name]((GIVE_UP,), port=server.port, tls=trouble.trusting(), **options)
        assert type(raised) is ServerUnavailable
        for each in (*trouble.says, f"127.0.0.1:{server.port}"):
            assert each in str(raised)


@pytest.mark.parametrize("name", [name for name in CLIENTS if "Bus" in name])
def test_a_bus_client_waits_for_a_better_certificate(name: str) -> None:
    """A bus client that reconnects says once why TLS cannot begin, and goes on when it can; it does not wait for a bus
    that speaks no TLS."""
    told: list[str] = []

    def renew(text: str) -> None:
        told.append(text)
        server.speak_tls(serving_context())

    with scripted(healthy, context=serving_context(authority().sign(*LOCAL, days=-1))) as server:
        assert CLIENTS[name]((GIVE_UP,), port=server.port, tls=authority().cert, on_trouble=renew) == ["x"]
    assert "expired" in told[0]
    assert "is there again" in told[-1]
    with scripted(_no_tls) as server:
        (raised,) = CLIENTS[name]((GIVE_UP,), port=server.port, tls=authority().cert)
        assert type(raised) is ProtocolMismatch


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_certificates_of_both_sides(name: str, version: str) -> None:
    """A client shows its certificate to a server that asks for one, and reads the answer, in both versions of TLS."""
    context = authority().trusting(authority().sign("DNS:me"))
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with scripted(healthy, context=serving_context(None, authority())) as server:
        assert CLIENTS[name]((GIVE_UP,), host="localhost", port=server.port, tls=context) == ["x"]


@pytest.mark.parametrize("name", CLIENTS)
def test_an_address_with_a_scheme(name: str) -> None:
    """`qss://HOST:PORT` is TLS to that host and port, qs://HOST:PORT is without."""
    with scripted(healthy, context=serving_context()) as server:
        address = f"qss://localhost:{server.port}"
        assert CLIENTS[name]((GIVE_UP,), host=address, tls=authority().cert) == ["x"]
    with scripted(healthy) as server:
        assert CLIENTS[name]((GIVE_UP,), host=f"qs://localhost:{server.port}") == ["x"]


def _no_tls(conversation: Conversation) -> None:
    with contextlib.suppress(OSError):
        conversation.write(b'<qs xmlns="http://purl.oclc.org/DEFUZE/qs" type="error">')
        conversation.wait_for_close()


def _dropping(conversation: Conversation) -> None:
    conversation.sock.recv(1)


def _deaf(conversation: Conversation) -> None:
    conversation.wait_for_close()


def _alerting(conversation: Conversation) -> None:
    conversation.sock.recv(65536)
    conversation.write(b"\x15\x03\x03\x00\x02\x02\x46")  # fatal: the version of the protocol


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    ("script", "timeout", "kind", "says"),
    [
        (_no_tls, GIVE_UP, ProtocolMismatch, ("does not speak TLS", "qs://")),
        (_dropping, GIVE_UP, ServerUnavailable, ("TLS",)),
        (_deaf, 0.5, NoAnswer, ("TLS",)),
    ],
)
def test_a_server_without_tls(
    name: str, script: Callable[[Conversation], None], timeout: float, kind: type[Exception], says: tuple[str, ...]
) -> None:
    """A client with TLS says of a server without that it may be the TLS, within the timeout."""
    options: dict[str, Any] = {"reconnect": False} if "Bus" in name else {}
    with scripted(script) as server:
        (raised,) = CLIENTS[name]((timeout,), port=server.port, tls=authority().cert, **options)
        assert type(raised) is kind
        for each in says:
            assert each in str(raised)


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize(
    ("script", "kind"), [(_alerting, ProtocolMismatch), (_dropping, ServerUnavailable)], ids=["alert", "close"]
)
def test_a_client_without_tls(name: str, script: Callable[[Conversation], None], kind: type[Exception]) -> None:
    """A client without TLS says of a server with TLS what to do, whether the server sends an alert or only closes."""
    options: dict[str, Any] = {"reconnect": False} if "Bus" in name else {}
    with scripted(script) as server:
        (raised,) = CLIENTS[name]((GIVE_UP,), port=server.port, **options)
        assert isinstance(raised, kind)
        assert "qss://" in str(raised)
        assert "tls=True" in str(raised)
