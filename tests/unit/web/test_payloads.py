"""Payloads as text: what is indented, what stays as it is, and what cannot be shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qs_web.payloads import (
    HEX_MOST,
    PRETTY_MOST,
    SHOWN_MOST,
    hex_dump,
    indent_json,
    indent_xml,
    preview,
    view_payload,
    visible,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(JSON) | st.dictionaries(st.text(), JSON))
def test_indent_json_keeps_the_meaning(value: object) -> None:
    """Indented JSON means what it meant, and is as Python's own module indents it."""
    shown = indent_json(json.dumps(value, ensure_ascii=False))
    assert shown is not None
    assert shown == json.dumps(value, ensure_ascii=False, indent=2)


@pytest.mark.parametrize(("content_type", "payload", "kind", "shown", "views"), [
    ("application/json", b" 1.50 ", "JSON", "1.50", ("pretty", "text", "hex")),
    ("Application/JSON ; charset=utf-8", b'{"a":1}', "JSON", '{\n  "a": 1\n}', ("pretty", "text", "hex")),
    ("application/json", b"<a><b/></a>", "text", "<a><b/></a>", ("text", "hex")),
    ("text/xml", b"<a><b/></a>", "XML", "<a>\n  <b/>\n</a>", ("pretty", "text", "hex")),
    ("application/atom+xml", b"<a><b/></a>", "XML", "<a>\n  <b/>\n</a>", ("pretty", "text", "hex")),
    ("application/xml", b"[1]", "text", "[1]", ("text", "hex")),
    ("text/plain", b'{"a":1}', "text", '{"a":1}', ("text", "hex")),
    ("text/html", b"<b><i/></b>", "text", "<b><i/></b>", ("text", "hex")),
    ("text/plain; charset=latin-1", b"a\xe9\0", "text", "a\ufffd\ufffd", ("text", "hex")),
    ("image/png", b"<script>", "image", "", ()),
    ("IMAGE/svg+xml", b"<svg/>", "image", "", ()),
    ("application/octet-stream", b"[1]", "JSON", "[\n  1\n]", ("pretty", "text", "hex")),
    ("nonsense", b"[1]", "JSON", "[\n  1\n]", ("pretty", "text", "hex")),
    ("", b"\xff", "binary", "00000000  ff", ("hex",)),
])  # fmt: skip
def test_content_type_chooses_the_view(
    content_type: str, payload: bytes, kind: str, shown: str, views: tuple[str, ...]
) -> None:
    """A content type names the kind, if the payload is of that kind; without a known one, the payload itself tells.
    Nothing of an image is shown."""
    view = view_payload(payload, "", 0, content_type)
    assert (view.kind, view.views) == (kind, views)
    assert view.text == shown or (kind == "binary" and view.text.startswith(shown))


