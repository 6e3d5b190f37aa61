"""Keeps what is known of a message beside its payload and the name of its file, over restarts.

Metadata is in extended attributes of the file, which renames keep, or, where the file system has none, in hidden files
in the queue's directory. Each kind has a store.

`AttributeStore`, of the vsqs layout: how often a message was received (`user.qs.receives`), and until when it is
delayed (`user.qs.delayed`, the end of a delay, which counts only while it is the file's extension too). A moved message
gets a new id and begins at 0: `user.qs.receives` is `COUNT`, or `COUNT MID`, which counts for that id only. Beside it
the store has the reasons: `user.qs.reason` is the last one of a release or reject, whatever the id. The hidden files
are `.MID.attributes` and `.MID.reason`.

`HeaderStore`, of the vsqs layout: the headers of a message (`user.qs.headers`). Those that an attribute has no room for
are in the hidden file `.MID.headers`, and the attribute says how large that is.

`OriginStore`, of the vsqs layout: the origin of a dead letter (`engine.Origin`). An origin is written before the move,
and counts for the id after the move. It is a line of `user.qs.dead`, with a second line while a dead letter moves on;
the hidden file is `.MID.dead` in the target directory.

The leases of elements, in the layouts of dirq, are in `dirq/elements.py`.
"""

import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterable
from typing import Generic, NamedTuple, TypeVar

from .disk import NO_ROOM, Disk
from .engine import Headers, Origin
from .headers import carried, pack_headers, unpack_headers

_PROBE = "user.qs.probe"
_OURS = "user.qs."
_RECEIVES = "user.qs.receives"
_DELAYED = "user.qs.delayed"
_HEADERS = "user.qs.headers"
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_ABSENT = frozenset({errno.ENODATA, errno.ENOTSUP, errno.ENOENT}) | _DENIED
"""Errors of an extended attribute that is missing or must not be read."""
_LARGEST = 2000
"""Bytes of the largest hidden file but those of headers."""
_LARGEST_HEADERS = 64 << 10
"""Bytes of the largest hidden file of headers: 8 KiB of text, as JSON."""
_LONGEST_REASON = 1024
"""Bytes of a reason. Another program may have written more."""
_MOST_IN_ATTRIBUTE = 1024
"""Bytes of headers in an attribute. ext4 has 4 KiB for all attributes of a file, and a reason and two origins have to
fit in later."""
_ORIGIN = re.compile("([0-9]{1,18}) " * 5 + r"(receives|rejected) ([^\n]+)")

Value = TypeVar("Value")


class Kind(NamedTuple, Generic[Value]):
    """A kind of metadata: names and format.

    attribute: the name of the extended attribute; suffix, base: the hidden file is `.ID` and the suffix, with an id in
    decimal digits (10) or 14 hexadecimal ones (16); decode: accepts any bytes, and returns the default for none."""

    attribute: str
    suffix: str
    base: int
    encode: Callable[[Value], bytes]
    decode: Callable[[bytes], Value]


