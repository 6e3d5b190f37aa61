"""Keeps what a message is beside its payload with the file that `qs export` writes, for `qs push` to bring it back.

Headers, priority and group are the extended attributes `user.qs.headers` (a JSON list of pairs), `user.qs.priority` and
`user.qs.group` of the file. The hidden file `.MID.headers`, and so on, has what an attribute has no room for. Queues of
the storage `files` have their headers in the same place.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from qs_schemas import Delivery, GetMessage

from .bounds import MOST_PRIORITY

_HEADERS, _PRIORITY, _GROUP = "headers", "priority", "group"
_MOST_IN_ATTRIBUTE = 1024
"""Bytes of an attribute. ext4 has 4 KiB for all attributes of a file, and a queue of files adds some later."""
_LARGEST = 64 * 1024
"""Bytes that are read of a hidden file: 8 KiB of headers, as JSON."""
_OF_MESSAGE = re.compile("[0-9]{1,18}")
"""Matches the names of files that are messages."""
_OF_SERVER = "qs-"
"""Begins the names of headers that only the server gives."""


class Labels(NamedTuple):
    """What a push says of a message beside its payload, and that stays true wherever the message goes."""

    headers: dict[str, str]
    priority: int | None = None
    group: str | None = None


def labels_of(message: Delivery | GetMessage) -> Labels:
    """Returns the labels of a message that was received or peeked at."""
    return Labels(message.headers, message.priority, message.group)


def keep(labels: Labels, descriptor: int, path: str, write_beside: Callable[[str, bytes], None]) -> None:
    """Writes the labels of a message. descriptor: of its file; path: the file's name in the end; write_beside: writes a
    hidden file durably."""
    contents: dict[str, bytes] = {}
    if labels.headers:
        pairs = list(labels.headers.items())
        contents[_HEADERS] = json.dumps(pairs, ensure_ascii=False, separators=(",", ":")).encode()
    if labels.priority:
        contents[_PRIORITY] = b"%d" % labels.priority
    if labels.group is not None:
        contents[_GROUP] = labels.group.encode()
    for name, content in contents.items():
        if _set_attribute(descriptor, name, content):
            continue
        if name == _HEADERS:  # a queue of files looks for the hidden file if the attribute is the number of its bytes
            _set_attribute(descriptor, name, b"%d" % len(content))
        write_beside(_beside(path, name), content)


def _set_attribute(descriptor: int, name: str, content: bytes) -> bool:
    """Writes an attribute of a file. Returns False if it has no room there: not every file system has attributes."""
    if len(content) > _MOST_IN_ATTRIBUTE:
        return False
    try:
        os.setxattr(descriptor, f"user.qs.{name}", content)
    except OSError:
        return False
    return True


def read(path: str) -> Labels:
    """Returns the labels that `keep` has written for the message in a file; none for any other file. What cannot be
    understood, as another program may have written it, counts as not there. OSError."""
    if _OF_MESSAGE.fullmatch(os.path.basename(path)) is None:
        return Labels({})
    headers, priority, group = (_content(path, name) for name in (_HEADERS, _PRIORITY, _GROUP))
    return Labels(_headers(headers), _priority(priority), group.decode(errors="replace") or None)


def _beside(path: str, name: str) -> str:
    directory, mid = os.path.split(path)
    return os.path.join(directory, f".{mid}.{name}")


def _content(path: str, name: str) -> bytes:
    content = b""
    with contextlib.suppress(OSError):
        content = os.getxattr(path, f"user.qs.{name}")
    if content and not (name == _HEADERS and content.isdigit()):
        return content
    try:
        with open(_beside(path, name), "rb") as file:
            return file.read(_LARGEST)
    except FileNotFoundError:
        return b""


def _headers(content: bytes) -> dict[str, str]:
    try:
        pairs = [(name, text) for name, text in json.loads(content)] if content else []
    except (ValueError, TypeError, RecursionError):
        return {}
    return {
        name: text
        for name, text in pairs
        if isinstance(name, str) and isinstance(text, str) and not name.lower().startswith(_OF_SERVER)
    }


def _priority(content: bytes) -> int | None:
    return int(content) if len(content) == 1 and content.isdigit() and int(content) <= MOST_PRIORITY else None
