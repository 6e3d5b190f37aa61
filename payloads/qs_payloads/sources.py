"""Reads the file of a schema, and the files that it refers to, from one directory and from nowhere else.

1. No file outside the directory is read: not by `..`, an absolute path or a URL, and not through a symbolic link.
2. No connection is opened.
3. An XSD with a DOCTYPE is refused, so that it has no entities.

The bytes of all files are kept together as a `Source`. Whoever compiles it, in this process or another, reads no file:
so all compile the same, also when the files have changed since.
"""

import hashlib
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from .faults import SchemaError, shortened

XSD, JSON = ".xsd", ".json"
SUFFIXES = (XSD, JSON)
JSON_BASE = "file://schemas/"
"""The URI of the directory in a JSON Schema, so that a relative `$ref` has something to be relative to."""
XSD_NAMESPACE = "{http://www.w3.org/2001/XMLSchema}"
_REFERRING = frozenset(f"{XSD_NAMESPACE}{name}" for name in ("include", "import", "redefine", "override"))
_FILES = 1000
_BYTES = 32 * 1024 * 1024
"""The most files and bytes of one schema: more is a mistake, and would be held in memory."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class Source(NamedTuple):
    """The bytes of a schema and of all files that it refers to.

    main: the name of the schema's own file; files: the bytes by path relative to the directory, of JSON Schemas by URI;
    digest: the same for the same bytes.
    """

    main: str
    files: dict[str, bytes]
    digest: str

    @property
    def is_xsd(self) -> bool:
        """True for an XSD, False for a JSON Schema."""
        return self.main.endswith(XSD)


def read_source(directory: Path, name: str) -> Source:
    """Reads a schema. name: its file's name in the directory. Raises SchemaError, OSError."""
    files = _json_files(directory, name) if name.endswith(JSON) else _xsd_files(directory, name)
    digest = hashlib.sha256(repr((name, sorted(files.items()))).encode()).hexdigest()
    return Source(name, files, digest)


def read_within(directory: Path, path: str) -> bytes:
    """Reads a file of the directory. path: relative to it. Raises SchemaError if it is elsewhere or no file."""
    root = os.path.realpath(directory)
    real = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath([root, real]) != root:
        raise SchemaError(f"{path}: is not in the directory of the schemas")
    try:
        # Not to wait for the writer of a named pipe.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise SchemaError(f"{path}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SchemaError(f"{path}: is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            found = file.read(_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(found) > _BYTES:
        raise SchemaError(f"{path}: has more than {_BYTES // 1024 // 1024} MiB")
    return found


def _check_size(files: dict[str, bytes], name: str) -> None:
    if len(files) > _FILES or sum(map(len, files.values())) > _BYTES:
        raise SchemaError(f"{name}: refers to more than {_FILES} files, or {_BYTES // 1024 // 1024} MiB")


# -- XSD --------------------------------------------------------------------------------------------------------------


def _xsd_files(directory: Path, name: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    wanted = [(name, "")]
    while wanted:
        path, by = wanted.pop()
        if path in files:
            continue
        try:
            files[path] = read_within(directory, path)
        except SchemaError as error:
            raise SchemaError(f"{by}{error}") from None
        _check_size(files, name)
        wanted += _references(path, files[path])
    return files


def parse_xsd(path: str, content: bytes) -> Any:
    """Parses a file of an XSD. Returns its root element. Raises SchemaError."""
    from lxml import etree  # noqa: PLC0415 - a JSON Schema does without

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False)
    try:
        root = etree.fromstring(content, parser)
    except etree.XMLSyntaxError as error:
        raise SchemaError(f"{path}:{error.lineno}: is not well-formed: {shortened(str(error.msg))}") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise SchemaError(f"{path}: has a DOCTYPE, which is refused")
    return root


def _references(path: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the path of each file that an XSD refers to, and the place of the reference for an error."""
    for element in parse_xsd(path, content).iterchildren(*_REFERRING):
        location = element.get("schemaLocation")
        if location is None:
            continue
        place = f"{path}:{element.sourceline}: schemaLocation "
        given = unquote(location.strip())
        if _SCHEME.match(given) or given.startswith(("/", "\\")):
            raise SchemaError(
                f"{place}'{shortened(location)}' is not a path within the directory of the schemas: keep a copy there"
            )
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), given))
        if target.startswith(".."):
            raise SchemaError(f"{place}'{shortened(location)}' leads out of the directory of the schemas")
        yield target, place


# -- JSON Schema ------------------------------------------------------------------------------------------------------


def parse_json_schema(path: str, content: bytes) -> Any:
    """Parses a file of a JSON Schema. Raises SchemaError."""
    try:
        return json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise SchemaError(f"{path}:{error.lineno}: is no JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{path}: is no JSON: {shortened(str(error))}") from None


def _json_files(directory: Path, name: str) -> dict[str, bytes]:
    """Returns the bytes of a JSON Schema and of all that it refers to, by URI.

    A reference is a path relative to the file that has it, or the `$id` of a file that stands in the directory itself.
    """
    files: dict[str, bytes] = {}
    ids: dict[str, str] | None = None
    wanted = [f"{JSON_BASE}{name}"]
    while wanted:
        uri = wanted.pop()
        if uri in files:
            continue
        if uri.startswith(JSON_BASE):
            path = unquote(uri.removeprefix(JSON_BASE))
        else:
            ids = _ids(directory) if ids is None else ids
            path = ids.get(uri, "")
        # A file that is not there is left out: a meta-schema is known to the library, and for all else it names the
        # reference.
        if not path or (path != name and not os.path.lexists(os.path.join(directory, path))):
            continue
        files[uri] = read_within(directory, path)
        _check_size(files, name)
        wanted += _json_references(parse_json_schema(path, files[uri]), uri)
    return files


def _ids(directory: Path) -> dict[str, str]:
    """Returns the names of the JSON Schemas of a directory by their `$id`."""
    found = {}
    for path in sorted(directory.glob(f"*{JSON}")):
        try:
            schema = parse_json_schema(path.name, read_within(directory, path.name))
        except SchemaError:
            continue  # it is reported for itself
        if isinstance(schema, dict):
            for key in ("$id", "id"):
                if isinstance(schema.get(key), str):
                    found[urldefrag(schema[key]).url] = path.name
    return found


def _json_references(schema: Any, base: str) -> Iterator[str]:
    """Yields the URI, without its fragment, of everything that a JSON Schema refers to."""
    waiting = [(schema, base)]
    while waiting:
        part, base = waiting.pop()
        if isinstance(part, list):
            waiting += [(entry, base) for entry in part]
        elif isinstance(part, dict):
            for key in ("$id", "id"):
                if isinstance(part.get(key), str):
                    base = _joined(base, part[key])
            for key in ("$ref", "$dynamicRef", "$recursiveRef"):
                if isinstance(part.get(key), str):
                    yield _joined(base, part[key])
            waiting += [(entry, base) for entry in part.values()]


def _joined(base: str, reference: str) -> str:
    try:
        return urldefrag(urljoin(base, reference)).url
    except ValueError:  # no URI: the library says so
        return base
