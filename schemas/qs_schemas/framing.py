"""Splits a stream of bytes into documents, and refuses documents that would cost a parser too much.

No length stands in front of a document: only its markup says where it ends. So finding the end is half of parsing, for
bytes from anybody, cut anywhere. There are three ways, from quick to slow, with the same result:

1. `take_plain` lets a reader try documents in the usual form. The reader finds the end.
2. One match of `_usual` finds the end of a whole document of elements, attributes and text.
3. `_scan` goes tag by tag, over pieces, comments, sections, and documents that break a bound.

The framer checks only what is needed to find the end. The parser checks references, namespaces and the rest.
"""

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeVar

from .errors import BAD_REQUEST, MALFORMED, TOO_LARGE, ProtocolError
from .limits import REQ, Limits
from .text import BLANK, SPACES, is_plain

_BOM = b"\xef\xbb\xbf"
_SPACE = rb"[ \t\r\n]"
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
EMPTY_LINE = b"\r\n\r\n"
_UNFINISHED = len(EMPTY_LINE) - 1
# Every repetition here is possessive, so that no input makes a pattern look twice at the same bytes. Repetitions of
# groups are written as atomic groups: Python 3.11.2, Debian's, forgets where a possessive repetition began when its
# last round fails.
# Bytes of a name (XML 1.0, productions 4 and 4a); `_check_characters` looks at those of several bytes.
_FIRST, _FURTHER = rb"A-Za-z_:\xc3-\xf3", rb"A-Za-z0-9_:.\-\x80-\xbf\xc2-\xf3"
_NAME = rb"[%b][%b]*+" % (_FIRST, _FURTHER)
_QUOTED = rb"(?:\"[^\"<]*+\"|'[^'<]*+')"
_WHOLE_ATTRIBUTE = _SPACE + rb"++" + _NAME + _SPACE + rb"*+=" + _SPACE + rb"*+" + _QUOTED
_ATTRIBUTES = rb"(?>(?:" + _WHOLE_ATTRIBUTE + rb")*)" + _SPACE + rb"*+"
_TAG = re.compile(rb"<(?:/(" + _NAME + rb")" + _SPACE + rb"*+|(" + _NAME + rb")(" + _ATTRIBUTES + rb")(/?))>")
_WHOLE_ATTRIBUTES = re.compile(rb"(?>(?:" + _WHOLE_ATTRIBUTE + rb")+)")
_TAG_NAME = re.compile(rb"<(/?)(" + _NAME + rb")")
_VALUE = re.compile(rb"\"[^\"]*+\"|'[^']*+'")
_ATTRIBUTE = re.compile(_SPACE + rb"(" + _NAME + rb")" + _SPACE + rb"*+=" + _SPACE + rb"*+(" + _VALUE.pattern + rb")")
_DECLARATION = re.compile(rb"<\?xml" + _SPACE)
_ENCODING = re.compile(_SPACE + rb"encoding" + _SPACE + rb"*+=" + _SPACE + rb"*+[\"']([^\"']*)[\"']")

# Bytes that no document has, as a table for `bytes.translate`, which leaves all others unchanged.
_IMPOSSIBLE = bytes(
    byte ^ 1 if byte in b"\xc0\xc1" or byte >= 0xF5 or (byte < 0x20 and byte not in b"\t\n\r") else byte
    for byte in range(256)
)

