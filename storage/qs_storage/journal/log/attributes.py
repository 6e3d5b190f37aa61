"""The attributes of a message in the log: what a producer says beside the payload, and how records carry it.

Only messages that have some carry them: a message without any takes not a byte more. Headers are text that only a
consumer reads. So they stay on the disk, in front of the payload: the content of a message is its headers and then its
payload, and the attributes say how many bytes the headers have. Everything else is in memory, as it decides which
message is handed out next.
"""

import json
from struct import Struct
from typing import NamedTuple

from ...engine import Draft, Headers
from ...headers import pack_headers

_FIXED = Struct("<BQ16sIH")
LAYOUT = "priority (1), expires (8), key (16), bytes of headers (4), length (2), group in UTF-8"
"""The fields of packed attributes, as docs/journal.md has them."""
_NO_KEY = bytes(16)


class Attributes(NamedTuple):
    """The attributes of a message. priority: 0 to 9; expires: the time from which the message is not handed out any
    more, in microseconds since the Epoch, 0 for never; key: the digest of a key that counts for as long as the message
    is in its queue, empty without one; headers: the bytes of headers in front of the payload; group: empty for none."""

    priority: int = 0
    expires: int = 0
    key: bytes = b""
    headers: int = 0
    group: str = ""

    @property
    def size(self) -> int:
        """The bytes of the packed attributes."""
        return _FIXED.size + len(self.group.encode())

    def pack(self) -> bytes:
        group = self.group.encode()
        return _FIXED.pack(self.priority, self.expires, self.key or _NO_KEY, self.headers, len(group)) + group

    def copied(self) -> "Attributes | None":
        """Returns the attributes of a copy in another queue, None if none are left: a key belongs to one queue."""
        left = self._replace(key=b"")
        return left if any(left) else None

    def moved(self) -> "Attributes | None":
        """Returns the attributes of the message after it has moved to another queue, None if none are left: a dead
        letter is kept for whoever looks into it."""
        left = self._replace(expires=0, key=b"")
        return left if any(left) else None


def read_attributes(body: memoryview, start: int) -> tuple[Attributes, int]:
    """Reads packed attributes from a byte of a record's body on. Returns them, and the byte after them. struct.error,
    ValueError."""
    priority, expires, key, headers, length = _FIXED.unpack_from(body, start)
    end = start + _FIXED.size + length
    if len(body) < end:
        raise ValueError(f"a group of {length} bytes does not fit in")
    group = bytes(body[start + _FIXED.size : end]).decode()
    return Attributes(priority, expires, b"" if key == _NO_KEY else key, headers, group), end


def attributes_end(body: memoryview, start: int) -> int:
    """Returns the byte after packed attributes, without reading them. struct.error."""
    return start + _FIXED.size + int(_FIXED.unpack_from(body, start)[4])


def content_of(draft: Draft, now: int, key: bytes | None) -> tuple[bytes, Attributes | None]:
    """Returns the content of a message to push, and its attributes, None without any. now: the time of the push; key:
    the digest of its key, None without one."""
    payload, _, _, unique, priority, expires, group, headers = draft
    packed = pack_headers(headers)
    if not (packed or priority or group or unique or expires is not None):
        return payload, None
    until = 0 if expires is None else now + expires
    return packed + payload, Attributes(priority, until, (key or b"") if unique else b"", len(packed), group)


def split_content(content: bytes, attributes: Attributes) -> tuple[Headers, bytes]:
    """Returns the headers and the payload in the content of a message."""
    size = attributes.headers
    if not size:
        return (), content
    return tuple((name, text) for name, text in json.loads(content[:size])), content[size:]
