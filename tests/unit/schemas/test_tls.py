"""A TLS channel: two of them, wired to each other in memory."""

import random
import ssl
import subprocess
import sys

import pytest
from support.servers.tls import authority, serving_context

from qs_schemas.tls import TlsChannel, TlsError


def wire(one: TlsChannel, other: TlsChannel) -> tuple[bytes, bytes]:
    """Passes ciphertext on until there is none. Returns the plaintext that each has received."""
    got = [b"", b""]
    moved = True
    while moved:
        moved = False
        for number, (sender, taker) in enumerate([(other, one), (one, other)]):
            if data := sender.take():
                moved = True
                got[number] += taker.receive(data)
    return got[0], got[1]


def pair(client: ssl.SSLContext | None = None, server: ssl.SSLContext | None = None) -> tuple[TlsChannel, TlsChannel]:
    """A client and a server that have not begun."""
    return (
        TlsChannel(client or authority().trusting(), host="localhost"),
        TlsChannel(server or serving_context(), server_side=True),
    )


@pytest.fixture(params=["TLSv1_2", "TLSv1_3"])
def session(request: pytest.FixtureRequest) -> tuple[TlsChannel, TlsChannel]:
    """A client and a server after their handshake."""
    context = authority().trusting()
    context.maximum_version = ssl.TLSVersion[request.param]
    client, server = pair(context)
    assert wire(client, server) == (b"", b"")
    assert client.established
    assert server.established
    return client, server


Session = tuple[TlsChannel, TlsChannel]


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 300_000])
def test_channel_carries_bytes_both_ways(session: Session, size: int) -> None:
    """Each side receives what the other sends, whatever its size."""
    for sender, taker in (session, session[::-1]):
        data = random.Random(size).randbytes(size)
        sender.send(memoryview(data))
        assert taker.receive(sender.take()) == data
        assert sender.take() == b""
        assert not taker.ended


def test_receive_of_any_pieces(session: Session) -> None:
    """Ciphertext may come in pieces of any size, and no plaintext waits for more of it than its record."""
    client, server = session
    parts = [b"x" * size for size in (1, 5, 100, 20_000)]
    for part in parts:
        client.send(part)
    data = client.take()
    source = random.Random(1)
    got = b""
    while data:
        size = source.choice([1, 2, 6, 30, 17_000])
        got += server.receive(data[:size])
        data = data[size:]
    assert got == b"".join(parts)


def test_send_makes_one_record_at_once(session: Session) -> None:
    """Bytes that are given to `send` at once are one record."""
    session[0].send(b"x" * 16_384)
    data = session[0].take()
    assert int.from_bytes(data[3:5], "big") == len(data) - 5


def test_send_before_the_handshake() -> None:
    """Bytes sent before the handshake follow it, in order."""
    client, server = pair()
    client.send(b"one ")
    client.send(b"two")
    server.send(b"answer")
    assert wire(client, server) == (b"answer", b"one two")


def test_close_ends_the_other_side(session: Session) -> None:
    """A side that has ended still receives; the end comes after what was sent before it."""
    client, server = session
    client.send(b"last")
    client.close()
    client.close()
    assert server.receive(client.take()) == b"last"
    assert server.ended
    server.send(b"answer")
    assert client.receive(server.take()) == b"answer"
    assert not client.ended
    server.close()
    assert client.receive(server.take()) == b""
    assert client.ended
    with pytest.raises(TlsError, match="shutdown"):
        client.send(b"more")


def test_receive_after_close(session: Session) -> None:
    """Bytes that come together with the end are received, also by a side that has ended before."""
    client, server = session
    client.close()
    assert server.receive(client.take()) == b""
    assert server.ended
    server.send(b"last ")
    server.send(b"answer")
    server.close()
    assert client.receive(server.take()) == b"last answer"
    assert client.ended


def test_close_while_more_arrives(session: Session) -> None:
    """Bytes that arrive after `close` do no harm, readable or not."""
    client, server = session
    client.send(b"on its way")
    data = client.take()
    server.close()
    assert server.receive(data[:9]) == b""
    server.receive(data[9:])
    assert client.receive(server.take()) == b""
    assert client.ended


def test_receive_of_a_cut_off_stream(session: Session) -> None:
    """The end of the ciphertext is the end, also without a word."""
    client, server = session
    client.send(b"begun")
    assert server.receive(client.take()[:-1]) == b""
    assert server.receive(b"") == b""
    assert server.ended


def test_receive_of_a_cut_off_handshake() -> None:
    """An end during the handshake is an error."""
    client, server = pair()
    server.receive(client.take()[:100])
    with pytest.raises(TlsError, match="closed the connection during"):
        server.receive(b"")


