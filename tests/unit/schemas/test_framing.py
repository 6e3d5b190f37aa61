"""Framing: where documents end, however the bytes are cut, and what is refused before a parser sees it."""

import re
from collections.abc import Iterator

import pytest

from qs_schemas import CLIENT_LIMITS, Framer, Limits, ProtocolError, framing

NS = 'xmlns="http://purl.oclc.org/DEFUZE/qs"'
PING = f"<qs {NS}><op><ping/></op></qs>".encode()

WHOLE = [
    PING,
    b"<qs/>",
    b"<qs\n\t/>",
    b"<a:qs xmlns:a='u'><a:op/></a:qs  >",
    b'<qs a="&lt;/qs>" />',
    b"<qs a='>' b=\"/>\"><x/></qs>",
    b"<qs><!-- </qs> --></qs>",
    b"<qs><!-- - -> --></qs>",
    b"<qs><![CDATA[</qs>]]></qs>",
    b"<qs><![CDATA[]]]]><![CDATA[>]]></qs>",
    b"<?xml version='1.0' encoding='UTF-8'?>\n<qs></qs>",
    b'<?xml version="1.0"?><!-- a --><qs/>',
    b"<!-- before --><qs/>",
    b"<qs><qs></qs><qs/></qs>",
    b"<qs><a><b><c><d><e><f><g>deep</g></f></e></d></c></b></a></qs>",
    "<qs>\N{GRINNING FACE}é</qs>".encode(),
    b"<qs>a > b ]]&gt; ' \" =</qs>",
]

CLOSING = [
    (b"hello", 400, "begins with '<'"),
    (b"GET / HTTP/1.1\r\n", 400, "GET"),
    (b"\x00", 400, "UTF-8"),
    (PING.decode().encode("utf-16"), 400, "UTF-8"),
    (PING.decode().encode("utf-16-le"), 400, "not a tag"),
    (PING.decode().encode("utf-16-be"), 400, "UTF-8"),
    (b'<?xml version="1.0" encoding="ISO-8859-1"?><qs/>', 400, "ISO-8859-1"),
    (b'<?xml version="1.0" encoding="utf-16"?><qs/>', 400, "utf-16"),
    (b"<!DOCTYPE qs><qs/>", 400, "DOCTYPE"),
    (b'<!DOCTYPE qs [<!ENTITY a "b">]><qs>&a;</qs>', 400, "DOCTYPE"),
    (b"<?xml version='1.0'?>\n<!DOCTYPE qs SYSTEM 'file:///etc/passwd'><qs/>", 400, "DOCTYPE"),
    (b"<qs><!DOCTYPE a></qs>", 400, "DOCTYPE"),
    (b"<!doctype qs>", 400, "unknown markup"),
    (b"<qs><!ENTITY a 'b'></qs>", 400, "unknown markup"),
    (b"<![CDATA[a]]>", 400, "CDATA"),
    (b"<qs><op></qs>", 400, "</op> is due"),
    (b"</qs>", 400, "closes nothing"),
    (b"< qs/>", 400, "not a tag"),
    (b"<qs><></qs>", 400, "not a tag"),
    (b"<qs></ qs>", 400, "not a tag"),
    (b"<qs a='<'/>", 400, "&lt;"),
    (b"<qs <op/>", 400, "inside a tag"),
    (b"<!-- c -->x<qs/>", 400, "outside the root"),
]

