"""Converts pieces of data of elements to bytes and back. A message of the server has two pieces: its payload, and its
headers if there are any."""

import errno
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..engine import Headers, Options, StorageError, UnsupportedError
from ..headers import headers_among
from .base import QueueError
from .elements import LOCKED_DIRECTORY

is_piece = re.compile("[0-9a-zA-Z]+").fullmatch
"""Matches the name of a piece of data, and so of its file."""
_parse_type = re.compile(r"(binary|string|table)([?*]{0,2})").fullmatch
DEFAULT_SCHEMA = "body=binary,header=table?"
DEFAULT_BODY = "body"
HEADER = "header"
"""The piece that holds a message's headers, if it is a table: so do the programs that came with dirq."""
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n"}
_UNESCAPES = {escape: character for character, escape in _ESCAPES.items()}
_to_escape = re.compile(r"[\\\t\n]")
_escaped = re.compile(r"\\[\\tn]")


class Schema:
    """The pieces of data of an element. types: binary, string or table, by piece; mandatory: the pieces that every
    element has. Both are empty without a schema."""

    def __init__(self, schema: Mapping[str, str] | None) -> None:
        """Parses a schema, as given to `Queue`. QueueError for a wrong one."""
        self.types: dict[str, str] = {}
        self.mandatory: set[str] = set()
        if not schema:
            return
        if not isinstance(schema, Mapping):
            raise QueueError(f"invalid schema: {schema!r} (a dictionary of names and types)")
        for name, kind in schema.items():
            self._add(name, kind)
        if not self.mandatory:
            raise QueueError("invalid schema: no mandatory data (at least one type has to be without a question mark)")

    def _add(self, name: str, kind: str) -> None:
        if not isinstance(name, str) or not is_piece(name):
            raise QueueError(f"invalid schema name: {name!r} (only letters and digits)")
        # Its file would have the name of the directory that is the lock.
        if name == LOCKED_DIRECTORY:
            raise QueueError(f"invalid schema name: {name!r} (in an element, it is the lock)")
        if not isinstance(kind, str):
            raise QueueError(f"invalid data type for schema specification: {kind!r} (a string)")
        found = _parse_type(kind)
        if found is None:
            raise QueueError(f"invalid schema data type: {kind!r} (binary, string or table; add ? if it is optional)")
        self.types[name] = found[1]
        if "?" not in found[2]:  # the * is for Perl only
            self.mandatory.add(name)

    def needed(self) -> dict[str, str]:
        """Checks that there is a schema. QueueError without one."""
        if not self.types:
            raise QueueError("unknown schema: to add and to get elements, give the queue a schema")
        return self.types

    def encode(self, data: Mapping[str, Any]) -> dict[str, bytes]:
        """Returns the contents of an element's files. QueueError for data that does not fit the schema."""
        types = self.needed()
        if not isinstance(data, Mapping):
            raise QueueError(f"unexpected data: {data!r} (a dictionary)")
        for name in data:
            if name not in types:
                raise QueueError(f"unexpected data: {name} (not in the schema)")
        for name in types:
            if name in self.mandatory and name not in data:
                raise QueueError(f"missing mandatory data: {name}")
        return {name: _ENCODERS[types[name]](name, value) for name, value in data.items()}

    def decode(self, name: str, content: bytes, path: str) -> Any:
        """Converts the content of a file to the data of its piece. OSError for a string that is not UTF-8, QueueError
        for a wrong table."""
        kind = self.types[name]
        if kind == "binary":
            return content
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise OSError(errno.EILSEQ, f"cannot read, not UTF-8 ({error})", path) from None
        return text if kind == "string" else decode_table(text)


def _encode_binary(name: str, value: object) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise QueueError(f"unexpected binary data in {name}: {value!r} (bytes)")
    return bytes(value)