def test_receive_refuses_changed_bytes(session: Session) -> None:
    """A changed record is an error, and the other side gets an alert."""
    client, server = session
    client.send(b"x" * 100)
    data = bytearray(client.take())
    data[50] ^= 1
    with pytest.raises(TlsError, match="bad record mac"):
        server.receive(data)
    with pytest.raises(TlsError):
        client.receive(server.take())


@pytest.mark.parametrize("size", [16_384 + 2049, 65_535])
def test_receive_refuses_a_record_that_is_too_long(session: Session, size: int) -> None:
    """A record beyond TLS's bound is refused before it is complete."""
    with pytest.raises(TlsError, match="length"):
        session[1].receive(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(5))


@pytest.mark.parametrize("data", [b"<qs/>", b"GET / HTTP/1.1\r\n\r\n", b"\x80\x2e\x01\x00\x02", b"\0"])
@pytest.mark.parametrize("side", [0, 1])
def test_receive_refuses_what_is_no_tls(data: bytes, side: int) -> None:
    """A peer that speaks something else gets no answer."""
    channel = pair()[side]
    channel.take()
    with pytest.raises(TlsError, match="does not speak TLS"):
        channel.receive(data)
    assert channel.take() == b""


def test_receive_refuses_certificates() -> None:
    """The error says what is wrong with the certificate."""
    other = authority("another CA")
    for certificate, text in (
        (authority().sign("DNS:localhost", days=-1), "certificate has expired"),
        (authority().sign("DNS:example.org"), "Hostname mismatch.*'localhost'"),
        (authority().sign("DNS:localhost", use="clientAuth"), "purpose"),
        (other.sign("DNS:localhost"), "unable to get local issuer certificate"),
    ):
        with pytest.raises(TlsError, match=f"the other side's certificate is not accepted: .*{text}") as caught:
            wire(*pair(server=serving_context(certificate)))
        assert "\n" not in str(caught.value)


def test_receive_requires_client_certificates() -> None:
    """A server that asks for client certificates refuses clients without one, and those of another CA."""
    clients = authority("a CA of clients")
    context = serving_context(clients_of=clients)
    client, server = pair(authority().trusting(clients.sign("DNS:a.example")), context)
    wire(client, server)
    assert server.peer_names() == ("a.example",)
    with pytest.raises(TlsError, match="the client has sent no certificate"):
        wire(*pair(server=context))
    with pytest.raises(TlsError, match="self-signed certificate in certificate chain"):
        wire(*pair(authority().trusting(authority().sign("DNS:b.example")), context))


def test_take_has_an_alert_for_the_client() -> None:
    """After a refusal the client's next read says what the server wants."""
    context = serving_context(clients_of=authority())
    client, server = pair(server=context)
    with pytest.raises(TlsError):
        wire(client, server)
    with pytest.raises(TlsError, match="asks for a client certificate"):
        client.receive(server.take())


@pytest.mark.parametrize(
    ("names", "common", "found"),
    [
        (("DNS:a", "email:b@c", "URI:urn:d", "IP:127.0.0.1"), "e", ("a", "b@c", "urn:d")),
        (("IP:127.0.0.1",), "e", ("e",)),
        ((), "e", ("e",)),
        ((), "", ()),
    ],
)
def test_peer_names_of_a_certificate(names: tuple[str, ...], common: str, found: tuple[str, ...]) -> None:
    """The common name counts only where there are no other names."""
    context = authority().trusting(authority().sign(*names, common=common))
    client, server = pair(context, serving_context(clients_of=authority()))
    wire(client, server)
    assert server.peer_names() == found


def test_peer_names_without_a_certificate() -> None:
    """A client without a certificate has no names."""
    client, server = pair()
    wire(client, server)
    assert server.peer_names() == ()


def test_channel_refuses_old_versions() -> None:
    """Sides without a version in common say so."""
    old, new = authority().trusting(), serving_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    new.minimum_version = ssl.TLSVersion.TLSv1_3
    client, server = pair(old, new)
    with pytest.raises(TlsError, match=r"no version of TLS that is allowed here: 1\.2"):
        wire(client, server)
    with pytest.raises(TlsError, match="no version of TLS"):
        client.receive(server.take())


@pytest.mark.parametrize("host", ["", ".example", "a" * 64 + ".example"])
def test_channel_refuses_wrong_host_names(host: str) -> None:
    """A name that no host can have is refused as such."""
    with pytest.raises(TlsError, match="neither a host name nor an address"):
        TlsChannel(authority().trusting(), host=host)


def test_package_does_not_import_tls() -> None:
    """Importing the contract does not import ssl."""
    code = "import sys, qs_schemas; sys.exit('ssl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
