"""Checks payloads with a JSON Schema, by the library jsonschema-rs.

The library is imported when the first JSON Schema is compiled. It would get a `$ref` from the network by itself; here
everything comes from the bytes of the source. Its regular expressions take time in proportion to a value's length.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from qs_schemas.extras import NotInstalledError

from .faults import PayloadFault, SchemaError, shortened
from .plain_json_schema import is_plain
from .sources import JSON_BASE, Source, parse_json_schema

_EXTRA = "json-schema"
_MASK = "\N{REPLACEMENT CHARACTER}"
"""Stands in the library's texts where the value would: a value may be the whole payload."""
_VALUE = 100
_PASSED = 2000
"""The most values that are passed on the way to one whose line is wanted: that is a millisecond."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\r\n]*+")
_TOO_LARGE = PayloadFault(None, "", "has a number that is too large")
_TOO_DEEP = PayloadFault(None, "", "is nested too deeply")


class JsonSchema:
    """A compiled JSON Schema."""

    def __init__(self, source: Source) -> None:
        """Compiles a source. Raises SchemaError."""
        try:
            import jsonschema_rs as library  # noqa: PLC0415 - of an extra
        except ModuleNotFoundError as error:
            raise SchemaError(f"{source.main}: {NotInstalledError(_EXTRA, error)}") from None
        self._files = source.files
        self._invalid = library.ValidationError
        uri = f"{JSON_BASE}{source.main}"
        schema = parse_json_schema(source.main, source.files[uri])
        try:
            self._validator: Any = library.validator_for(
                schema,
                retriever=self._retrieve,
                base_uri=uri,
                pattern_options=library.RegexOptions(),
                mask=_MASK,
            )
        except (ValueError, library.ValidationError, library.ReferencingError) as error:
            text = getattr(error, "message", None) or str(error)
            raise SchemaError(f"{source.main}: {shortened(text)}") from None
        self.is_plain = is_plain(schema)

    def _retrieve(self, uri: str) -> Any:
        found = self._files.get(uri)
        if found is None:
            raise LookupError(f"{uri} is no file in the directory of the schemas")
        return parse_json_schema(uri.removeprefix(JSON_BASE), found)

    def fault(self, payload: bytes) -> PayloadFault | None:
        """Returns the first thing that is wrong with a payload, or None."""
        try:
            text, document = _parsed(payload)
        except _NoJsonError as error:
            return error.args[0]  # type: ignore[no-any-return]
        try:
            self._validator.validate(document)
        except self._invalid as error:
            return _of_error(error, text)
        except ValueError:  # the library reads some 250 levels of what the schema looks at
            return _TOO_DEEP
        return None


def _of_error(error: Any, text: str) -> PayloadFault:
    """Returns the fault of an error of the library. text: that of the payload."""
    steps: list[str | int] = error.instance_path
    path = "".join(f"/{step}" for step in steps)
    value = shortened(json.dumps(error.instance, ensure_ascii=False), _VALUE)
    return PayloadFault(_line(text, steps), shortened(path, 200), shortened(error.message).replace(_MASK, value))


class _NoJsonError(Exception):
    """Reports that a payload is no JSON. Its argument is the fault."""


def _parsed(payload: bytes) -> tuple[str, Any]:
    """Returns the text of a payload, and the document. Raises _NoJsonError."""
    if not payload:
        raise _NoJsonError(PayloadFault(None, "", "is empty: a JSON document is wanted"))
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        line = payload.count(b"\n", 0, error.start) + 1
        raise _NoJsonError(PayloadFault(line, "", f"is not UTF-8 at byte {error.start}")) from None
    if text.startswith("\ufeff"):
        raise _NoJsonError(PayloadFault(1, "", "begins with a byte order mark, which JSON has not"))
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        reason = f"is no JSON, column {error.colno}: {error.msg}"
        raise _NoJsonError(PayloadFault(error.lineno, "", reason)) from None
    except RecursionError:
        raise _NoJsonError(_TOO_DEEP) from None
    except ValueError:  # Python reads whole numbers of some thousand digits at most
        raise _NoJsonError(_TOO_LARGE) from None
    if _SURROGATE.search(text) is not None:
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _NoJsonError(PayloadFault(None, "", "has half of a surrogate pair, which is no character")) from None
    return text, document


def _line(text: str, steps: Sequence[str | int]) -> int | None:
    """Returns the line of a part of a document, None if it would take long. steps: the way to it, names and indexes."""
    at = _skip(text, 0)
    left = _PASSED
    for step in steps:
        is_object = text[at] == "{"
        at = _skip(text, at + 1)
        index = 0
        while True:
            if is_object:
                name, at = _DECODER.raw_decode(text, at)
                at = _skip(text, _skip(text, at) + 1)
                if name == step:
                    break
            elif index == step:
                break
            _, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
            index += 1
            left -= 1
            if not left:
                return None
    return text.count("\n", 0, at) + 1


def _skip(text: str, at: int) -> int:
    """Returns the offset of the next character that is no white space."""
    return _SPACE.match(text, at).end()  # type: ignore[union-attr] # matches anything


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        name = shortened(json.dumps(twice, ensure_ascii=False), _VALUE)
        raise _NoJsonError(PayloadFault(None, "", f"has the name {name} twice in one object"))
    return found


def _no_constant(name: str) -> Any:
    raise _NoJsonError(PayloadFault(None, "", f"is no JSON: {name} is no number of JSON"))


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _NoJsonError(_TOO_LARGE)
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_no_constant, parse_float=_float)
