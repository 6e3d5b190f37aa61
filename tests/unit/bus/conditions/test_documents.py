"""Tests which payloads have elements, and that a hostile one gets nothing else."""

import socket
from pathlib import Path

import pytest

from qs_bus.conditions import Document, document

LAUGHS = b"".join(
    [b'<!DOCTYPE a [<!ENTITY l0 "haha">', *(b'<!ENTITY l%d "%s">' % (i, b"&l%d;" % (i - 1) * 10) for i in range(1, 12))]
)


def has_elements(payload: bytes) -> bool:
    return Document(payload).tree is not None


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "windows-1252"])
def test_encodings(encoding: str) -> None:
    """A payload in an encoding that it declares has elements, with their text."""
    text = f"<?xml version='1.0' encoding='{encoding}'?><a b='\xe9'>\xe9</a>"
    tree = Document(text.encode(encoding)).tree
    assert tree is not None
    assert (tree.getroot().text, tree.getroot().get("b")) == ("\xe9", "\xe9")


def test_a_byte_order_mark_and_white_space() -> None:
    """A mark of the byte order and white space around the outermost element do no harm."""
    assert has_elements(b"\xef\xbb\xbf<a/>")
    assert has_elements("<a/>".encode("utf-16"))
    assert has_elements(b"<a/>\n\n")
    assert has_elements(b"\n<a/>")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b" ",
        b"text",
        b'{"a": 1}',
        b"<",
        b"<a>",
        b"<a></b>",
        b"<a/><b/>",
        b"<a b=1/>",
        b"<a b='1' b='2'/>",
        b"<a>&unknown;</a>",
        b"<a>\x00</a>",
        b"<a>\xff</a>",
        b"<x:a/>",
        b"<a xmlns:x=''/>",
        b"<?xml version='1.0' encoding='no-such'?><a/>",
        "<a/>".encode("utf-16")[:-1],
        b"<html><br></html>",
    ],
)
def test_not_well_formed(payload: bytes) -> None:
    """A payload that is no XML, or not well-formed, has no elements."""
    assert not has_elements(payload)