class MetadataStore(Generic[Value]):
    """Reads and writes one kind of metadata for the messages of one directory. path: the present path of the message's
    file.

    Ensures that metadata never stops a consumer: consuming frees space, so it has to work on a full disk, and also with
    files that the server may not write to. Metadata that could not be written is in `unwritten` for as long as the
    process lives. Assumes that other programs may write anything under these names: metadata that cannot be understood
    counts as the default."""

    def __init__(self, kind: Kind[Value], directory: str, disk: Disk, *, lists: bool | None, sync: bool) -> None:
        """lists: True to list the names of attributes before reading one, as asking for a missing attribute takes twice
        as long, and most are missing; None without extended attributes, see `lists_attributes`. sync: True to sync
        hidden files."""
        self.beside = lists is None
        """True if the metadata is in files of its own."""
        self.unwritten: dict[int, Value] = {}
        self._kind = kind
        self._directory = directory
        self._disk = disk
        self._lists = bool(lists)
        self._sync = sync
        self._spec, digits = ("014x", "[0-9a-f]{14}") if kind.base == 16 else ("d", "[0-9]{1,18}")
        self._match = re.compile(rf"\.({digits}){re.escape(kind.suffix)}").fullmatch

    def read(self, path: str, mid: int) -> Value:
        """Reads the metadata of a message. Returns the default for a message that is gone. OSError."""
        unwritten = self.unwritten.get(mid)
        return self._stored(path, mid) if unwritten is None else unwritten

    def write(self, path: str, mid: int, value: Value, *, or_fail: bool = False) -> None:
        """Writes the metadata of a message. Does nothing for a message that is gone. or_fail: True if a full disk
        raises OSError, as other failures do."""
        try:
            self._store(path, mid, value)
        except FileNotFoundError:
            return
        except OSError as error:
            if or_fail or error.errno not in NO_ROOM | _DENIED:
                raise
            # As long as this process lives, it knows: after a restart the message is as it was before.
            self.unwritten[mid] = value
        else:
            self.unwritten.pop(mid, None)

    def forget(self, mid: int) -> None:
        """Removes the metadata of a message that is gone. Attributes are gone with their file already. OSError."""
        self.unwritten.pop(mid, None)
        if self.beside:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path(mid))

    def clear(self, names: Collection[str], known: Callable[[int], bool]) -> None:
        """Removes metadata without messages. names: the names in the directory that are not messages; known: tells
        whether a message exists. OSError."""
        if self.beside:
            for match in filter(None, map(self._match, names)):
                if not known(mid := int(match[1], self._kind.base)):
                    self.forget(mid)

    def _stored(self, path: str, mid: int) -> Value:
        content = self._read_file(mid) if self.beside else self._attribute(path, self._kind.attribute)
        return self._kind.decode(content)

    def _store(self, path: str, mid: int, value: Value) -> None:
        content = self._kind.encode(value)
        if self.beside:
            self._disk.write_file(self._path(mid), content + b"\n", sync=self._sync)
        else:
            self._disk.setxattr(path, self._kind.attribute, content, follow_symlinks=False)

    def _path(self, mid: int) -> str:
        return f"{self._directory}/.{mid:{self._spec}}{self._kind.suffix}"

    def _read_file(self, mid: int) -> bytes:
        return _read_hidden(self._disk, self._path(mid), _LARGEST).removesuffix(b"\n")

    def _attribute(self, path: str, name: str, there: Collection[str] | None = None) -> bytes:
        """Returns an extended attribute, empty if there is none. there: the attributes that were listed. OSError."""
        # Most messages of other programs have no attribute, and a list of none is faster than an error.
        if self._lists and name not in (self._names(path) if there is None else there):
            return b""
        try:
            return self._disk.getxattr(path, name, follow_symlinks=False)
        except OSError as error:
            if error.errno in _ABSENT:
                return b""
            raise

    def _names(self, path: str) -> list[str]:
        try:
            return self._disk.listxattr(path, follow_symlinks=False)
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise


def lists_attributes(directory: str, disk: Disk) -> bool | None:
    """Tells whether the file system lists extended attributes; returns None if it has none. Writes an attribute to find
    out. OSError."""
    lists = False
    try:
        disk.setxattr(directory, _PROBE, b"1")
        with contextlib.suppress(OSError):
            lists = _PROBE in disk.listxattr(directory)
        disk.removexattr(directory, _PROBE)
    except OSError as error:
        if error.errno in _DENIED | {errno.ENOTSUP}:
            return None
        # ENODATA: another process tried at the same time and has removed the attribute.
        if error.errno not in NO_ROOM | {errno.ENODATA}:
            raise
    return lists


# -- receives, delays and reasons of the vsqs layout ------------------------------------------------------------------


class Attributes(NamedTuple):
    """How often a message was received, and the end of its delay, 0 without one."""

    receives: int = 0
    delayed: int = 0


class FileMessage(NamedTuple):
    """A message in a file of the vsqs layout. expiry: the time until which the message is hidden, 0 if it is visible;
    reason: empty for none."""

    mid: int
    expiry: int
    attributes: Attributes
    payload: bytes
    reason: str = ""
    headers: Headers = ()


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) <= 18 else 0


def _count(value: bytes, mid: int) -> int:
    number, _, bound = value.partition(b" ")
    return _number(number) if not bound or _number(bound) == mid else 0


def _decode_attributes(content: bytes) -> Attributes:
    words = content.split()
    return Attributes(*map(int, words)) if len(words) == 2 and all(map(bytes.isdigit, words)) else Attributes()


def _decode_reason(content: bytes) -> str:
    return carried(content[:_LONGEST_REASON].decode(errors="replace"))


_ATTRIBUTES = Kind(_RECEIVES, ".attributes", 10, lambda attributes: b"%d %d" % attributes, _decode_attributes)
_REASON: Kind[str] = Kind("user.qs.reason", ".reason", 10, str.encode, _decode_reason)


