"""The decoder of forms decodes as Python's own does, without its cost."""

import tracemalloc
from urllib.parse import parse_qs, quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qs_web.forms import form_fields

MANY = 4000


@given(st.lists(st.tuples(st.text(), st.text())))
def test_form_fields_reads_what_browsers_send(fields: list[tuple[str, str]]) -> None:
    """Every form comes back as it was filled in."""
    expected: dict[str, list[str]] = {}
    for name, value in fields:
        expected.setdefault(name, []).append(value)
    assert form_fields(urlencode(fields).encode(), MANY) == expected


@given(st.text("aZ9=+&\r\n\t _-;.~ä\0") | st.text("%3dD0Aa&=+ ").filter(lambda text: "%" not in text[-2:]))
def test_form_fields_agrees_with_parse_qs(text: str) -> None:
    """Any other body means what it means to Python, if each % begins an escape."""
    try:
        found = form_fields(text.encode(), MANY)
    except ValueError:
        return
    assert found == parse_qs(text, keep_blank_values=True, errors="strict")


@pytest.mark.parametrize("body", [b"a=%", b"a=%4", b"a=%zz", b"a=%%41", b"%=1", b"a=%ff", b"\xff=1", b"a&" * MANY])
def test_form_fields_refuses_unreadable_and_large(body: bytes) -> None:
    """Forms that are unreadable or too large are refused."""
    with pytest.raises(ValueError, match=r"fields|hexadecimal|codec"):
        form_fields(body, MANY)


def test_form_fields_of_escaped_text_needs_little_memory() -> None:
    """A large text of which each byte is escaped takes a few times its size."""
    body = f"payload={quote('й' * 500_000)}".encode()
    tracemalloc.start()
    try:
        assert form_fields(body, MANY) == {"payload": ["й" * 500_000]}
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()
