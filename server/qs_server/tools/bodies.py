"""Payloads in elements of the layout `dirq`: a schema names the pieces of data, of which one holds the payload.

Strings are read and written as the bytes that their files hold, so that sink takes out an element of another program
whose string is not UTF-8.
"""

from collections.abc import Mapping
from typing import Any

from ..storage.dirq.Exceptions import QueueError
from ..storage.dirq.schema import Schema
from ..storage.engine import StorageError

DEFAULT = "body=string"
_PAYLOAD = "body"
"""The piece that holds the payload, if the schema has it; else it is the first that is no table."""


class Body:
    """A schema, written as in `body=string,header=table?`."""

    def __init__(self, text: str) -> None:
        """ValueError when the text is no schema, or has no place for a payload."""
        given: dict[str, str] = {}
        for part in text.split(","):
            name, equals, kind = part.strip().partition("=")
            if not equals or name in given:
                raise ValueError(f"{part!r} is there twice" if equals else f"{part!r} is not NAME=TYPE")
            given[name] = kind
        try:
            checked = Schema(given)
        except QueueError as error:
            raise ValueError(str(error)) from None
        plain = [name for name, kind in checked.types.items() if kind != "table"]
        if not plain:
            raise ValueError("nothing in it is a string or binary, to hold the payload")
        self._name = _PAYLOAD if _PAYLOAD in plain else plain[0]
        self._is_text = checked.types[self._name] == "string"
        self.schema = {name: kind.replace("string", "binary") for name, kind in given.items()}
        """The schema to open a queue with: strings are bytes."""
        self.others = sorted(checked.mandatory - {self._name})
        """The mandatory pieces that a payload does not fill."""

    def data(self, payload: bytes) -> dict[str, Any]:
        """Returns the data of an element. StorageError when the piece is a string and the payload is not UTF-8."""
        if self._is_text and not _is_utf8(payload):
            raise StorageError(
                f"a payload is not UTF-8, as a string has to be (--schema {self._name}=binary keeps any bytes)"
            )
        return {self._name: payload}

    def payload(self, data: Mapping[str, Any]) -> bytes:
        """Returns the payload of an element, empty where an optional piece is missing."""
        found: bytes = data.get(self._name, b"")
        return found


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True
