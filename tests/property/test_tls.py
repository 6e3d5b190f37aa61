"""A TLS channel gives only plaintext that was sent, or raises the one error, whatever bytes come."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.servers.tls import authority, channels, serving_context

from qs_schemas.tls import TlsChannel, TlsError

_CLIENTS, _SERVERS = authority().trusting(), serving_context()
changes = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 255)), min_size=1, max_size=5)
"""Where bytes of a flight are changed, and how."""
versions = st.sampled_from(["TLSv1_2", "TLSv1_3"])


def changed(data: bytes, where: list[tuple[int, int]]) -> bytes:
    copy = bytearray(data)
    for at, mask in where:
        copy[at % len(copy)] ^= mask
    return bytes(copy)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.booleans(), st.sampled_from([b"", b"\x16\x03\x01\x00", b"\x15\x03\x03\x00\x02"]))
def test_any_bytes(data: bytes, server_side: bool, begin: bytes) -> None:
    """A handshake with any bytes raises no other error than TlsError, on either side."""
    channel = TlsChannel(_SERVERS, server_side=True) if server_side else TlsChannel(_CLIENTS, host="localhost")
    with contextlib.suppress(TlsError):
        assert channel.receive(begin + data) == b""
        assert not channel.established


@settings(max_examples=examples(200), deadline=None)
@given(changes, changes)
def test_changed_handshakes(hello: list[tuple[int, int]], answer: list[tuple[int, int]]) -> None:
    """A handshake that was changed on its way raises no other error than TlsError, on either side."""
    client, server = TlsChannel(_CLIENTS, host="localhost"), TlsChannel(_SERVERS, server_side=True)
    first = client.take()
    with contextlib.suppress(TlsError):
        server.receive(changed(first, hello))
        client.receive(server.take())
        server.receive(client.take())
    client, server = TlsChannel(_CLIENTS, host="localhost"), TlsChannel(_SERVERS, server_side=True)
    server.receive(client.take())
    with contextlib.suppress(TlsError):
        client.receive(changed(server.take(), answer))
        server.receive(client.take())


@settings(max_examples=examples(200), deadline=None)
@given(versions, st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=5), changes)
def test_changed_records(version: str, parts: list[bytes], where: list[tuple[int, int]]) -> None:
    """A stream with changed records is received up to the change, and no further."""
    client, server = channels(version)
    sent = b""
    for part in parts:
        client.send(part)
        sent += part
    with contextlib.suppress(TlsError):
        got = server.receive(changed(client.take(), where))
        assert sent.startswith(got)


@settings(max_examples=examples(100), deadline=None)
@given(versions, st.lists(st.binary(min_size=1, max_size=40_000), max_size=4), st.data())
def test_any_pieces(version: str, parts: list[bytes], data: st.DataObject) -> None:
    """Ciphertext in any pieces gives the same plaintext."""
    client, server = channels(version)
    for part in parts:
        client.send(part)
    client.close()
    left = client.take()
    got = b""
    while left:
        size = data.draw(st.integers(1, len(left)))
        got += server.receive(left[:size])
        left = left[size:]
    assert got == b"".join(parts)
    assert server.ended
