"""Reads the access file, a TOML file that says who may do what, and keeps the content that was read last.

docs/security.md describes the file. A file that cannot be understood as a whole is refused as a whole: a rule that was
left out because of a mistake in it could give somebody a right, or take one.
"""

import logging
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import StartError
from .failures import Failures
from .principal import Principal, Right

_LISTED = (Right.READ, Right.WRITE, Right.CONFIGURE)
_LISTS = ("tokens", "certificates", *(right.value for right in _LISTED))
_FLAGS = ("admin", "monitor")
_TOKEN = re.compile(r"sha256:([0-9a-fA-F]{64})")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")
"""Characters that garble a log, or that an answer cannot carry."""
_NAME = 200
"""Characters of a principal's name."""
_SHOWN = 30
"""Characters of a key that an error shows: a token or its hash in the wrong place is longer."""


class AccessFileError(Exception):
    """Reports that the access file cannot be used. The text says where the file is wrong and what to do, and never
    shows a hash."""


class AccessTable:
    """Holds the content of an access file. The content never changes, so all threads read it without a lock."""

    def __init__(self, path: str, content: Mapping[str, Any]) -> None:
        """path: for error texts; content: the parsed TOML. Raises AccessFileError if anything in it is wrong."""
        self._path = path
        self.principals: dict[str, Principal] = {}
        """Name -> principal, in the order of the file."""
        self.tokens: dict[bytes, str] = {}
        """SHA-256 of a token -> name of its principal."""
        self.certificates: dict[str, str] = {}
        """Name in a client certificate -> name of its principal, in the order of the file."""
        self.anonymous: Principal | None = None
        """The rights of clients that have said nothing, None if they have none."""
        self._refuse_unknown(content, ("principals", "anonymous"), "the file")
        for name, section in self._table(content.get("principals", {}), "principals").items():
            self._add(name, self._table(section, f"principals.{name}"))
        if "anonymous" in content:
            where = "anonymous"
            section = self._table(content["anonymous"], where)
            self._refuse_unknown(section, [right.value for right in _LISTED], where)
            self.anonymous = Principal(None, self._patterns(section, where))

    def _add(self, name: str, section: Mapping[str, Any]) -> None:
        where = f"principals.{name}"
        if not name or len(name) > _NAME or _CONTROL.search(name):
            raise self._error(
                _shown(name), f"is no name of a principal: 1 to {_NAME} characters, no control characters"
            )
        self._refuse_unknown(section, (*_LISTS, *_FLAGS), where)  # a mistyped right must neither give nor take rights
        flags = {flag: section.get(flag, False) for flag in _FLAGS}
        for flag, value in flags.items():
            if not isinstance(value, bool):
                raise self._error(where, f"{flag} has to be true or false")
        self.principals[name] = Principal(name, self._patterns(section, where), **flags)
        for token in self._strings(section, "tokens", where):
            found = _TOKEN.fullmatch(token)
            if found is None:
                raise self._error(where, "a token is written as sha256: and 64 hex digits; `qs token` makes one")
            self._assign(self.tokens, bytes.fromhex(found[1]), name, "token")
        for listed in self._strings(section, "certificates", where):
            self._assign(self.certificates, listed, name, "certificate")

    def _assign(self, known: dict[Any, str], key: object, name: str, what: str) -> None:
        # Two principals with the same token could not be told apart.
        other = known.setdefault(key, name)
        if other != name:
            raise self._error(f"principals.{name}", f"has a {what} that {other!r} has too; give each its own")

    def _patterns(self, section: Mapping[str, Any], where: str) -> dict[Right, list[str]]:
        return {right: self._strings(section, right.value, where) for right in _LISTED}

    def _strings(self, section: Mapping[str, Any], key: str, where: str) -> list[str]:
        value = section.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
            raise self._error(where, f"{key} has to be a list of texts in quotes, none of them empty")
        return value

    def _table(self, value: object, where: str) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._error(where, "has to be a table: [principals.NAME] or [anonymous]")
        return value

    def _refuse_unknown(self, section: Mapping[str, Any], known: tuple[str, ...] | list[str], where: str) -> None:
        for key in section:
            if key not in known:
                raise self._error(where, f"has {_shown(key)}, which is unknown: it may have {', '.join(known)}")

    def _error(self, where: str, text: str) -> AccessFileError:
        return AccessFileError(f"{self._path}: {where} {text}" if where else f"{self._path}: {text}")


def _position(error: Exception) -> str:
    """Returns where the TOML is wrong. The error's own text is not used: it may quote a token."""
    found = re.search(r"\(at (line \d+, column \d+|end of document)\)", str(error))
    return f"look at {found[1]}" if found else "a number is too long, or a list too deep"


def _shown(key: str) -> str:
    return repr(key) if len(key) <= _SHOWN else f"a key of {len(key)} characters"


def read_access_file(path: str) -> tuple[AccessTable, list[str]]:
    """Reads an access file. Returns its content, and warnings. Raises AccessFileError if the file cannot be read, or is
    wrong."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of the file that is read, and not of one that takes its place
            content = tomllib.loads(file.read().decode())
    except OSError as error:
        raise AccessFileError(f"cannot read --access {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AccessFileError(f"{path}: is not text in UTF-8") from None
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: numbers and lists may be too long or deep
        raise AccessFileError(f"{path}: is not TOML: {_position(error)}") from None
    table = AccessTable(path, content)
    warnings = []
    if mode & stat.S_IWOTH:
        warnings.append(f"{path} can be changed by everybody on this machine: chmod 600 {path}")
    elif mode & stat.S_IROTH:
        warnings.append(f"{path} can be read by everybody on this machine: chmod 600 {path}")
    if not any(table.tokens) and not table.certificates and table.anonymous is None:
        warnings.append(f"{path} lets nobody in: no principal has a token or a certificate")
    return table, warnings


_logger = logging.getLogger(__name__)


class Access:
    """Keeps the access file of a server. Reads the file when an instance is made, and in `reload`.

    1. A file that cannot be used changes nothing: the rights from the last file that could be used stay in force.
    2. `table` is replaced as a whole, so a request is checked against one version of the file.
    """

    def __init__(self, path: str) -> None:
        """Reads the file. Raises StartError if the file cannot be used."""
        self.path = path
        self.failures = Failures()
        self.changed: Callable[[], None] = lambda: None
        """Called in the loop after the file has been read again."""
        self.table = self._read()

    @property
    def about(self) -> str:
        """A line of text that sums up the file."""
        current = self.table
        anonymous = "nothing but authenticate" if current.anonymous is None else "what [anonymous] lists"
        return (
            f"access file {self.path}: {len(current.principals)} principals, {len(current.tokens)} tokens, "
            f"{len(current.certificates)} certificate names; who has said nothing may do {anonymous}"
        )

    def reload(self) -> None:
        """Reads the file again. Raises StartError if the file cannot be used, and then changes nothing."""
        self.table = self._read()
        self.changed()

    def _read(self) -> AccessTable:
        try:
            table, warnings = read_access_file(self.path)
        except AccessFileError as error:
            raise StartError(str(error)) from None
        for line in warnings:
            _logger.warning("%s", line)
        return table