@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a" 1}', "[" * 300 + "]" * 300, "[" * 100_000, '"', "{]", "nul"])
def test_indent_json_returns_none_for_other_text(text: str) -> None:
    """Text that is not JSON, or too deep, is not indented."""
    assert indent_json(text) is None


@pytest.mark.parametrize("text", ["[1e5000]", "[" + "9" * 5000 + "]", '{"a": 1, "a": 2}', "[0.10, 1E2, -0]"])
def test_indent_json_keeps_numbers_and_repeated_members(text: str) -> None:
    """Numbers of any size and members that are there twice stay as they were written."""
    shown = indent_json(text)
    assert shown is not None
    assert "".join(shown.split()) == "".join(text.split())


@pytest.mark.parametrize(("payload", "shown"), [
    (b"<a><b>x</b><c/></a>", "<a>\n  <b>x</b>\n  <c/>\n</a>"),
    ("<a>ä</a>".encode(), "<a>ä</a>"),
    (b"<a>text <b>bold</b> text</a>", "<a>text <b>bold</b> text</a>"),
    (b"<a>", None),
    (b"<!DOCTYPE a><a/>", None),
    (b"<a>&undefined;</a>", None),
    (b"<a>" * 300 + b"</a>" * 300, None),
    (b'<?xml version="1.0" encoding="nonsense"?><a/>', None),
    (b"<?xml-stylesheet href='x'?><a><b/></a>", "<?xml-stylesheet href='x'?><a>\n  <b/>\n</a>"),
])  # fmt: skip
def test_indent_xml_changes_no_text(payload: bytes, shown: str | None) -> None:
    """XML is indented where that changes no text. What is not XML, or asks for a document type, is left alone."""
    found = indent_xml(payload, 1000)
    assert found is None if shown is None else found is not None and found.replace("\n<a", "<a") == shown


def test_indent_xml_reads_no_entity() -> None:
    """No file or other host is read, however the document type is written."""
    for payload in (
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
        b'<?xml version="1.0" encoding="utf-16"?>' + '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/"><a/>'.encode("utf-16"),
    ):
        view = view_payload(payload, "pretty")
        assert "root:" not in view.text


@given(st.binary(max_size=300), st.sampled_from(["", "pretty", "text", "hex", "nonsense"]))
def test_view_payload_shows_any_bytes(payload: bytes, wanted: str) -> None:
    """Any payload can be shown, in one of the ways that it has; text stays what it is, but for what cannot be seen."""
    view = view_payload(payload, wanted)
    assert view.view in view.views
    assert wanted not in view.views or view.view == wanted
    if view.view == "text":
        assert view.text == visible(payload.decode())
    assert (
        preview(payload).isprintable() or "\ufffd" in preview(payload) or preview(payload) == preview(payload).strip()
    )
    assert len(preview(payload)) <= 120


def test_view_payload_of_large_payloads_is_cut() -> None:
    """Large payloads are not indented, and shown in part."""
    large = b"[" + b"1," * PRETTY_MOST + b"1]"
    view = view_payload(large, "pretty")
    assert (view.kind, view.view, len(view.text)) == ("text", "text", SHOWN_MOST)
    assert view.cut == len(large) - SHOWN_MOST
    dump = view_payload(b"\0" * 10_000, "", 4096)
    assert (dump.kind, dump.view, dump.cut) == ("binary", "hex", 10_000 - 4096 - HEX_MOST)
    assert dump.text.startswith("00001000  00")


def test_hex_dump_has_16_bytes_a_line() -> None:
    """16 bytes a line, with their place and what of them is ASCII."""
    assert hex_dump(b"0123456789abcdefX\n", 16) == (
        f"00000010  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  0123456789abcdef\n00000020  58 0a {'':<42}  X·"
    )


def test_visible_marks_controls() -> None:
    """Controls and marks that turn the direction of text are shown as a mark."""
    assert visible("a\x07b\u202ec\u2066d\te\n") == "a\ufffdb\ufffdc\ufffdd\te\n"
    assert preview(("ä" * 500).encode()).startswith("ää")
    assert preview(b"a\nb\r\n  c") == "a b c"  # type: ignore[arg-type]
    assert preview(b"\xff\xd8\xff\xe0" * 50).startswith("ff d8 ff e0")


@pytest.mark.parametrize(("depth", "kinds"), [(1, ["JSON", "JSON", "XML"]), (150, ["text"] * 3)])
def test_view_payload_of_deep_documents_is_text(depth: int, kinds: list[str]) -> None:
    """A large flat document is indented. A deep one would become a hundred times as long, and is shown as text."""
    payloads = [
        "[" * depth + "1," * 200_000 + "1" + "]" * depth,
        '{"a":' * depth + "[" + "{}," * 100_000 + "1]" + "}" * depth,
        "<a>" * depth + "<b/>" * 100_000 + "</a>" * depth,
    ]
    assert [view_payload(payload.encode(), "").kind for payload in payloads] == kinds
