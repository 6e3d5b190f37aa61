"""Where one document of a stream ends and the next begins.

A framer is fed the bytes as they come and gives back whole documents. It never looks at the same byte twice, however
the bytes are cut, and it keeps no more than the document that has been begun. It checks only what it has to know to
find the end (markup, names of tags) and what must not reach a parser at all: DTDs, too long, too deep, too
many attributes. Whatever cannot be framed makes the stream unreadable from there on: the framer then raises the same
error for ever. A document that can be framed but breaks a bound is given back as an error, and the next one is read.
"""

import re

from .errors import BAD_REQUEST, MALFORMED, TOO_LARGE, ErrorCode, ProtocolError
from .limits import Limits

_BOM = b"\xef\xbb\xbf"
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_NAME = rb"[^\x00-\x20<>/=\"'!?&]++"
# A whole tag in one go: the usual case. Possessive, so that no input makes it try twice.
_TAG = re.compile(
    rb"<(?:/(" + _NAME + rb")\s*+|(" + _NAME + rb")((?:[^<>\"'/]++|/(?!>)|\"[^\"<]*+\"|'[^'<]*+')*+)(/?))>"
)
_TAG_NAME = re.compile(rb"<(/?)(" + _NAME + rb")")
_IN_TAG = re.compile(rb"[<>\"']")
_VALUE = re.compile(rb"\"[^\"]*+\"|'[^']*+'")
_DECLARATION = re.compile(rb"<\?xml\s")
_ENCODING = re.compile(rb"\sencoding\s*=\s*[\"']([^\"']*)[\"']")

# Markup whose end is a fixed text, and what may stand in it.
_OPENERS = ((b"<!--", b"-->"), (b"<![CDATA[", b"]]>"), (b"<?", b"?>"))
_LONGEST_OPENER = 9


