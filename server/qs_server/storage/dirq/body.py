"""Finds the payload's piece of data by the options `schema` and `body` of a queue."""

from dataclasses import dataclass

from ..engine import Options, StorageError, UnsupportedError
from .Exceptions import QueueError
from .schema import Schema

DEFAULT_SCHEMA = "body=binary"
DEFAULT_BODY = "body"


@dataclass(frozen=True)
class Body:
    """piece: its name, and so its file's; text: it has to be UTF-8."""

    piece: str
    text: bool

    def check(self, payload: bytes) -> None:
        """UnsupportedError for a payload that cannot be in that piece."""
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
    """Returns the payload's piece. StorageError if elements of the schema cannot be messages."""
    types = parse_schema(options.schema or DEFAULT_SCHEMA)
    piece = options.body or (DEFAULT_BODY if DEFAULT_BODY in types or len(types) > 1 else next(iter(types)))
    schema = Schema(types)
    if piece not in types:
        raise StorageError(f"body = {piece!r}: the schema has no such piece of data, it has {', '.join(types)}")
    if schema.types[piece] == "table":
        raise StorageError(f"body = {piece!r}: a payload is bytes, so its type is binary or string, not table")
    others = sorted(schema.mandatory - {piece})
    if others:
        raise StorageError(
            f"the schema wants {', '.join(others)} in every element, and a message has its payload only ({piece}): "
            "make them optional, with a ? behind the type"
        )
    return Body(piece, schema.types[piece] == "string")
