"""Knows the intermediate directory of each element of a queue."""

from dataclasses import dataclass

from ..index.midmap import MidMap
from ..watch import Watch


@dataclass(slots=True)
class Folder:
    """elements: their count; watch: its number."""

    elements: int = 0
    watch: int = -1


class Places:
    """A place is the path of an element in the queue's directory, DIRECTORY/NAME."""

    def __init__(self, watch: Watch) -> None:
        self.folders: dict[str, Folder] = {}
        self._watch = watch
        self._numbers = MidMap()
        """Numbers of intermediate directories, not 0."""

    def __contains__(self, mid: int) -> bool:
        return self._numbers.get(mid) is not None

    def mids(self, after: int = -1, count: int | None = None) -> list[int]:
        """Returns at most count elements with ids greater than after, in order."""
        return self._numbers.after(after, len(self._numbers) if count is None else count)

    def last(self) -> int:
        """-1: there is none."""
        return self._numbers.last() or -1

    def is_in(self, mid: int, folder: str) -> bool:
        return self._numbers.get(mid) == _number_of(folder)

    def folder_of(self, mid: int) -> str:
        """Returns an element's intermediate directory; for one that is gone, the first possible."""
        return f"{(self._numbers.get(mid) or 1) - 1:08x}"

    def place_of(self, mid: int) -> str:
        # Written out, as each look at an element begins with it.
        return f"{(self._numbers.get(mid) or 1) - 1:08x}/{mid:014x}"

    def add(self, mid: int, folder: str) -> None:
        self._numbers.set(mid, _number_of(folder))
        if folder in self.folders:
            self.folders[folder].elements += 1

    def remove(self, mid: int) -> None:
        number = self._numbers.pop(mid)
        folder = None if number is None else self.folders.get(f"{number - 1:08x}")
        if folder is not None:
            folder.elements -= 1

    def clear(self) -> None:
        for name in list(self.folders):
            self.unwatch(name)
        self._numbers = MidMap()

    def unwatch(self, folder: str) -> None:
        """Forgets an intermediate directory, but not its elements."""
        self._watch.remove(self.folders.pop(folder).watch)

    def expect(self, folder: str, event: int, name: str) -> None:
        """Notes a change of ours that `inotify` will report, if the intermediate directory is watched."""
        if folder in self.folders:
            self._watch.expect(self.folders[folder].watch, event, name)


def _number_of(folder: str) -> int:
    return int(folder, 16) + 1