# What can never become a document, however it goes on, and how many of its bytes make that certain.
HOPELESS = [
    (b"<1>", 2, "not a tag"),
    (b"<-a>", 2, "not a tag"),
    (b"<\x80>", 2, "not a tag"),
    (b"<\xc2\xb7>", 2, "not a tag"),
    (b"<qs\xff>", 4, "not a tag"),
    (b"<qs\x0c>", 4, "not a tag"),
    (b"<q+s>", 3, "not a tag"),
    (b"<qs/ >", 5, "not a tag"),
    (b"<qs a>", 6, "not a tag"),
    (b"<qs a/>", 6, "not a tag"),
    (b"<qs a b='c'>", 7, "not a tag"),
    (b"<qs a=b>", 7, "not a tag"),
    (b"<qs a='b'c='d'>", 10, "not a tag"),
    (b"<qs 1='a'>", 5, "not a tag"),
    (b"<qs a='b\x01'>", 9, "a byte that no XML"),
    (b"<qs a='\xc3'>", 10, "no UTF-8"),
    ("<q\N{MULTIPLICATION SIGN}>".encode(), 5, "not a name"),
    (b"<q\xc3\xc3>", 5, "no UTF-8"),
    (b"<qs></1", 7, "not a tag"),
    (b"<qs></qs a", 10, "not a tag"),
    (b"<qs>\xff", 5, "a byte that no XML"),
    (b"<qs>\x00", 5, "a byte that no XML"),
    (b"<qs>\x1f", 5, "a byte that no XML"),
    (b"<qs>" + b"x" * 5000 + b"\x00", 5005, "a byte that no XML"),
    (b"<qs>" + b"\xc3\xbc" * 5000 + b"\x01", 10_005, "a byte that no XML"),
    (b"<qs><!-- \xf8", 10, "a byte that no XML"),
    (b"<qs><!-- a --a", 14, "'--' inside a comment"),
    (b"<qs><!-- a --->", 14, "'--' inside a comment"),
    (b"<!D", 3, "DOCTYPE"),
    (b"<qs><!a", 7, "unknown markup"),
]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def feed(framer: Framer, data: bytes, size: int) -> None:
    for piece in pieces(data, size):
        framer.feed(piece)
        assert framer.next_document() is None


def documents(data: bytes, size: int, limits: Limits | None = None) -> list[bytes | str]:
    """Returns what a framer gives for data that come in pieces; errors as their text, ends at one that closes."""
    framer = Framer(limits or Limits())
    found: list[bytes | str] = []
    for piece in pieces(data, size):
        framer.feed(piece)
        while True:
            try:
                document = framer.next_document()
            except ProtocolError as error:
                found.append(error.text)
                if error.error.closes:
                    return found
                continue
            if document is None:
                break
            found.append(document)
    return found


@pytest.mark.parametrize("document", WHOLE)
def test_next_document_of_whole_documents(document: bytes) -> None:
    """A document is found whole in pieces of any size, with others around it and white space between or none."""
    for size in (1, 2, 3, 7, 10_000):
        stream = b"\r\n\r\n" + document + PING + b"\r\n \t" + document + b"\r\n"
        assert documents(stream, size) == [document, PING, document]


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_next_document_skips_a_bom(size: int) -> None:
    """A UTF-8 BOM before a document is taken, also in pieces, and is not part of it."""
    assert documents(b"\xef\xbb\xbf" + PING + b"\r\n\xef\xbb\xbf" + PING, size) == [PING, PING]


@pytest.mark.parametrize(("data", "code", "says"), CLOSING, ids=[repr(row[0][:30]) for row in CLOSING])
def test_next_document_refuses_unreadable_bytes(data: bytes, code: int, says: str) -> None:
    """Bytes that cannot be framed are 400 with the reason; the stream closes, and nothing after them is read."""
    for size in (1, 3, 10_000):
        framer = Framer()
        with pytest.raises(ProtocolError) as caught:
            feed(framer, data, size)
        assert (caught.value.error.code, caught.value.error.closes) == (code, True)
        if size > 100:
            assert says in caught.value.text
        framer.feed(PING)
        with pytest.raises(ProtocolError) as again:
            framer.next_document()
        assert again.value is caught.value
        assert not framer.begun