class Framer:
    """Splits a stream into documents. `feed` bytes, then call `next_document` until it returns None."""

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008 - frozen
        self._limits = limits
        self._buffer = bytearray()
        self._failed: ProtocolError | None = None
        self._reset()

    def _reset(self) -> None:
        self._begun = False  # the document's first byte stands at 0 of the buffer
        self._ended = False
        self._at = 0  # everything before has been looked at
        self._until: bytes | None = None  # inside a comment, CDATA section or instruction: its end
        self._opened = 0  # where the markup that is still open starts
        self._in_tag = False
        self._quote = 0  # inside a tag: the quote that is open, or 0
        self._values = 0  # inside a tag: attributes seen
        self._names: list[bytes] = []
        self._depth = 0
        self._broken: str | None = None  # the bound that this document breaks

    @property
    def begun(self) -> bool:
        """Whether a document has been begun and not completed."""
        return self._begun

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Takes what came from the peer, in pieces of any size."""
        self._buffer += data

    def next_document(self) -> bytes | None:
        """The next whole document, or None until more bytes have come.

        Raises ProtocolError: 400 that closes (not XML, DOCTYPE, tags that do not match) and 413 for the stream, from
        then on at each call; 400 that does not close for a document over a bound, which is then skipped.
        """
        if self._failed is not None:
            raise self._failed
        try:
            return self._scan()
        except ProtocolError as error:
            if error.error.closes:
                self._failed = error
                self._buffer.clear()
                self._begun = False
            raise

    def _scan(self) -> bytes | None:
        if not self._begun and not self._begin():
            return None
        buffer = self._buffer
        while True:
            if self._until is not None:
                advanced = self._finish_section()
            elif self._in_tag:
                advanced = self._finish_tag()
            else:
                advanced = self._next_markup()
            if self._ended:
                return self._take()
            if not advanced:
                break
        if len(buffer) > self._limits.document:
            raise self._too_large()
        return None

    # -- the beginning and the end of a document ----------------------------------------------------------------

    def _begin(self) -> bool:
        buffer = self._buffer
        start = 0
        while (found := _NOT_SPACE.search(buffer, start)) is not None:
            start = found.start()
            if buffer.startswith(_BOM, start):
                start += len(_BOM)
            elif len(buffer) - start < len(_BOM) and _BOM.startswith(buffer[start:]):
                del buffer[:start]
                return False
            else:
                break
        del buffer[: start if found else len(buffer)]
        if not buffer:
            return False
        if buffer[0] != 0x3C:
            raise _malformed(
                f"a document begins with '<', not with {bytes(buffer[:8])!r}; documents are XML in UTF-8, one after the other"
            )
        self._begun = True
        return True

    def _take(self) -> bytes:
        end = self._at
        if end > self._limits.document:
            raise self._too_large()
        document = bytes(self._buffer[:end])
        del self._buffer[:end]
        broken = self._broken
        self._reset()
        if broken is not None:
            raise ProtocolError(BAD_REQUEST, broken)
        return document

    def _too_large(self) -> ProtocolError:
        return ProtocolError(TOO_LARGE, f"the document is over the limit of {self._limits.document} bytes")

    # -- markup ---------------------------------------------------------------------------------------------------

    def _next_markup(self) -> bool:
        """From text to the next tag or section, and over it if it is whole. False when more bytes are needed."""
        buffer = self._buffer
        found = buffer.find(b"<", self._at)
        if self._depth == 0:  # before the root element: only white space between markup
            stray = _NOT_SPACE.search(buffer, self._at, len(buffer) if found < 0 else found)
            if stray is not None:
                raise _malformed(f"text outside the root element: {bytes(buffer[stray.start() : stray.start() + 8])!r}")
        if found < 0:
            self._at = len(buffer)
            return False
        self._at = self._opened = found
        tag = _TAG.match(buffer, found)
        if tag is not None:
            return self._whole_tag(tag)
        if found + 1 == len(buffer):
            return False
        if buffer[found + 1] in b"!?":
            return self._open_section()
        self._in_tag = True
        self._at = found + 1
        self._quote = self._values = 0
        return True

    def _whole_tag(self, tag: "re.Match[bytes]") -> bool:
        closing, opening, attributes, empty = tag.groups()
        self._at = tag.end()
        if closing is not None:
            self._close(closing)
        else:
            count = attributes.count(b"=")
            if count > self._limits.attributes:
                count = len(_VALUE.findall(attributes))
            self._open(opening, count, bool(empty))
        return True

    def _finish_tag(self) -> bool:
        """A tag that came in pieces: on from where the last piece ended, to its `>`."""
        buffer = self._buffer
        while True:
            if self._quote:
                at = buffer.find(self._quote, self._at)
                if buffer.find(b"<", self._at, len(buffer) if at < 0 else at) >= 0:
                    raise _malformed("'<' inside the value of an attribute; it is written &lt;")
                if at < 0:
                    self._at = len(buffer)
                    return False
                self._quote = 0
                self._values += 1
                self._at = at + 1
            found = _IN_TAG.search(buffer, self._at)
            if found is None:
                self._at = len(buffer)
                self._check_name(whole=False)
                return False
            self._at = found.end()
            mark = buffer[found.start()]
            if mark == 0x3E:
                return self._end_tag()
            if mark == 0x3C:
                raise _malformed(f"'<' inside a tag: {bytes(buffer[self._opened : self._opened + 40])!r}")
            self._quote = mark

    def _check_name(self, *, whole: bool) -> "re.Match[bytes] | None":
        name = _TAG_NAME.match(self._buffer, self._opened)
        if name is None and (whole or len(self._buffer) - self._opened > 2 or self._buffer[self._opened + 1] != 0x2F):
            raise _malformed(f"not a tag: {bytes(self._buffer[self._opened : self._opened + 40])!r}")
        return name

    def _end_tag(self) -> bool:
        self._in_tag = False
        name = self._check_name(whole=True)
        assert name is not None
        if name.group(1):
            self._close(name.group(2))
        else:
            self._open(name.group(2), self._values, self._buffer[self._at - 2] == 0x2F)
        return True

    def _open(self, name: bytes, attributes: int, empty: bool) -> None:
        if attributes > self._limits.attributes and self._broken is None:
            self._broken = f"<{_shown(name)}> has more than {self._limits.attributes} attributes"
        if empty:
            self._ended = self._depth == 0
            return
        self._depth += 1
        if self._depth <= self._limits.depth:
            self._names.append(bytes(name))
        elif self._broken is None:
            # Deeper names are not kept: a bomb must not cost memory. The document is refused at its end.
            self._broken = f"elements are nested deeper than {self._limits.depth}, at <{_shown(name)}>"

    def _close(self, name: bytes) -> None:
        if self._depth == 0:
            raise _malformed(f"</{_shown(name)}> closes nothing")
        if self._depth <= self._limits.depth:
            expected = self._names.pop()
            if expected != name:
                raise _malformed(f"</{_shown(name)}> where </{_shown(expected)}> is due")
        self._depth -= 1
        self._ended = self._depth == 0

    # -- comments, CDATA, instructions ----------------------------------------------------------------------------

    def _open_section(self) -> bool:
        buffer, at = self._buffer, self._at
        for opener, end in _OPENERS:
            if buffer.startswith(opener, at):
                if end == b"]]>" and self._depth == 0:
                    raise _malformed("a CDATA section outside the root element")
                self._until = end
                self._at = at + len(opener)
                return True
        head = bytes(buffer[at : at + _LONGEST_OPENER])
        if any(opener.startswith(head) for opener, _ in _OPENERS):
            return False  # not enough bytes yet to tell
        if b"<!DOCTYPE".startswith(head):
            if len(head) < _LONGEST_OPENER:
                return False
            raise _malformed("a DOCTYPE is refused: documents need none, and entities are never expanded")
        raise _malformed(f"unknown markup {head!r}")

    def _finish_section(self) -> bool:
        buffer, end = self._buffer, self._until
        assert end is not None
        found = buffer.find(end, self._at)
        if found < 0:
            self._at = max(self._at, len(buffer) - len(end) + 1)
            return False
        self._at = found + len(end)
        self._until = None
        if end == b"?>":
            self._check_instruction(bytes(buffer[self._opened : self._at]))
        return True

    def _check_instruction(self, instruction: bytes) -> None:
        if self._opened != 0 or _DECLARATION.match(instruction) is None:
            if self._broken is None:
                self._broken = "a processing instruction is refused: documents need none"
            return
        encoding = _ENCODING.search(instruction)
        if encoding is not None and encoding.group(1).lower() not in (b"utf-8", b"utf8"):
            raise _malformed(f"encoding {_shown(encoding.group(1))!r} is refused: documents are in UTF-8")


def _shown(name: bytes) -> str:
    return bytes(name[:60]).decode("utf-8", "replace")


def _malformed(text: str, error: ErrorCode = MALFORMED) -> ProtocolError:
    return ProtocolError(error, f"not well-formed: {text}")