@pytest.mark.parametrize(
    "text",
    [
        "<!DOCTYPE a><a/>",
        "<?xml version='1.0'?><!-- c -->\n<!DOCTYPE a []><a/>",
        "<!DOCTYPE a SYSTEM 'a.dtd'><a/>",
        "<!DOCTYPE a PUBLIC '-//x' 'http://localhost/a.dtd'><a/>",
        "<!DOCTYPE a [<!ATTLIST a b CDATA 'default'>]><a/>",
        "<!DOCTYPE a [<!ENTITY e 'x'>]><a b='&e;'>&e;</a>",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_a_document_type_in_any_encoding(text: str, encoding: str) -> None:
    """A payload with a document type has no elements, in whichever encoding it is."""
    assert not has_elements(text.encode(encoding))


def test_no_document_type_where_it_is_only_text() -> None:
    """A comment or a CDATA section may speak of a document type."""
    assert has_elements(b"<a><!-- <!DOCTYPE a> --><![CDATA[<!DOCTYPE a>]]></a>")


@pytest.mark.parametrize("use", [b"]><a>&l11;</a>", b"]><a b='&l11;'/>", b"<!ATTLIST a b CDATA '&l11;'>]><a/>"])
def test_entities_that_grow(use: bytes) -> None:
    """Entities that would grow to gigabytes neither grow nor leave elements."""
    assert not has_elements(LAUGHS + use)


def test_many_references_to_one_large_entity() -> None:
    """A large entity that an attribute refers to many times leaves no elements."""
    assert not has_elements(b'<!DOCTYPE a [<!ENTITY e "' + b"x" * 100_000 + b'">]><a b="' + b"&e;" * 30_000 + b'"/>')


def test_no_file_and_no_network(tmp_path: Path) -> None:
    """A payload makes the parser open no file and no connection."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        http = f"http://127.0.0.1:{server.getsockname()[1]}/"
        for system in (secret.as_uri(), str(secret), http):
            for text in (
                f"<!DOCTYPE a SYSTEM '{system}'><a/>",
                f"<!DOCTYPE a [<!ENTITY e SYSTEM '{system}'>]><a>&e;</a>",
                f"<!DOCTYPE a [<!ENTITY % e SYSTEM '{system}'>%e;]><a/>",
            ):
                assert not has_elements(text.encode())
            include = f"<a xmlns:x='http://www.w3.org/2001/XInclude'><x:include href='{system}' parse='text'/></a>"
            tree = Document(include.encode()).tree
            assert tree is not None
            assert "".join(tree.getroot().itertext()) == ""
        with pytest.raises(BlockingIOError):
            server.accept()


def nested(levels: int, inner: bytes = b"") -> bytes:
    return b"<a>" * levels + inner + b"</a>" * levels


def test_levels() -> None:
    """A payload has elements up to 64 levels, wherever the deepest is, and none beyond."""
    assert has_elements(nested(document.LEVELS))
    assert has_elements(nested(document.LEVELS - 1, b"<b c='d'>text<!-- --></b>"))
    assert not has_elements(nested(document.LEVELS + 1))
    assert not has_elements(nested(document.LEVELS, b"<b/>"))
    assert not has_elements(b"<r>" + b"<b/>" * 1000 + nested(document.LEVELS) + b"</r>")
    assert not has_elements(nested(300))
    assert not has_elements(nested(100_000))
    assert not has_elements(("<b/>".join(["<a>"] * 66) + "</a>" * 66).encode("utf-16"))


def test_the_shortest_document_that_is_too_deep() -> None:
    """The shortest document of 65 levels is not so short that its depth goes unchecked."""
    shortest = b"<a>" * document.LEVELS + b"<a/>" + b"</a>" * document.LEVELS
    assert len(shortest) == document._SHALLOW
    assert not has_elements(shortest)


def test_the_number_of_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload whose tree would take too much memory has no elements."""
    monkeypatch.setattr(document, "MARKS", 20_000)
    assert has_elements(b"<a>" + b"<b/>" * 19_998 + b"</a>")
    assert not has_elements(b"<a>" + b"<b/>" * 19_999 + b"</a>")
    assert has_elements(b"<a>" + b"<b c=''/>" * 9_999 + b"</a>")
    assert not has_elements(b"<a>" + b"<b c=''/>" * 10_000 + b"</a>")


def test_a_long_text() -> None:
    """A text of 9 MB can be read, and a payload with one that is longer than libxml2 reads has no elements."""
    assert has_elements(b"<a>" + b"x" * 9_000_000 + b"</a>")
    assert not has_elements(b"<a>" + b"x" * 11_000_000 + b"</a>")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32", "iso-8859-15", "shift_jis", "koi8-r"])
def test_encodings_in_which_marks_are_counted(encoding: str) -> None:
    """The usual encodings may be used for large payloads too."""
    assert document._marks_are_ascii(encoding)


@pytest.mark.parametrize("encoding", ["cp037", "utf-7", "no-such", "rot13", "hex"])
def test_a_large_payload_whose_marks_are_hidden(encoding: str) -> None:
    """A large payload in an encoding that hides its marks has no elements."""
    declaration = f"<?xml version='1.0' encoding='{encoding}'?>".encode()
    assert not document._is_moderate(declaration + b"<a>" + b"x" * document._SMALL + b"</a>")
    assert not has_elements(("<a>" + "<b/>" * 20_000 + "</a>").encode("cp037"))


def test_parsed_at_most_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload is parsed when its tree is first asked for, and never again, also if it has none."""
    parsed = []
    parse = document._parse
    monkeypatch.setattr(document, "_parse", lambda payload: parsed.append(payload) or parse(payload))
    some = Document(b"<a/>")
    assert parsed == []
    assert some.tree is some.tree
    assert some.tree is not None
    assert parsed == [b"<a/>"]
    none = Document(b"text")
    assert none.tree is None
    assert none.tree is None
    assert len(parsed) == 2