class AttributeStore(MetadataStore[Attributes]):
    """Reads and writes the attributes of messages in the vsqs layout. `reasons` has the reasons with which messages
    were given back, `headers` what their producers said beside the payload.

    Receives count for one id only: a moved message, whose file and attributes are the same, begins at 0."""

    def __init__(self, directory: str, disk: Disk, *, lists: bool | None, sync: bool) -> None:
        """Opens the store of a directory. lists, sync: see MetadataStore."""
        super().__init__(_ATTRIBUTES, directory, disk, lists=lists, sync=sync)
        self.reasons = MetadataStore(_REASON, directory, disk, lists=lists, sync=sync)
        """The reasons with which messages were given back; empty for none."""
        self.headers = HeaderStore(directory, disk, beside=self.beside, sync=sync)

    def read(self, path: str, mid: int) -> Attributes:
        stored = self._stored(path, mid)
        return max(stored, self.unwritten.get(mid, stored))  # another server may have counted on

    def receives(self, path: str, mid: int) -> int:
        """Reads how often a message was received. OSError."""
        if self.beside or mid in self.unwritten:
            return self.read(path, mid).receives
        return _count(self._attribute(path, _RECEIVES), mid)

    def may_be_there(self, path: str, mid: int) -> bool:
        """Tells whether a message may have attributes, headers, a reason or an origin. Takes as long as reading one of
        them. Returns False for most messages of other programs. OSError."""
        if not self._lists or mid in self.unwritten or mid in self.reasons.unwritten:
            return True
        return any(name.startswith(_OURS) for name in self._names(path))

    def bind(self, path: str, mid: int) -> bool:
        """Binds the count of receives to the message's present id, before the file gets another one. Returns True if
        the attribute changed. OSError."""
        count = 0 if self.beside else _count(self._attribute(path, _RECEIVES), mid)
        if count:
            self._disk.setxattr(path, _RECEIVES, b"%d %d" % (count, mid), follow_symlinks=False)
        return count > 0

    def forget(self, mid: int) -> None:
        self.unwritten.pop(mid, None)
        if self.beside or self.reasons.unwritten:  # else it has gone with the file
            super().forget(mid)
            self.reasons.forget(mid)

    def clear(self, names: Collection[str], known: Callable[[int], bool]) -> None:
        super().clear(names, known)
        self.reasons.clear(names, known)

    def _stored(self, path: str, mid: int) -> Attributes:
        if self.beside:
            return super()._stored(path, mid)
        there = self._names(path) if self._lists else None
        receives, delayed = self._attribute(path, _RECEIVES, there), self._attribute(path, _DELAYED, there)
        return Attributes(_count(receives, mid), _number(delayed))

    def _store(self, path: str, mid: int, value: Attributes) -> None:
        if self.beside:
            super()._store(path, mid, value)
            return
        for name, number in ((_RECEIVES, value.receives), (_DELAYED, value.delayed)):
            if number or (name == _RECEIVES and not value.delayed):
                self._disk.setxattr(path, name, b"%d" % number, follow_symlinks=False)


def store_for(directory: str, disk: Disk, *, sync: bool) -> AttributeStore:
    """Returns the store for the directory's file system. sync: True to sync hidden files. OSError."""
    return AttributeStore(directory, disk, lists=lists_attributes(directory, disk), sync=sync)


# -- headers of the vsqs layout ---------------------------------------------------------------------------------------


class StoredHeaders(NamedTuple):
    """Where the headers of a message are. size: their bytes; is_file: True if they are in a hidden file."""

    size: int
    is_file: bool