# Markup whose end is a fixed text. What ends a comment's text has to be followed by `>`.
_IN_COMMENT = b"--"
_OPENERS = ((b"<!--", _IN_COMMENT), (b"<![CDATA[", b"]]>"), (b"<?", b"?>"))
_DOCTYPE = b"<!DOCTYPE"
_XMLNS = b"xmlns:xs"
_DOTNET = (b"xmlns:xsi", b"xmlns:xsd")
_LONGEST_OPENER = len(_DOCTYPE)
_USUAL_DEPTH = 6
_RUN_DEPTH = 3
_SHORTEST = len(b"<a/>")
# Entries of a list, as nearly everybody writes them: for a list that comes in pieces, the entries that have come
# together. A value with a `<`, which is an error, ends the run.
_OF_LISTED = rb'(?>(?: (?:qid|mid|receives|pushed-at|visible-at|delay|key)="[^"<]*+"){0,7})'
_LISTED = re.compile(
    rb'(?>(?:<message%b><payload(?: encoding="base64")?>[^<]*+</payload></message>|<mid%b>[^<]*+</mid>)+)'
    % (_OF_LISTED, _OF_LISTED)
)
_LISTED_DEPTH, _LISTED_ATTRIBUTES = 4, 7
_LONG = 4096
"""Bytes behind which a pattern is tried only if a document may end there: a long document that comes in pieces would be
matched from its beginning again with each piece."""
_REST = 512 * 1024
"""Bytes behind the first element too many, within which a document has to end for the next one to be read. A step to
each tag of more would take seconds."""

T = TypeVar("T")


class _Part(NamedTuple):
    """Describes a part of a tag that comes in pieces. run: matches the bytes of the part; then: the byte behind the
    part -> the next part. Any other byte behind the part is an error."""

    run: re.Pattern[bytes]
    then: dict[int, str]


def _part(run: bytes, **then: bytes) -> _Part:
    """Makes a part. run: the bytes of the part, written like a set in a pattern; then: name of a next part -> the bytes
    that lead to that part, written in the same way."""
    sets = {name: re.compile(rb"[%b]" % bytes_of) for name, bytes_of in then.items()}
    behind = {byte: name for name, found in sets.items() for byte in range(256) if found.match(bytes((byte,)))}
    return _Part(re.compile(rb"[%b]*+" % run if run else rb""), behind)


_GAPS = rb" \t\r\n"
_ENDS = {"empty": rb"/", "end": rb">"}
_PARTS = {
    "begun": _part(b"", closing=rb"/", name=_FIRST),
    "name": _part(_FURTHER, gap=_GAPS, **_ENDS),
    "gap": _part(_GAPS, attribute=_FIRST, **_ENDS),
    "attribute": _part(_FURTHER, equals=_GAPS, value=rb"="),
    "equals": _part(_GAPS, value=rb"="),
    "value": _part(_GAPS, quoted=rb"\"'"),
    "quoted": _part(b"", gap=_GAPS, **_ENDS),  # and the quotes around
    "empty": _part(b"", end=rb">"),
    "closing": _part(b"", closing_name=_FIRST),
    "closing_name": _part(_FURTHER, closing_gap=_GAPS, end=rb">"),
    "closing_gap": _part(_GAPS, end=rb">"),
}  # fmt: skip


@lru_cache(maxsize=1)
def _in_no_name() -> re.Pattern[str]:
    """Returns a pattern of the characters beyond ASCII that no name has (XML 1.0, productions 4 and 4a)."""
    # Made when first needed: nearly all names are ASCII.
    return re.compile(
        "[^\x00-\x7f\xb7\xc0-\xd6\xd8-\xf6\xf8-\u037d\u037f-\u1fff\u200c\u200d\u203f\u2040\u2070-\u218f\u2c00-\u2fef"
        "\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff]"
    )


@lru_cache(maxsize=16)
def _usual(depth: int, attributes: int) -> re.Pattern[bytes]:
    """Returns a pattern of one whole document that consists only of elements, attributes and text and is within the
    bounds."""
    # Nearly every document is such a document, and one match is five times as fast as a step for each tag. The pattern
    # does not compare the names of start and end tags: where they differ, the parser reports the error, and the stream
    # is closed as it would be here.
    start = rb"<" + _NAME + rb"(?>(?:" + _WHOLE_ATTRIBUTE + rb"){0,%d})" % attributes + _SPACE + rb"*+"
    end = rb"</" + _NAME + _SPACE + rb"*+>"
    element = start + rb"(?:/>|>[^<]*+" + end + rb")"
    for _ in range(min(depth, _USUAL_DEPTH) - 1):
        element = start + rb"(?:/>|>[^<]*+(?>(?:" + element + rb"[^<]*+)*)" + end + rb")"
    return re.compile(_SPACE + rb"*+(" + element + rb")" + _SPACE + rb"*+")


