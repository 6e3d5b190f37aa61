"""Headers as bytes, and what of another program's can be headers."""

import json

import pytest

from qs_storage.engine import Headers
from qs_storage.headers import MOST, MOST_BYTES, headers_among, pack_headers, unpack_headers


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("a", ""),),
        (("Z", '\n\t\r\\" ]['), ("a", "\u20ac\U0001f41f"), ("b", "2")),
        tuple((f"n{number}", "x" * (MOST_BYTES // MOST - 3)) for number in range(MOST)),
    ],
    ids=["none", "empty", "odd", "most"],
)
def test_headers_are_read_as_packed(headers: Headers) -> None:
    """Headers come back in their order, and their bytes have no line feed."""
    packed = pack_headers(headers)
    assert unpack_headers(packed) == headers
    assert b"\n" not in packed
    assert bool(packed) is bool(headers)


@pytest.mark.parametrize(
    "content",
    [b"x", b"\xff", b"1", b"null", b"{", b'["ab"', b'[["a"]]', b"[1]", b'{"a": "b", "c": "d"}', b"[" * 100_000],
    ids=repr,
)
def test_what_is_no_headers(content: bytes) -> None:
    """Whatever another program wrote counts as none if it is not in the format."""
    assert unpack_headers(content) == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "x"),
        ("a b", "x"),
        ("\u00e4", "x"),
        ("n" * 65, "x"),
        ("qs-mid", "x"),
        ("QS-MID", "x"),
        ("A", "the second"),
        (1, "x"),
        ("b", None),
        ("b", 1),
        ("b", ["x"]),
    ],
    ids=repr,
)
def test_what_cannot_be_a_header_is_left_out(name: object, text: object) -> None:
    """One with another name, the server's own, a second one of a name, and what is no text; the others are there."""
    assert headers_among([("a", "1"), (name, text), ("z", "2")]) == (("a", "1"), ("z", "2"))


def test_text_that_no_answer_can_carry() -> None:
    """Characters that XML does not allow are replaced."""
    [found] = unpack_headers(json.dumps([["a", "x\x00\ud800\uffffy\t"]]).encode())
    assert found == ("a", "x\ufffd\ufffd\ufffdy\t")


def test_as_many_as_a_message_may_have() -> None:
    """The first of too many headers come, and of too much text what fits."""
    assert len(headers_among([(f"n{number}", "x") for number in range(MOST + 1)])) == MOST
    large = [("a", "\u00e9" * (MOST_BYTES // 4)), ("b", "\u00e9" * (MOST_BYTES // 4 - 1)), ("c", "x")]
    assert headers_among(large) == tuple(large[:2])