@pytest.mark.parametrize(("data", "certain", "says"), HOPELESS, ids=[repr(row[0][:20]) for row in HOPELESS])
def test_next_document_refuses_as_soon_as_it_is_certain(data: bytes, certain: int, says: str) -> None:
    """Bytes that can never become a document are refused with the first byte that makes that certain, and not when the
    document is complete, or its time is over: in one piece, byte by byte, behind other documents."""
    for before in (b"", PING):
        framer = Framer()
        framer.feed(before + data[: certain - 1])
        assert framer.next_document() == (before or None)
        assert framer.next_document() is None
        framer.feed(data[certain - 1 : certain])
        with pytest.raises(ProtocolError, match=says) as caught:
            framer.next_document()
        assert (caught.value.error.code, caught.value.error.closes) == (400, True)
        (*_, text) = documents(before + data, 1 if len(data) < 100 else 1000)
        assert says in str(text)
        assert says in str(documents(before + data, len(before + data))[-1])


def test_next_document_takes_names_of_any_script() -> None:
    """Names and values beyond ASCII are taken, in pieces of any size."""
    document = "<qs><größe ñ='\N{MULTIPLICATION SIGN}' \u3042.\u0300\xb7='\U0001f600'/></qs>".encode()
    for size in (1, 2, 3, 10_000):
        assert documents(document + PING, size) == [document, PING]


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_next_document_finds_impossible_bytes_over_a_bound(size: int) -> None:
    """A document over a bound that has bytes which no XML has closes the stream, however it is cut: no parser looks at
    it, so the framer does."""
    (found,) = documents(b"<a><b><c>\x01</c></b></a>" + PING, size, Limits(depth=2))
    assert "a byte that no XML" in str(found)
    (found,) = documents(b"<a>" + b"x" * 5000 + b"\x01" + b"x" * 100, size, Limits(document=5050))
    assert "a byte that no XML" in str(found)


