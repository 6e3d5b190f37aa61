"""The attributes of messages in the vsqs layout: how often a message was received, until when it is delayed, and why
it was given back.

They are extended attributes of the file, which renames keep: `user.qs.receives`, and `user.qs.delayed`, the end of a
delay, which counts only while it is the file's extension too. A moved message gets a new id and begins at 0:
`user.qs.receives` is `COUNT`, or `COUNT MID`, which counts for that id only. `user.qs.reason` is the last reason of a
release or reject, whatever the id. Without extended attributes: hidden files `.MID.attributes` and `.MID.reason`.
"""

import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from ..disk import Disk
from ..metadata import ABSENT, Codec, MetadataStore, SidecarFiles, lists_attributes, read_attribute

_OURS = "user.qs."
_RECEIVES = "user.qs.receives"
_DELAYED = "user.qs.delayed"
_REASON = "user.qs.reason"
_LONGEST_REASON = 1024
"""Bytes of a reason. Another program may have written more."""
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Matches characters of another program's reason that no answer can carry."""


class Attributes(NamedTuple):
    """delayed: the end of the delay, 0 for none."""

    receives: int = 0
    delayed: int = 0


class Stored(NamedTuple):
    """A message in a file of the layout vsqs. expiry: hidden until then, 0: visible; reason: empty for none."""

    mid: int
    expiry: int
    attributes: Attributes
    payload: bytes
    reason: str = ""


class _Extended:
    def __init__(self, disk: Disk, *, lists: bool) -> None:
        """lists: whether to list names first: asking for a missing attribute, as most are, takes twice as long."""
        self._disk = disk
        self._lists = lists

    def _values(self, path: str, *names: str) -> list[bytes]:
        there = self._names(path) if self._lists else names
        return [read_attribute(self._disk, path, name) if name in there else b"" for name in names]

    def may_be_there(self, path: str) -> bool:
        """Tells whether a file may have attributes of ours."""
        return not self._lists or any(name.startswith(_OURS) for name in self._names(path))

    def _names(self, path: str) -> list[str]:
        try:
            return self._disk.listxattr(path, follow_symlinks=False)
        except OSError as error:
            if error.errno in ABSENT:
                return []
            raise


class _ExtendedAttributes(_Extended):
    def read(self, path: str, mid: int) -> Attributes:
        receives, delayed = self._values(path, _RECEIVES, _DELAYED)
        return Attributes(_count(receives, mid), _number(delayed))

    def receives(self, path: str, mid: int) -> int:
        return _count(self._values(path, _RECEIVES)[0], mid)

    def bind(self, path: str, mid: int) -> bool:
        count = self.receives(path, mid)
        if count:
            self._disk.setxattr(path, _RECEIVES, b"%d %d" % (count, mid), follow_symlinks=False)
        return count > 0

    def write(self, path: str, mid: int, value: Attributes) -> None:
        for name, number in ((_RECEIVES, value.receives), (_DELAYED, value.delayed)):
            if number or (name == _RECEIVES and not value.delayed):
                self._disk.setxattr(path, name, b"%d" % number, follow_symlinks=False)


class _ExtendedReason(_Extended):
    def read(self, path: str, mid: int) -> str:
        return _text(self._values(path, _REASON)[0])

    def write(self, path: str, mid: int, value: str) -> None:
        self._disk.setxattr(path, _REASON, value.encode(), follow_symlinks=False)


def _text(value: bytes) -> str:
    return _NOT_IN_XML.sub("\ufffd", value[:_LONGEST_REASON].decode(errors="replace"))


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) <= 18 else 0


def _count(value: bytes, mid: int) -> int:
    number, _, bound = value.partition(b" ")
    return _number(number) if not bound or _number(bound) == mid else 0


def _decode(content: bytes) -> Attributes:
    words = content.split()
    return Attributes(*map(int, words)) if len(words) == 2 and all(map(bytes.isdigit, words)) else Attributes()


_CODEC = Codec(".attributes", 10, lambda attributes: b"%d %d" % attributes, _decode)
_REASON_CODEC: Codec[str] = Codec(".reason", 10, str.encode, lambda content: _text(content.removesuffix(b"\n")))


class AttributeStore(MetadataStore[Attributes]):
    def __init__(self, medium: _ExtendedAttributes | SidecarFiles[Attributes], reasons: MetadataStore[str]) -> None:
        """reasons: of the same messages, empty for none. See `store_for`."""
        super().__init__(medium, max)
        self.reasons = reasons
        self._extended = None if isinstance(medium, SidecarFiles) else medium

    def receives(self, path: str, mid: int) -> int:
        """Raises OSError."""
        if self._extended is None or mid in self.unwritten:
            return self.read(path, mid).receives
        return self._extended.receives(path, mid)

    def may_be_there(self, path: str, mid: int) -> bool:
        """Tells whether a message may have attributes, a reason or an origin, for the time that it takes to ask for one
        of them. False for most that other programs have written. OSError."""
        if self._extended is None or mid in self.unwritten or mid in self.reasons.unwritten:
            return True
        return self._extended.may_be_there(path)

    def bind(self, path: str, mid: int) -> bool:
        """Binds the receives to this id before the file gets another one. Returns whether the file changed. OSError."""
        return self._extended is not None and self._extended.bind(path, mid)

    def forget(self, mid: int) -> None:
        self.unwritten.pop(mid, None)
        if self.beside or self.reasons.unwritten:  # else it has gone with the file
            super().forget(mid)
            self.reasons.forget(mid)

    def clear(self, names: Collection[str], known: Callable[[int], bool]) -> None:
        super().clear(names, known)
        self.reasons.clear(names, known)


def _reasons(medium: _ExtendedReason | SidecarFiles[str]) -> MetadataStore[str]:
    return MetadataStore(medium, lambda stored, unwritten: unwritten)


def in_files(disk: Disk, *, lists: bool = False) -> AttributeStore:
    """Returns a store of extended attributes. lists: the file system lists their names."""
    return AttributeStore(_ExtendedAttributes(disk, lists=lists), _reasons(_ExtendedReason(disk, lists=lists)))


def in_sidecars(directory: str, disk: Disk, *, sync: bool) -> AttributeStore:
    """Returns a store of hidden files. sync: whether they are synced."""
    files = SidecarFiles(directory, disk, _CODEC, sync=sync)
    return AttributeStore(files, _reasons(SidecarFiles(directory, disk, _REASON_CODEC, sync=sync)))


def store_for(directory: str, disk: Disk, *, sync: bool) -> AttributeStore:
    """Returns the store for the directory's file system. sync: of hidden files. OSError."""
    lists = lists_attributes(directory, disk)
    return in_sidecars(directory, disk, sync=sync) if lists is None else in_files(disk, lists=lists)