class HeaderStore:
    """Reads and writes the headers of one directory's messages. A push writes them, and nothing changes them.

    Ensures that headers which were written are there, or the push fails: unlike other metadata, they are the
    producer's. They are an attribute of the message's file, which renames keep, unless that has no room for them: then
    they are in a hidden file, and the attribute has its size."""

    def __init__(self, directory: str, disk: Disk, *, beside: bool, sync: bool) -> None:
        """beside: True on a file system without extended attributes; sync: True to sync hidden files."""
        self._directory = directory
        self._disk = disk
        self._beside = beside
        self._sync = sync
        self._match = re.compile(r"\.([0-9]{1,18})\.headers").fullmatch

    def write(self, path: str, mid: int, headers: Headers) -> StoredHeaders:
        """Writes the headers of a message, before it is visible. OSError: the caller has to `forget` them."""
        content = pack_headers(headers)
        if not self._beside and len(content) <= _MOST_IN_ATTRIBUTE:
            try:
                self._disk.setxattr(path, _HEADERS, content, follow_symlinks=False)
            except OSError as error:
                # Some file systems have less room for attributes. A full disk refuses the file too.
                if error.errno not in NO_ROOM | {errno.E2BIG, errno.ERANGE}:
                    raise
            else:
                return StoredHeaders(len(content), is_file=False)
        self._write_file(path, mid, content)
        return StoredHeaders(len(content), is_file=True)

    def _write_file(self, path: str, mid: int, content: bytes) -> None:
        if not self._beside:
            self._disk.setxattr(path, _HEADERS, b"%d" % len(content), follow_symlinks=False)
        # Under its name at once: nobody reads it before the message is visible.
        fd = self._disk.open_file(self._path(mid), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            self._disk.write(fd, content)
            if self._sync:
                self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    def find(self, path: str, mid: int) -> StoredHeaders | None:
        """Looks for the headers of a message. Returns None for a message without any. OSError."""
        content = b"" if self._beside else self._attribute(path)
        if content and not _number(content):
            return StoredHeaders(len(content), is_file=False)
        if not content and not self._beside:
            return None
        try:
            size = self._disk.lstat(self._path(mid)).st_size
        except FileNotFoundError:
            return None
        return StoredHeaders(size, is_file=True)

    def read(self, path: str, mid: int, *, is_file: bool) -> Headers:
        """Reads the headers of a message; none if the message is gone. is_file: see StoredHeaders. OSError."""
        return unpack_headers(self._read_file(mid) if is_file else self._attribute(path))

    def move(self, mid: int, into: "HeaderStore", path: str, new: int) -> None:
        """Writes the hidden file with the headers of a message that is about to move to another directory. path: the
        message's file; new: the id after the move. OSError."""
        into._write_file(path, new, self._read_file(mid))

    def forget(self, mid: int) -> None:
        """Removes the hidden file with the headers of a message that is gone, if there is one. OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._path(mid))

    def left_behind(self, names: Iterable[str], known: Callable[[int], bool]) -> list[str]:
        """Returns the hidden files without messages, which programs that know no headers leave behind. names: the names
        in the directory that are not messages; known: tells whether a message exists."""
        return [match[0] for match in filter(None, map(self._match, names)) if not known(int(match[1]))]

    def _path(self, mid: int) -> str:
        return f"{self._directory}/.{mid}.headers"

    def _read_file(self, mid: int) -> bytes:
        return _read_hidden(self._disk, self._path(mid), _LARGEST_HEADERS)

    def _attribute(self, path: str) -> bytes:
        try:
            return self._disk.getxattr(path, _HEADERS, follow_symlinks=False)
        except OSError as error:
            if error.errno in _ABSENT:
                return b""
            raise


# -- origins of the vsqs layout ---------------------------------------------------------------------------------------


def _line(mid: int, origin: Origin) -> bytes:
    numbers = mid, origin.mid, origin.receives, origin.at, origin.pushed_at
    return f"{' '.join(map(str, numbers))} {origin.reason} {origin.qid}".encode()


def _parse(line: str) -> tuple[int, Origin] | None:
    found = _ORIGIN.fullmatch(line)
    if found is None:
        return None
    mid, before, receives, at, pushed_at = map(int, found.groups()[:5])
    return mid, Origin(found[7], before, receives, at, found[6], pushed_at)


def _decode_origin(content: bytes) -> Origin | None:
    parsed = _parse(content.decode(errors="replace"))
    return None if parsed is None else parsed[1]


_DEAD: Kind[Origin | None] = Kind(
    "user.qs.dead", ".dead", 10, lambda origin: b"" if origin is None else _line(0, origin), _decode_origin
)


class OriginStore(MetadataStore[Origin | None]):
    """Reads and writes the origins of one directory's dead letters; the default is None, for a message that is not a
    dead letter. path: wherever the file is."""

    def __init__(self, directory: str, disk: Disk, *, beside: bool, sync: bool) -> None:
        """beside: True to use hidden files instead of extended attributes; sync: True to sync hidden files."""
        super().__init__(_DEAD, directory, disk, lists=None if beside else False, sync=sync)

    def write_move(self, path: str, mid: int, new: int, origin: Origin) -> None:
        """Writes the origin of a message that is about to move here. mid, new: the ids before and after the move.
        OSError."""
        if self.beside:
            self._store(path, new, origin)
            return
        before = self._stored(path, mid)
        # Both, while a dead letter moves on: a crash before the rename leaves it where the first line is right.
        lines = [_line(new, origin)] if before is None else [_line(mid, before), _line(new, origin)]
        self._disk.setxattr(path, _DEAD.attribute, b"\n".join(lines), follow_symlinks=False)

    def _stored(self, path: str, mid: int) -> Origin | None:
        if self.beside:
            return super()._stored(path, mid)
        value = self._attribute(path, _DEAD.attribute)
        parsed = [_parse(line) for line in value.decode(errors="replace").split("\n")]
        return next((each[1] for each in parsed if each is not None and each[0] == mid), None)


def _read_hidden(disk: Disk, path: str, most: int) -> bytes:
    """Reads a hidden file, at most so many bytes. Returns nothing if the file is missing or may not be read."""
    try:
        fd = disk.open_file(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return b""
    try:
        return disk.read(fd, most)
    finally:
        disk.close(fd)