def _runs() -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Returns two patterns: of comments and instructions before a root; and of comments, instructions, CDATA sections
    and whole elements inside a root. They accept nothing that single steps would refuse, and are ten times as fast."""
    # They are for documents that have too many elements, and so are refused already, but whose end still has to be
    # found. They compare the names of a start tag and its end tag by a group for each level, which is why there are few
    # levels.
    comment = rb"<!--(?>(?:[^-]++|-(?!-))*)-->"
    cdata = rb"<!\[CDATA\[(?>(?:[^\]]++|\](?!\]>))*)\]\]>"
    instruction = rb"<\?(?>(?:[^?]++|\?(?!>))*)\?>"
    before = comment + rb"|" + instruction
    inside = before + rb"|" + cdata
    content = inside
    for level in range(_RUN_DEPTH):
        start = rb"<(?P<name%d>" % level + _NAME + rb")" + _ATTRIBUTES
        end = rb"</(?P=name%d)" % level + _SPACE + rb"*+>"
        content = inside + rb"|" + start + rb"(?:/>|>[^<]*+(?>(?:(?:" + content + rb")[^<]*+)*)" + end + rb")"
    return (
        re.compile(rb"(?>(?:" + _SPACE + rb"*+(?:" + before + rb"))+)"),
        re.compile(rb"(?>(?:[^<]*+(?:" + content + rb"))+)"),
    )


_RUN_BEFORE_ROOT, _RUN = _runs()


class Framer:
    """Splits a stream into documents. `feed` bytes, then call `next_document` until it returns None.

    1. The documents that are found do not depend on how the bytes are cut.
    2. Each byte is looked at a bounded number of times. Only the document that has begun, and bytes behind it, are
       kept.
    3. A document that is returned has no DTD, and is within the bounds of length, depth, attributes and elements.
    4. Markup that can never become a document is refused as soon as it has come, and not when the time for a document
       is over, so that a client with another protocol is told at once. Then the stream is unreadable, and each further
       call raises the same error.
    5. A document that breaks a bound, and whose end can be found, raises an error that leaves the stream open: the next
       document is read.

    A framer must never hold up a server for long: no pattern looks twice at the same bytes, whatever they are.
    """

    def __init__(self, limits: Limits = Limits(), *, keep_too_large: bool = False) -> None:  # noqa: B008 - frozen
        """keep_too_large: True to keep the bytes of a document over the limit in `too_large`, where a client finds the
        ids of messages that it has to release."""
        self._limits = limits
        self._bound = limits.document
        self._why = ""
        self._keep_too_large = keep_too_large
        self.too_large = b""
        self._usual = _usual(limits.depth, limits.attributes)
        self._few = limits.elements * _SHORTEST  # bytes that cannot hold more than the elements allowed
        self._in_runs = limits.depth >= _LISTED_DEPTH and limits.attributes >= _LISTED_ATTRIBUTES
        self.buffer: bytes | bytearray = b""
        """The bytes that have come. When it is empty, nothing is left to read; when it is not, something may be."""
        # Documents that are read are not deleted from the buffer one by one: that would move all that is behind them.
        self._start = 0  # where the next document, or white space before it, stands; 0 when it has been begun
        self._last = -1  # where the last `qs>` of the buffer is, if that is known
        self._failed: ProtocolError | None = None
        self._behind: bytes | bytearray = b""  # the last bytes of what has been passed over, once there was a document
        self.early = False
        """True once a document has shown that it is an early client's: CR LF CR LF is in the white space behind it, or
        its root declares one of the prefixes of `_DOTNET`."""
        self._reset()

    def _reset(self) -> None:
        self.begun = False
        """True while a document is begun and not complete. Its first byte is then the first of the buffer."""
        self._ended = False
        self._at = 0  # everything before has been looked at
        self._end = 0  # nothing from here on is looked at: the bytes have not come, or are over the limit
        self._until = b""  # inside a comment, CDATA section or instruction: its end
        self._opened = 0  # where the markup that is still open starts
        self._part = ""  # inside a tag: the part of it that is due
        self._quote = 0  # inside a tag: the quote that is open, or 0
        self._values = 0  # inside a tag: attributes seen
        self._names: list[bytes] = []
        self._depth = 0
        self._pieces = 0  # elements, comments, CDATA sections and instructions begun
        self._root = 0  # where the root's tag starts
        self._broken: str | None = None  # the bound that this document breaks
        self._far = sys.maxsize  # bytes, within which one of too many elements has to end
        self._most = self._bound  # bytes, within which the document has to end
        self._possible = 0  # everything before is free of bytes that no document has

    def bound(self, document: int, why: str = "") -> None:
        """Changes the bound of a document's bytes, for the document that has begun and for all later ones. why: text
        that follows the number in the error."""
        self._bound = document
        self._most = min(document, self._far)
        self._why = why

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Takes what came from the peer, in pieces of any size."""
        if self._failed is not None:
            return
        if self._start >= len(self.buffer):
            if data and data[0] <= BLANK:
                self._look_behind(data)
            # Nothing is left: the bytes of the socket are the buffer, without a copy. Most documents come in one piece.
            self.buffer = data if type(data) is bytes else bytes(data)
            self._start = 0
        else:
            own = self._own()
            own += data
        self._last = -1

    def _forget(self) -> None:
        """Drops the whole buffer, whose bytes have all been read."""
        if self.buffer:
            self._behind = self.buffer[-_UNFINISHED:]
        self.buffer, self._start = b"", 0

    # An empty line may come together with its document, or later, and in pieces.

    def _look_behind(self, data: bytes | bytearray | memoryview) -> None:
        """Looks for an empty line in white space that comes after all earlier bytes have been read."""
        self._forget()
        spaces = SPACES.match(data)
        if self._behind and spaces is not None:
            self._behind += spaces[0]
            self.early = self.early or EMPTY_LINE in self._behind
            self._behind = self._behind[-_UNFINISHED:]

    def _look_at_end(self, end: int) -> None:
        """Looks for an empty line behind a document that was read. end: where the white space behind it ends."""
        self.early = self.buffer.find(EMPTY_LINE, self.buffer.rfind(b">", 0, end), end) >= 0

    def _look_at_root(self, document: bytes, root: int) -> None:
        """Looks for the prefixes that a .NET serializer declares, to recognize an early client whose documents end
        without an empty line. root: where the tag of the root starts."""
        if not self.early and document.find(_XMLNS, root, document.find(b"<", root + 1)) >= 0:
            tag = _TAG.match(document, root)
            self.early = tag is not None and any(name in _DOTNET for name, _ in _ATTRIBUTE.findall(tag[3] or b""))

    def _own(self) -> bytearray:
        """Returns the buffer as a bytearray, which can grow, and drops the bytes before the next document."""
        buffer = self.buffer
        if isinstance(buffer, bytes):
            self.buffer = buffer = bytearray(memoryview(buffer)[self._start :])
        else:
            del buffer[: self._start]
        if self._last > 0:
            self._last = max(0, self._last - self._start)
        self._start = 0
        return buffer

    def take_plain(
        self,
        read: Callable[[bytes | bytearray, int], tuple[T, int] | None],
        take: Callable[[T], object],
        most: int,
    ) -> int:
        """Lets `read` read the next documents, one after the other, passes over them, and hands each result to `take`.
        Stops at a document that `read` declines, at one of which a part has been looked at before, and after `most`.
        Returns the number of documents.

        read: takes the data and the offset at which a document begins; returns a result and the offset at which the
        document ends, or None to decline.
        """
        if self.begun:
            return 0
        buffer, start, count = self.buffer, self._start, 0
        length = len(buffer)
        while start < length and count < most:
            if length - start > _LONG:
                self._start = start
                if not self._has_end():
                    break
            found = read(buffer, start)
            if found is None:
                break
            event, end = found
            if end - start > self._most:  # with white space around it: `next_document` counts the bytes exactly
                break
            if buffer[end - _UNFINISHED] <= BLANK and not self.early:
                self._look_at_end(end)
            take(event)
            count += 1
            start = end
        if start < length:
            self._start = start
        elif count:
            self._behind = buffer[-_UNFINISHED:]
            self.buffer, self._start = b"", 0
        return count

    def _has_end(self) -> bool:
        """Tells whether a document may end in the buffer; if not, no way of reading is worth trying. Looks once at each
        byte."""
        if self._last < 0:
            self._last = max(0, self.buffer.rfind(b"qs>"))
        return self._last > self._start

    def next_document(self) -> bytes | None:
        """Returns the next whole document, or None until more bytes have come.

        Raises ProtocolError. Two errors make the stream unreadable, and every later call raises them again: 400 for
        bytes that are not XML, a DOCTYPE or tags that do not match, and 413 for a document that is too long. A 400 for
        a document over another bound skips the document and leaves the stream open.
        """
        if self._failed is not None:
            raise self._failed
        if not self.begun:
            if self._start >= len(self.buffer):
                self._forget()
                return None
            # Only before the first step of a document, or the bytes of one that comes in pieces are looked at again.
            long = len(self.buffer) - self._start > _LONG
            whole = None if long and not self._has_end() else self._usual.match(self.buffer, self._start)
            if whole is not None and whole.end(1) - whole.start(1) <= self._most:
                document = whole[1]
                if len(document) <= self._few or self._has_few(document):
                    self._look_at_root(document, 0)
                    end = self._start = whole.end()
                    if self.buffer[end - _UNFINISHED] <= BLANK and not self.early:
                        self._look_at_end(end)
                    return document
        try:
            return self._scan()
        except ProtocolError as error:
            if error.error.closes:
                self.close(error)
            raise

    def _has_few(self, document: bytes) -> bool:
        """Tells whether a document that consists only of tags and text has no more elements than allowed."""
        begun = document.count(b"<")
        return begun <= self._limits.elements or begun - document.count(b"</") <= self._limits.elements

    def close(self, error: ProtocolError) -> None:
        """Stops reading: drops the kept bytes, and all bytes that come later. error: is raised by all later calls."""
        if self._failed is None and self._keep_too_large and error.error is TOO_LARGE:
            self.too_large = bytes(self.buffer)
        # Where the next document begins is not known any more: what is taken for one could be a part of a payload.
        self._failed = error
        self.buffer, self._start = b"", 0
        self.begun = False

    def _scan(self) -> bytes | None:
        if not self.begun and not self._begin():
            return None
        # One byte beyond the bound is looked at, so that a document of exactly as many bytes passes.
        self._end = min(len(self.buffer), self._most + 1)
        while self._step():
            if self._ended:
                return self._take()
        too_large = self._end > self._most
        self._check_bytes(self._end, quickly=not too_large)
        if too_large:
            raise self._too_large()
        return None

    def _check_bytes(self, end: int, quickly: bool) -> None:
        """Refuses bytes that no document has. quickly: True to let a long piece of ASCII text pass with control
        characters other than NUL, which the parser will find; the check takes a tenth of the time. False for a document
        that no parser will see: all its bytes are checked, so that the result does not depend on how they are cut."""
        piece = self.buffer[self._possible if quickly else 0 : end]
        self._possible = end
        if quickly and len(piece) > _LONG and piece.isascii() and 0 not in piece:
            return
        if piece.translate(_IMPOSSIBLE) != piece:
            raise _malformed("a byte that no XML in UTF-8 has")

    def _step(self) -> bool:
        """Goes past the next piece of markup. Returns False when more bytes are needed."""
        if self._until:
            return self._finish_section()
        if self._part:
            return self._finish_tag()
        return self._next_markup()

    # -- the beginning and the end of a document ----------------------------------------------------------------

    def _begin(self) -> bool:
        buffer = self._own()
        start = 0
        while (found := _NOT_SPACE.search(buffer, start)) is not None:
            start = found.start()
            # A program that writes a byte order mark at all writes it with each document, not only with the first.
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
            head = bytes(buffer[:8])
            raise _malformed(f"a document begins with '<', not with {head!r}; documents are XML in UTF-8, one by one")
        self.begun = True
        return True

    def _take(self) -> bytes:
        too_large = self._at > self._most
        if too_large or self._broken is not None:  # no parser will see this document
            self._check_bytes(min(self._at, self._most + 1), quickly=False)
        if too_large:
            raise self._too_large()
        with memoryview(self.buffer) as view:  # a slice of the buffer would be one more copy
            document = bytes(view[: self._at])
        spaces = SPACES.match(self.buffer, self._at)
        self._start = self._at if spaces is None else spaces.end()
        if not self.early:
            self._look_at_end(self._start)
        if self._start < len(self.buffer):
            self._own()
        else:
            self._forget()
        broken, root = self._broken, self._root
        self._look_at_root(document, root)
        self._reset()
        if broken is not None:
            raise ProtocolError(BAD_REQUEST, broken, _req(document, root))
        return document

    def _too_large(self) -> ProtocolError:
        if self._most < self._bound:  # the document has too many elements, and its end is too far away
            return ProtocolError(TOO_LARGE, f"{self._too_many()}, and does not end within {_REST} bytes behind these")
        return ProtocolError(TOO_LARGE, f"the document is over the limit of {self._most} bytes{self._why}")

    def _too_many(self) -> str:
        return f"the document has more than {self._limits.elements} elements, comments and sections"

    # -- markup ---------------------------------------------------------------------------------------------------

    def _next_markup(self) -> bool:
        """Goes from text to the next tag or section, and past it if it is whole. Returns False when more bytes are
        needed."""
        buffer, end = self.buffer, self._end
        if self._pieces > self._limits.elements:  # only the end of the document is of interest
            run = (_RUN if self._depth else _RUN_BEFORE_ROOT).match(buffer, self._at, end)
            if run is not None:
                self._at = run.end()
        elif self._depth == 2 and self._in_runs:  # inside of a child of `qs`, which may be a list
            self._pass_listed()
        found = buffer.find(b"<", self._at, end)
        if self._depth == 0:  # before the root element: only white space between markup
            text = _NOT_SPACE.search(buffer, self._at, end if found < 0 else found)
            if text is not None:
                raise _malformed(f"text outside the root element: {bytes(buffer[text.start() : text.start() + 8])!r}")
        if found < 0:
            self._at = end
            return False
        self._at = self._opened = found
        tag = _TAG.match(buffer, found, end)
        if tag is not None:  # nearly all tags are there as a whole
            self._whole_tag(tag)
            return True
        if found + 1 == end:
            return False
        if buffer[found + 1] in b"!?":
            return self._open_section()
        self._part = "begun"
        self._at = found + 1
        self._values = 0
        return True

    def _pass_listed(self) -> None:
        """Goes past the entries of a list that are complete in the buffer, with the result that single steps have."""
        run = _LISTED.match(self.buffer, self._at, self._end)
        if run is None:
            return
        start, end = run.span()
        elements = self.buffer.count(b"</", start, end)
        if self._pieces + elements > self._limits.elements:
            self._in_runs = False  # there is one too many: steps find it, in this stream always
            return
        self._at = end
        self._pieces += elements - 1
        self._count()

    def _whole_tag(self, tag: re.Match[bytes]) -> None:
        closing, opening, attributes, empty = tag.groups()
        self._at = tag.end()
        self._check_characters()
        if closing is not None:
            self._close(closing)
        else:
            # Fewer bytes than attributes allowed hold no more of them, and need not be counted.
            values = len(_VALUE.findall(attributes)) if len(attributes) > self._limits.attributes else 0
            self._open(opening, values, bool(empty))

    def _finish_tag(self) -> bool:
        """Goes on inside a tag that comes in pieces, from the end of the last piece to its `>`. Returns False when more
        bytes are needed."""
        buffer = self.buffer
        while self._part != "end":
            if self._quote and not self._finish_value():
                return False
            if self._part == "quoted":
                self._pass_attributes()
            run, then = _PARTS[self._part]
            found = run.match(buffer, self._at, self._end)
            self._at = self._at if found is None else found.end()
            if self._at >= self._end:
                return False
            byte = buffer[self._at]
            if byte not in then:
                raise self._not_a_tag(byte)
            before, self._part = self._part, then[byte]
            if self._part == "quoted":
                self._quote = byte
            self._at += 1
        self._end_tag(empty=before == "empty")
        return True

    def _pass_attributes(self) -> None:
        """Goes past the attributes that are complete in the buffer, with the result that single steps have. Without
        this, a long tag that comes in two pieces takes seconds."""
        run = _WHOLE_ATTRIBUTES.match(self.buffer, self._at, self._end)
        if run is not None:
            self._values += len(_VALUE.findall(run[0]))
            self._at = run.end()

    def _finish_value(self) -> bool:
        at = self.buffer.find(self._quote, self._at, self._end)
        if self.buffer.find(b"<", self._at, self._end if at < 0 else at) >= 0:
            raise _malformed("'<' inside the value of an attribute; it is written &lt;")
        if at < 0:
            self._at = self._end
            return False
        self._quote = 0
        self._values += 1
        self._at = at + 1
        return True

    def _end_tag(self, empty: bool) -> None:
        self._part = ""
        name = _TAG_NAME.match(self.buffer, self._opened, self._end)
        if name is None:  # cannot be: the parts of the tag have been looked at
            raise self._not_a_tag(0x3E)
        self._check_characters()
        if name[1]:
            self._close(name[2])
        else:
            self._open(name[2], self._values, empty)

    def _check_characters(self) -> None:
        """Refuses a tag that is not UTF-8, or with characters in its names that no name has. Skips the check in a
        document of too many elements, which is refused already, and whose elements `_RUN` skips unchecked too."""
        tag = self.buffer[self._opened : self._at]
        if tag.isascii() or self._pieces > self._limits.elements:
            return
        try:
            tag.decode()
        except UnicodeDecodeError:
            raise _malformed(f"a tag that is no UTF-8: {bytes(tag[:40])!r}") from None
        if _in_no_name().search(_VALUE.sub(b"", tag).decode()) is not None:
            raise _malformed(f"not a name: {bytes(tag[:40])!r}")

    def _not_a_tag(self, byte: int) -> ProtocolError:
        begun = bytes(self.buffer[self._opened : self._opened + 40])
        return _malformed(f"'<' inside a tag: {begun!r}" if byte == 0x3C else f"not a tag: {begun!r}")

    def _count(self) -> None:
        self._pieces += 1
        # The document is refused, and the next one should still be read. So the end of this one is looked for, but not
        # further than `_REST`. Without that bound, 8 MiB of tags held up the framer for seven seconds.
        if self._pieces == self._limits.elements + 1:
            self._broken = self._broken or self._too_many()
            self._far = self._opened + _REST
            self._most = min(self._bound, self._far)
            self._end = min(self._end, self._most + 1)

    def _open(self, name: bytes, attributes: int, empty: bool) -> None:
        self._count()
        if self._depth == 0:
            self._root = self._opened
        if attributes > self._limits.attributes and self._broken is None:
            self._broken = f"<{_shown(name)}> has more than {self._limits.attributes} attributes"
        if self._depth >= self._limits.depth:
            # Deeper names are not kept: a bomb must not cost memory. The document is refused at its end.
            self._broken = self._broken or f"elements are nested deeper than {self._limits.depth}, at <{_shown(name)}>"
        elif not empty:
            self._names.append(name)
        if empty:
            self._ended = self._depth == 0
        else:
            self._depth += 1

    def _close(self, name: bytes) -> None:
        if self._depth == 0:
            raise _malformed(f"</{_shown(name)}> closes nothing")
        if self._depth <= self._limits.depth:  # deeper names were not kept: `_open`
            expected = self._names.pop()
            if expected != name:
                raise _malformed(f"</{_shown(name)}> where </{_shown(expected)}> is due")
        self._depth -= 1
        self._ended = self._depth == 0

    # -- comments, CDATA, instructions ----------------------------------------------------------------------------

    def _open_section(self) -> bool:
        head = bytes(self.buffer[self._at : min(self._at + _LONGEST_OPENER, self._end)])
        for opener, end in _OPENERS:
            if head.startswith(opener):
                if end == b"]]>" and self._depth == 0:
                    raise _malformed("a CDATA section outside the root element")
                self._until = end
                self._at += len(opener)
                self._count()
                return True
        if any(opener.startswith(head) for opener, _ in _OPENERS):
            return False  # not enough bytes yet to tell
        if _DOCTYPE.startswith(head):
            raise _malformed("a DOCTYPE is refused: documents need none, and entities are never expanded")
        raise _malformed(f"unknown markup {head!r}")

    def _finish_section(self) -> bool:
        ending = self._until
        found = self.buffer.find(ending, self._at, self._end)
        if found < 0:  # its first bytes may have come
            self._at = max(self._at, self._end - len(ending) + 1)
            return False
        if ending is _IN_COMMENT:  # XML 1.0, production 15: `--` ends a comment or is an error
            if found + len(ending) == self._end:
                self._at = found
                return False
            if self.buffer[found + len(ending)] != 0x3E:
                raise _malformed("'--' inside a comment")
            found += 1
        self._at = found + len(ending)
        self._until = b""
        if ending == b"?>":
            self._check_instruction(bytes(self.buffer[self._opened : self._at]))
        return True

    def _check_instruction(self, instruction: bytes) -> None:
        # Only an instruction at the very beginning is a declaration. Its encoding is checked, since the parser is told
        # to take UTF-8 whatever the declaration says.
        if self._opened != 0 or _DECLARATION.match(instruction) is None:
            self._broken = self._broken or "a processing instruction is refused: documents need none"
            return
        encoding = _ENCODING.search(instruction)
        if encoding is not None and encoding[1].lower() not in (b"utf-8", b"utf8"):
            raise _malformed(f"encoding {_shown(encoding[1])!r} is refused: documents are in UTF-8")


def _req(document: bytes, root: int) -> str | None:
    """Returns the correlation id of a document that no parser will see. Returns None if the document has no id, or one
    with escapes: the answer can quote only what needs no decoding."""
    tag = _TAG.match(document, root)
    for name, value in _ATTRIBUTE.findall(tag[3] or b"" if tag else b""):
        if name == b"req":
            req = value[1:-1].decode("utf-8", "replace")
            return req if len(req) <= REQ and is_plain(req) else None
    return None


def _shown(name: bytes) -> str:
    return name[:60].decode("utf-8", "replace")


def _malformed(text: str) -> ProtocolError:
    return ProtocolError(MALFORMED, f"not well-formed: {text}")