@pytest.mark.parametrize("size", [1, 5000, 6000, 50_000])
@pytest.mark.parametrize(
    "end", [b"<b><c/></b></a>", b"<b/><b/><b/><b/></a>", b"<b/><b/><b/><b/>" + b"y" * 9000 + b"</a>", b"y" * 20_000]
)
def test_next_document_finds_impossible_bytes_in_long_pieces(
    end: bytes, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An impossible byte closes the stream also if it came in a long piece, before the document was over a bound."""
    monkeypatch.setattr(framing, "_REST", 3000)
    (found,) = documents(b"<a>\x01" + b"x" * 5000 + end + PING, size, Limits(depth=2, elements=4, document=20_000))
    assert "a byte that no XML" in str(found)


def test_next_document_keeps_nothing_after_an_error() -> None:
    """After an error that closes, a peer that goes on sending costs no memory."""
    framer = Framer()
    framer.feed(b"x")
    with pytest.raises(ProtocolError):
        framer.next_document()
    for _ in range(100):
        framer.feed(b"x" * 1000)
    assert len(framer.buffer) == 0


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_next_document_bounds_depth(size: int) -> None:
    """A document nested as deep as allowed passes; one deeper is 400, an empty element counts, the stream goes on."""
    limits = Limits(depth=4)
    fits, over, over_empty = (
        b"<a><b><c><d/></c></b></a>",
        b"<a><b><c><d><e></e></d></c></b></a>",
        b"<a><b><c><d><e/></d></c></b></a>",
    )
    found = documents(fits + over + over_empty + PING, size, limits)
    refused = "elements are nested deeper than 4, at <e>"
    assert found == [fits, refused, refused, PING]


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_next_document_bounds_attributes(size: int) -> None:
    """An element with as many attributes as allowed passes; one with more is 400, and the stream goes on."""
    limits = Limits(attributes=3)
    fits, over = b"<a b='1' c='=' d=\"==\"/>", b"<a><b b='1' c='2' d='3' e='4'/></a>"
    assert documents(fits + over + PING, size, limits) == [fits, "<b> has more than 3 attributes", PING]


TOO_MANY = "the document has more than 4 elements, comments and sections"
CROWDED = [
    b"<a><b/><b></b><b>c</b><b/></a>",
    b"<a><b><c><d><e/></d></c></b></a>",
    b"<a><b/><b/><b/><b/>" + b"<b>c<!-- </b> --><d e='>'><f><g><h/></g></f></d ></b>" * 3 + b"</a>",
    b"<a><!--b--><!----><!-- - -> --><!-- </a> --></a>",
    b"<!--b--> <!----> <!-- - -> --> <!----> <!-- <a> --> <?d > ?> <!----><a/>",
    b"<a><![CDATA[b]]><![CDATA[]]><![CDATA[</a>]] ]>]]]><![CDATA[<]]><![CDATA[>]]></a>",
    b"<a><b/><!----><![CDATA[]]><b/></a>",
]


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("document", CROWDED)
def test_next_document_bounds_elements(document: bytes, size: int) -> None:
    """A document of more elements, comments and sections than allowed is 400, and the stream goes on."""
    found = documents(document + PING + document + PING, size, Limits(elements=4))
    assert found == [TOO_MANY, PING, TOO_MANY, PING]


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_next_document_takes_as_many_elements_as_allowed(size: int) -> None:
    """A document of exactly as many elements, comments and sections as allowed passes."""
    fits = [b"<a><b/><b>c</b><b></b></a>", b"<!--b--><a><!-- </a> --><![CDATA[</a>]]></a>"]
    assert documents(b"".join(fits), size, Limits(elements=4)) == fits


@pytest.mark.parametrize("unit", [b"<b/>", b"<b>", b"<b><b><b><b></b></b></b></b>", b"<mid>1</mid>", b"<!---->"])
@pytest.mark.parametrize("size", [1, 1000, 10_000_000])
def test_next_document_closes_on_far_too_many_elements(unit: bytes, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that does not end within some bytes behind the first element too many is 413, however it is cut, and
    the rest is not looked at."""
    monkeypatch.setattr(framing, "_REST", 3000)
    begin = b"<a><c><d/></c><e>"
    end = b"</e></a>"
    limits = Limits(elements=50, depth=10)
    far = begin + unit * (6000 // len(unit)) + end + PING
    assert documents(far, size, limits) == [
        "the document has more than 50 elements, comments and sections, and does not end within 3000 bytes behind these"
    ]
    near = begin + b"<b/>" * 700 + end
    assert documents(near + PING, size, limits) == [
        "the document has more than 50 elements, comments and sections",
        PING,
    ]


@pytest.mark.parametrize("size", [1, 1000])
def test_bound_changes_under_far_too_many_elements(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is raised or lowered while such a document comes in lets through no more of it."""
    monkeypatch.setattr(framing, "_REST", 3000)
    framer = Framer(Limits(elements=50))
    framer.bound(2000)
    feed(framer, b"<a>" + b"<b/>" * 60, size)
    for bound in (100_000, 5000, 100_000):
        framer.bound(bound)
        feed(framer, b"<b/>" * 200, size)
    with pytest.raises(ProtocolError, match="does not end within 3000 bytes") as caught:
        feed(framer, b"<b/>" * 200, size)
    assert caught.value.error.code == 413


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize(
    ("end", "says"),
    [
        (b"<b></c></a>", "</c> where </b> is due"),
        (b"<b><c></b></c></a>", "</b> where </c> is due"),
        (b"<b a='<'/></a>", "&lt;"),
        (b"<!DOCTYPE b></a>", "DOCTYPE"),
    ],
)
def test_next_document_finds_wrong_tags_among_too_many_elements(end: bytes, says: str, size: int) -> None:
    """Bytes that cannot be framed close the stream, also in a document that is over the bound already."""
    (found,) = documents(b"<a>" + b"<b><c/></b>" * 10 + end + PING, size, Limits(elements=4))
    assert isinstance(found, str)
    assert says in found


def test_next_document_takes_long_lists_by_default() -> None:
    """The defaults let through the longest lists, and what a server answers."""
    limits = Limits()
    messages = b"<qs><messages>" + b"<message><payload><a><b/></a></payload></message>" * limits.list_length
    parts = b"<qs><parts>" + b"<part/>" * 10 * limits.list_length
    stream = [messages + b"</messages></qs>", parts + b"</parts></qs>"]
    assert documents(b"".join(stream), 65_536) == stream
    assert CLIENT_LIMITS.elements >= 10 * limits.elements


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_next_document_refuses_instructions(size: int) -> None:
    """A processing instruction is 400, wherever it stands, and the stream goes on."""
    refused = "a processing instruction is refused: documents need none"
    stream = b"<?php x?><qs/>" + b"<qs><?a </qs> ?></qs>" + b"<qs><?xml version='1.0'?></qs>" + PING
    assert documents(stream, size) == [refused, refused, refused, PING]


@pytest.mark.parametrize("size", [1, 10_000])
def test_next_document_keeps_the_req_of_a_refused_one(size: int) -> None:
    """A document over a bound is refused under its correlation id, so that the client knows which it was."""
    with pytest.raises(ProtocolError) as caught:
        feed(Framer(Limits(depth=2)), b"<!-- c --><qs a=\"req='no' req='neither'\" req='42'><a><b/></a></qs>", size)
    assert (caught.value.req, caught.value.error.closes) == ("42", False)


@pytest.mark.parametrize("req", [b"\0", b"a&amp;b", b"\xff\xfe\x01", b"a\tb", b'it is "x"', b"x" * 129])
def test_next_document_drops_a_strange_req(req: bytes) -> None:
    """A req that is written otherwise than read, or cannot be sent, is left out of the refusal."""
    with pytest.raises(ProtocolError) as caught:
        feed(Framer(Limits(depth=2)), b"<qs req='%b'><a><b/></a></qs>" % req, 1000)
    assert caught.value.req is None


def test_next_document_takes_as_many_bytes_as_allowed() -> None:
    """A document of exactly the limit passes, white space around it not counted; one byte more is 413."""
    document = b"<qs>" + b"x" * 91 + b"</qs>"
    assert documents(b"\n" * 500 + document + b"\n" * 500, 10_000, Limits(document=100)) == [document]
    for size in (1, 3, 10_000):
        assert documents(document, size, Limits(document=99)) == ["the document is over the limit of 99 bytes"]


@pytest.mark.parametrize(
    "begin", [b"<qs>", b"<qs a='", b"<!--", b"<qs><![CDATA[", b"<?xml ", b"<" + b"q" * 8, b"<qs><a>" * 3, b"<qs "]
)
def test_next_document_refuses_too_many_bytes_at_once(begin: bytes) -> None:
    """413 comes with the first byte over the limit, whatever is open, and not when the document ends."""
    framer = Framer(Limits(document=1000))
    framer.feed(begin)
    assert framer.next_document() is None
    framer.feed(b"x" * (1000 - len(begin)))
    assert framer.next_document() is None
    framer.feed(b"x")
    with pytest.raises(ProtocolError) as caught:
        framer.next_document()
    assert (caught.value.error.code, caught.value.error.closes) == (413, True)


def test_begun_while_a_document_is_incomplete() -> None:
    """`begun` is true from a document's first byte to its last, and not between documents."""
    framer = Framer()
    seen = []
    for data in (b"\r\n \xef\xbb", b"\xbf", b"<", b"qs/", b">", b"\r\n"):
        framer.feed(data)
        framer.next_document()
        seen.append(framer.begun)
    assert seen == [False, False, True, True, False, False]


# -- work ---------------------------------------------------------------------------------------------------------


class Meter:
    """Counts the bytes that searches of a framer were let look at."""

    def __init__(self) -> None:
        self.looked_at = 0

    def pattern(self, real: re.Pattern[bytes]) -> "MeteredPattern":
        return MeteredPattern(real, self)


class MeteredPattern:
    def __init__(self, real: re.Pattern[bytes], meter: Meter) -> None:
        self.real, self.meter = real, meter

    def _count(self, found: re.Match[bytes] | None, start: int, end: int) -> re.Match[bytes] | None:
        self.meter.looked_at += (end if found is None else found.end()) - start
        return found

    def search(self, data: bytes, start: int = 0, end: int | None = None) -> re.Match[bytes] | None:
        end = len(data) if end is None else end
        return self._count(self.real.search(data, start, end), start, end)

    def match(self, data: bytes, start: int = 0, end: int | None = None) -> re.Match[bytes] | None:
        end = len(data) if end is None else end
        return self._count(self.real.match(data, start, end), start, end)

    def findall(self, data: bytes) -> list[bytes]:
        self.meter.looked_at += len(data)
        return self.real.findall(data)


class MeteredBuffer(bytearray):
    meter: Meter

    def find(self, what: bytes | int, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        end = len(self) if end is None else end
        at = super().find(what, start, end)
        self.meter.looked_at += (end if at < 0 else at) - start
        return at


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    meter = Meter()
    for name in (
        "_NOT_SPACE",
        "_TAG",
        "_TAG_NAME",
        "_WHOLE_ATTRIBUTES",
        "_VALUE",
        "_DECLARATION",
        "_ENCODING",
        "_RUN",
        "_RUN_BEFORE_ROOT",
    ):
        monkeypatch.setattr(framing, name, meter.pattern(getattr(framing, name)))
    for name, part in framing._PARTS.items():
        monkeypatch.setitem(framing._PARTS, name, part._replace(run=meter.pattern(part.run)))
    return meter


def bomb(begin: bytes, fill: bytes, end: bytes) -> bytes:
    return begin + fill * (30_000 // len(fill)) + end


BOMBS = {
    "text": bomb(b"<qs><a>", b"x", b"</a></qs>"),
    "white space before": bomb(b"", b" ", b"<qs/>"),
    "white space in a tag": bomb(b"<qs", b" ", b"/>"),
    "white space after a declaration": bomb(b"<?xml version='1.0'?>", b"\n", b"<qs/>"),
    "attribute": bomb(b"<qs a='", b"x", b"'/>"),
    "attribute of quotes": bomb(b"<qs a='", b'"', b"'/>"),
    "attributes": bomb(b"<qs", b" a='b'", b"/>"),
    "name": bomb(b"<", b"q", b"/>"),
    "closing name": bomb(b"<qs></", b"q", b">"),
    "comment": bomb(b"<qs><!--", b"-", b"--></qs>"),
    "comments": bomb(b"<qs>", b"<!---->", b"</qs>"),
    "CDATA": bomb(b"<qs><![CDATA[", b"]", b"]]></qs>"),
    "instruction": bomb(b"<qs><?a ", b"?", b"?></qs>"),
    "depth": bomb(b"", b"<a>", b""),
    "elements": bomb(b"<qs>", b"<a/>", b"</qs>"),
    "elements inside others": bomb(b"<qs>", b"<a><b><c><d/></c></b></a>", b"</qs>"),
    "elements that stay open": bomb(b"<qs><a><a><a>", b"<b>c</b>", b""),
    "comments before the root": bomb(b"", b"<!---->", b"<qs/>"),
    "a comment after elements": bomb(b"<qs><a/><!--", b"-", b"--></qs>"),
    "text after elements": bomb(b"<qs><a/><b>", b"x", b"</b></qs>"),
    "quotes in text": bomb(b"<qs>", b"'\"", b"</qs>"),
    "documents": bomb(b"", b"<a/>", b""),
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
@pytest.mark.parametrize("elements", [20_000, 1])
def test_next_document_takes_linear_time(data: bytes, elements: int, meter: Meter) -> None:
    """However long an open document grows in tiny pieces, each byte is read at most a fixed number of times."""
    framer = Framer(Limits(elements=elements))
    framer._usual = meter.pattern(framer._usual)  # type: ignore[assignment]
    framer.buffer = MeteredBuffer()
    framer.buffer.meter = meter
    for piece in pieces(data, 1):
        framer.feed(piece)
        try:
            while framer.next_document() is not None:
                pass
        except ProtocolError as error:
            if error.error.closes:
                break
    assert meter.looked_at <= 12 * len(data)


@pytest.mark.parametrize("end", [b"/>", b"></a>", b" >x</a>", b"\n/>"])
def test_next_document_of_attributes_in_long_pieces(end: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attributes that stand whole in a piece are counted as in one go, and without a step for each."""
    steps = 0
    real = Framer._finish_value

    def finish_value(framer: Framer) -> bool:
        nonlocal steps
        steps += 1
        return real(framer)

    monkeypatch.setattr(Framer, "_finish_value", finish_value)
    document = b"<a" + b" b='1' c = \"2='>\"" * 5000 + end
    for size in (1001, 5000):
        steps = 0
        assert documents(document + PING, size, Limits(attributes=10_000)) == [document, PING]
        assert documents(document + PING, size, Limits(attributes=9999)) == ["<a> has more than 9999 attributes", PING]
        assert steps <= 4 * len(document) / size + 4
        for bad, says in (
            (b" d='<'", "&lt;"),
            (b"d='1'", "not a tag"),
            (b" d", "not a tag"),
            (b" d='1' 2='3'", "not a tag"),
        ):
            assert says in str(documents(document[: -len(end)] + bad + end, size)[-1])


ENTRIES = [
    b"<message><payload>a</payload></message>",
    b'<message qid="q" mid="1" receives="1"><payload encoding="base64">YQ==</payload></message>',
    b'<mid receives="1">2</mid>',
]


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_next_document_of_lists_in_pieces(size: int) -> None:
    """Entries of a list that are passed over at once are counted like any other elements: in pieces, alike or not."""
    listed = b"".join(ENTRIES * 4)
    document = b"<qs><op><a/></op><messages>" + listed + b"</messages></qs>"
    elements = 4 + 4 * 5
    assert documents(document + PING, size, Limits(elements=elements)) == [document, PING]
    refused = f"the document has more than {elements - 1} elements, comments and sections"
    assert documents(document + PING, size, Limits(elements=elements - 1)) == [refused, PING]
    assert documents(document + PING, size, Limits(depth=4)) == [document, PING]
    assert documents(document + PING, size, Limits(depth=3))[-1] == PING
    assert documents(document + PING, size, Limits(attributes=2))[-1] == PING


def test_next_document_refuses_wrong_lists() -> None:
    """A fault in a list that arrives in pieces is found as soon as it has arrived."""
    for bad in (b'<mid receives="<">1</mid>', b"<mid>1</message>", b"<message><payload>a</message>", b"<!DOCTYPE>"):
        framer = Framer()
        framer.feed(b"<qs><op><a/></op><messages>" + ENTRIES[0])
        assert framer.next_document() is None
        framer.feed(b"".join(ENTRIES) + bad + ENTRIES[0])
        with pytest.raises(ProtocolError) as caught:
            framer.next_document()
        assert caught.value.error.closes


def test_feed_keeps_little_between_documents() -> None:
    """When all that came has been read, nothing of it is kept; bytes come as any kind of buffer."""
    for kind in (bytes, bytearray, memoryview):
        framer = Framer()
        framer.feed(kind(PING * 3 + b"\r\n"))
        assert [framer.next_document() for _ in range(4)] == [PING] * 3 + [None]
        assert len(framer.buffer) == 0
        framer.feed(kind(PING + PING[:10]))
        framer.feed(kind(PING[10:]))
        assert [framer.next_document() for _ in range(3)] == [PING, PING, None]
        assert not framer.begun
