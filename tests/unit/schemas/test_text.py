"""Payloads of a list, which are written and read many at a time: as each would be by itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qs_schemas import CLIENT_LIMITS, Limits, parse, serialize
from qs_schemas.messages import Delivery, Draft, GetClaim, Message, PushMessage
from qs_schemas.plain import PlainReader
from qs_schemas.templates import write
from qs_schemas.text import escape_payload, escape_payloads, map_payloads

PIECES = (
    b"", b"a", b"<", b">", b"&", b"&lt;", b"&lt", b"&amp;lt;", b";", b"]]", b"]]>", b"\n", b"\r", b"\r\n", b"\t",
    b"\0", b"\1", b"\x7f", "\N{EURO SIGN}".encode(), "\uffff".encode(), b"\xff", b"\xed\xa0\x80", b'"', b"'", b"&#10;",
    b"x" * 1000,
)  # fmt: skip
PAYLOADS = st.lists(st.sampled_from(PIECES), max_size=3).map(b"".join)
LISTS = st.lists(PAYLOADS, max_size=5) | st.lists(PAYLOADS, min_size=60, max_size=140)


@given(LISTS)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_escape_payloads_writes_each_as_alone(payloads: list[bytes]) -> None:
    """A payload is written the same whatever stands beside it in the list."""
    assert escape_payloads(payloads) == [escape_payload(payload) for payload in payloads]


@given(LISTS)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_escape_payloads_can_be_read_back(payloads: list[bytes]) -> None:
    """Both ways to write a list give the same bytes, and both ways to read it the same payloads."""
    limits = Limits(list_length=1000, elements=10_000)
    messages: tuple[Message, ...] = (
        GetClaim("q", messages=[Delivery(1, payload, None, 2, 3) for payload in payloads], type="response"),
        PushMessage("q", messages=[Draft(payload, number % 2 or None) for number, payload in enumerate(payloads)]),
        PushMessage("q", messages=[Draft(payload) for payload in payloads]),
    )
    for message in messages:
        if not payloads and isinstance(message, PushMessage):
            continue
        document = serialize(message)
        assert write(message) == document
        assert parse(document.rstrip(), limits) == message
        found = PlainReader(limits).read(document)
        assert found is None or found[0] == message


def test_escape_payloads_of_lists_are_plain() -> None:
    """The reader of plain documents does not leave lists of what has to be escaped to the parser."""
    payloads = [b"<a>\n&amp; & ]] ></a>", b"x" * 400_000, b"\0\xff", b""] * 40
    message = GetClaim("q", messages=[Delivery(1, payload, None, 2, 3) for payload in payloads], type="response")
    found = PlainReader(CLIENT_LIMITS).read(serialize(message))
    assert found is not None
    assert found[0] == message


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128, 200])
def test_map_payloads_splits_into_portions(count: int) -> None:
    """Every payload once and in order, however many there are; one that has the byte between them is by itself."""
    payloads = [b"%d" % number for number in range(count)]
    wrapped = [b"<%s>" % payload for payload in payloads]
    assert (
        map_payloads(payloads, lambda joined: b"<" + joined.replace(b"\0", b">\0<") + b">", lambda one: b"-") == wrapped
    )
    assert map_payloads(payloads, lambda joined: None, lambda one: one * 2) == [payload * 2 for payload in payloads]
    assert map_payloads(payloads, lambda joined: joined, lambda one: b"-") == payloads
    if count:
        odd = [*payloads[:-1], b"\0"]
        assert map_payloads(odd, lambda joined: joined, lambda one: b"-")[-1] == b"-"
