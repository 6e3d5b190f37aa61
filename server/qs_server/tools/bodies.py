"""Payloads in elements of the layout `dirq`: one piece of the schema holds the payload.

Strings are read and written as bytes, so that sink takes out another program's string that is not UTF-8.
"""

from collections.abc import Mapping
from typing import Any

from qs_storage.dirq.schema import Schema, parse_schema
from qs_storage.engine import StorageError

DEFAULT = "body=string"
_PAYLOAD = "body"
"""The piece for the payload; without it, the first that is no table."""


class Body:
    """A schema, written as in `body=string,header=table?`."""

    def __init__(self, text: str) -> None:
        """Raises StorageError for a bad schema, or one without a place for a payload."""
        given = parse_schema(text)
        checked = Schema(given)
        plain = [name for name, kind in checked.types.items() if kind != "table"]
        if not plain:
            raise StorageError(f"schema {text!r}: nothing in it is a string or binary, to hold the payload")
        self._name = _PAYLOAD if _PAYLOAD in plain else plain[0]
        self._is_text = checked.types[self._name] == "string"
        self.schema = {name: kind.replace("string", "binary") for name, kind in given.items()}
        """For opening a queue: strings are bytes."""
        self.others = sorted(checked.mandatory - {self._name})
        """Mandatory pieces that a payload does not fill."""

    def data(self, payload: bytes) -> dict[str, Any]:
        """Raises StorageError for a string that is not UTF-8."""
        if self._is_text:
            try:
                payload.decode()
            except UnicodeDecodeError:
                raise StorageError(
                    f"a payload is not UTF-8, as a string has to be (--schema {self._name}=binary keeps any bytes)"
                ) from None
        return {self._name: payload}

    def payload(self, data: Mapping[str, Any]) -> bytes:
        """An optional piece may be missing: then the payload is empty."""
        found: bytes = data.get(self._name, b"")
        return found
