"""The origins of dead letters (`engine.Origin`), in the messages' files or in hidden files beside them.

An origin is written before the move, and holds for the id after it. It is a line of the file's extended attribute
`user.qs.dead`, with a second line while a dead letter moves on. Without extended attributes: a hidden file
`.MID.dead` in the target directory.
"""

import re
from collections.abc import Callable, Iterable

from .disk import Disk
from .engine import Origin
from .metadata import Codec, SidecarFiles, read_attribute

_DEAD = "user.qs.dead"
_LINE = re.compile("([0-9]{1,18}) " * 5 + r"(receives|rejected) ([^\n]+)")


class OriginStore:
    """The origins of one directory's dead letters. path: of the message's file, wherever it is. OSError."""

    def __init__(self, directory: str, disk: Disk, *, beside: bool, sync: bool) -> None:
        """beside: without extended attributes; sync: hidden files."""
        self._disk = disk
        self._files = SidecarFiles(directory, disk, _CODEC, sync=sync) if beside else None

    def read(self, path: str, mid: int) -> Origin | None:
        """Returns None if it is no dead letter."""
        if self._files is not None:
            return self._files.read(path, mid)
        return _find(read_attribute(self._disk, path, _DEAD), mid)

    def write(self, path: str, mid: int, new: int, origin: Origin) -> None:
        """Writes the origin of a message that is about to move here. mid, new: its ids before and after."""
        if self._files is not None:
            self._files.write(path, new, origin)
            return
        before = self.read(path, mid)
        lines = [_line(new, origin)] if before is None else [_line(mid, before), _line(new, origin)]
        self._disk.setxattr(path, _DEAD, b"\n".join(lines), follow_symlinks=False)

    def forget(self, mid: int) -> None:
        """Removes what is left of a message that is gone. An attribute goes with its file, or is for another id."""
        if self._files is not None:
            self._files.remove(mid)

    def clear(self, names: Iterable[str], known: Callable[[int], bool]) -> None:
        """See MetadataStore."""
        for mid in () if self._files is None else self._files.orphans(names, known):
            self.forget(mid)


def _line(mid: int, origin: Origin) -> bytes:
    numbers = mid, origin.mid, origin.receives, origin.at, origin.pushed_at
    return f"{' '.join(map(str, numbers))} {origin.reason} {origin.qid}".encode()


def _parse(line: str) -> tuple[int, Origin] | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    mid, before, receives, at, pushed_at = map(int, found.groups()[:5])
    return mid, Origin(found[7], before, receives, at, found[6], pushed_at)


def _find(value: bytes, mid: int) -> Origin | None:
    parsed = [_parse(line) for line in value.decode(errors="replace").split("\n")]
    return next((each[1] for each in parsed if each is not None and each[0] == mid), None)


def _decode(content: bytes) -> Origin | None:
    parsed = _parse(content.decode(errors="replace").removesuffix("\n"))
    return None if parsed is None else parsed[1]


_CODEC: Codec[Origin | None] = Codec(".dead", 10, lambda origin: b"" if origin is None else _line(0, origin), _decode)