def _encode_string(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise QueueError(f"unexpected string data in {name}: {value!r} (a string)")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise QueueError(f"unexpected string data in {name}: not to be written as UTF-8 ({error})") from None


def _encode_table(name: str, value: object) -> bytes:
    if not isinstance(value, Mapping):
        raise QueueError(f"unexpected table data in {name}: {value!r} (a dictionary)")
    return _encode_string(name, encode_table(value))


_ENCODERS: dict[str, Callable[[str, object], bytes]] = {
    "binary": _encode_binary,
    "string": _encode_string,
    "table": _encode_table,
}


def encode_table(table: Mapping[str, str]) -> str:
    """Returns a line `key TAB value` for each entry, sorted and with escapes. QueueError for anything but strings."""
    for key, value in table.items():
        for text in (key, value):
            if not isinstance(text, str):
                raise QueueError(f"invalid hash value type: {text!r} (keys and values of a table are strings)")
    return "".join(f"{_escape(key)}\t{_escape(table[key])}\n" for key in sorted(table))


def decode_table(text: str) -> dict[str, str]:
    """Parses the lines of `encode_table`. Of equal keys, the last one counts. QueueError for a line without exactly one
    tab."""
    table: dict[str, str] = {}
    lines = text.strip("\n")
    for line in lines.split("\n") if lines else ():
        if line.count("\t") != 1:
            raise QueueError(f"unexpected hash line: {line!r} (a key, a tab, a value)")
        key, value = line.split("\t")
        table[_unescape(key)] = _unescape(value)
    return table


def _escape(text: str) -> str:
    return _to_escape.sub(lambda found: _ESCAPES[found[0]], text)


def _unescape(text: str) -> str:
    return _escaped.sub(lambda found: _UNESCAPES[found[0]], text)


@dataclass(frozen=True)
class Body:
    """The pieces of an element that hold a message. piece: the name of the payload's, which is also the name of its
    file; text: True if the payload has to be UTF-8; header: True if headers have a place; mandatory: True if every
    element has that piece, also without headers."""

    piece: str
    text: bool
    header: bool
    mandatory: bool

    def check(self, payload: bytes, headers: Headers) -> None:
        """Checks a payload and headers. UnsupportedError if the element has no place for them."""
        if headers and not self.header:
            raise UnsupportedError(
                f"the schema of this queue has no piece {HEADER}=table?, in which headers would be: make the queue "
                "with it, or use one of another storage"
            )
        if self.text:
            try:
                payload.decode()
            except UnicodeDecodeError as error:
                raise UnsupportedError(
                    f"the schema of this queue has {self.piece}=string, and the payload is not UTF-8 ({error.reason} "
                    f"at byte {error.start}); {self.piece}=binary takes any bytes"
                ) from None


def parse_schema(text: str) -> dict[str, str]:
    """Parses `body=string,header=table?` to types by name. StorageError."""
    types: dict[str, str] = {}
    for part in text.split(","):
        name, equals, kind = (word.strip() for word in part.partition("="))
        if not equals or not name or name in types:
            raise StorageError(f"schema {text!r}: NAME=TYPE,... with each name once; this has {part.strip()!r}")
        types[name] = kind
    try:
        Schema(types)
    except QueueError as error:
        raise StorageError(f"schema {text!r}: {error}") from None
    return types


def body_of(options: Options) -> Body:
    """Returns the piece of data that holds a message's payload. StorageError if elements of the queue's schema cannot
    be messages."""
    types = parse_schema(options.pieces or DEFAULT_SCHEMA)
    piece = options.body or (DEFAULT_BODY if DEFAULT_BODY in types or len(types) > 1 else next(iter(types)))
    schema = Schema(types)
    if piece not in types:
        raise StorageError(f"body = {piece!r}: the schema has no such piece of data, it has {', '.join(types)}")
    if schema.types[piece] == "table":
        raise StorageError(f"body = {piece!r}: a payload is bytes, so its type is binary or string, not table")
    has_header = schema.types.get(HEADER) == "table"
    others = sorted(schema.mandatory - {piece} - ({HEADER} if has_header else set()))
    if others:
        raise StorageError(
            f"the schema wants {', '.join(others)} in every element, and a message has its payload ({piece}) and its "
            "headers only: make them optional, with a ? behind the type"
        )
    return Body(piece, schema.types[piece] == "string", has_header, has_header and HEADER in schema.mandatory)


def encode_headers(headers: Headers) -> bytes:
    """Returns the content of the piece with a message's headers."""
    return encode_table(dict(headers)).encode()


def decode_headers(content: bytes) -> Headers:
    """Returns the headers in a piece, those that can be some: other programs may write anything there. In the order of
    their names, as a table has no other."""
    try:
        table = decode_table(content.decode(errors="replace"))
    except QueueError:
        return ()
    return headers_among(sorted(table.items()))
