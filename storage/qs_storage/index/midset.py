"""An ordered set of message ids, with 8 bytes an id: a set of Python integers would take ten times as much.

The ids are in sorted chunks of machine words. Appending at the end and taking from the front touch one chunk; any other
change takes two binary searches and a short move.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

CHUNK = 1024
FEW = 32
"""One key in so many of a chunk, or fewer, are looked up one by one, which is faster than to go over the chunk: ids
that are due at random times are in hundreds of chunks."""


class Run(NamedTuple):
    """Keys in the range of a chunk. start: the position of the first, if all are there side by side (nearly always);
    else None, and some may not be in the set."""

    chunk: int
    keys: "array[int]"
    start: int | None


class MidSet:
    """Keys are 0 to 2**64 - 1."""

    __slots__ = ("_keys", "count", "lasts")

    def __init__(self, keys: Iterable[int] = ()) -> None:
        """keys: strictly increasing."""
        whole = keys if isinstance(keys, array) else array("Q", keys)
        self.count = len(whole)
        self._keys = [whole[at : at + CHUNK] for at in range(0, len(whole), CHUNK)]
        self.lasts = [chunk[-1] for chunk in self._keys]
        """The greatest key of each chunk."""

    def __len__(self) -> int:
        return self.count

    def __contains__(self, key: int) -> bool:
        lasts = self.lasts
        if not lasts or key > lasts[-1]:
            return False
        if self._keys[0][0] == key:
            return True
        chunk = bisect_left(lasts, key) if key > lasts[0] else 0
        keys = self._keys[chunk]
        return keys[bisect_left(keys, key)] == key

    def first(self) -> int | None:
        return self._keys[0][0] if self._keys else None

    def last(self) -> int | None:
        return self.lasts[-1] if self.lasts else None

    def after(self, key: int, count: int) -> list[int]:
        """Returns the keys greater than key (-1 for all) in order, at most count."""
        found: list[int] = []
        chunk = bisect_right(self.lasts, key)
        at = bisect_right(self._keys[chunk], key) if chunk < len(self._keys) else 0
        while chunk < len(self._keys) and len(found) < count:
            found += self._keys[chunk][at : at + count - len(found)]
            chunk, at = chunk + 1, 0
        return found

    def add(self, key: int) -> None:
        lasts = self.lasts
        if lasts and key <= lasts[-1]:
            self._add_within(key)
        elif lasts and len(self._keys[-1]) < CHUNK:
            self._keys[-1].append(key)
            lasts[-1] = key
            self.count += 1
        else:
            self._keys.append(array("Q", (key,)))
            lasts.append(key)
            self.count += 1

    def _add_within(self, key: int) -> None:
        chunk = bisect_left(self.lasts, key)
        keys = self._keys[chunk]
        at = bisect_left(keys, key)
        if keys[at] == key:
            return
        keys.insert(at, key)
        self.count += 1
        if len(keys) > 2 * CHUNK:
            self._keys[chunk : chunk + 1] = [keys[:CHUNK], keys[CHUNK:]]
            self.lasts.insert(chunk, keys[CHUNK - 1])

    def extend(self, keys: Sequence[int]) -> None:
        """Adds keys. keys: increasing, greater than the last one in the set."""
        added = array("Q", keys)
        if self.lasts and len(self._keys[-1]) + len(added) <= 2 * CHUNK:
            self._keys[-1] += added
            self.lasts[-1] = added[-1]
        else:
            for at in range(0, len(added), CHUNK):
                self._keys.append(added[at : at + CHUNK])
                self.lasts.append(self._keys[-1][-1])
        self.count += len(added)

    def among(self, keys: Sequence[int]) -> list[int]:
        """Returns the keys that are in the set. keys: increasing."""
        if not self.lasts:
            return []
        found: list[int] = []
        for chunk, part, start in self.runs_of(keys):
            own = self._keys[chunk]
            if start is not None:
                found += part
            elif len(part) * FEW <= len(own):
                found += [key for key in part if own[bisect_left(own, key)] == key]
            else:
                found += sorted(set(part).intersection(own))
        return found

    def add_all(self, keys: Sequence[int]) -> None:
        """Adds many keys. keys: increasing, none in the set."""
        added = array("Q", keys)
        end = bisect_right(added, self.lasts[-1]) if self.lasts else 0
        if end < len(added):
            self.extend(added[end:])
        while end:  # from the end, as a merge may split its chunk
            chunk = bisect_left(self.lasts, added[end - 1])
            start = bisect_right(added, self.lasts[chunk - 1], 0, end) if chunk else 0
            self._merge(chunk, added[start:end])
            end = start

    def _merge(self, chunk: int, keys: "array[int]") -> None:
        if len(keys) * FEW <= len(self._keys[chunk]):
            for key in keys:
                self._add_within(key)
            return
        whole = array("Q", sorted([*self._keys[chunk], *keys]))
        parts = [whole[at : at + CHUNK] for at in range(0, len(whole), CHUNK)] if len(whole) > 2 * CHUNK else [whole]
        self._keys[chunk : chunk + 1] = parts
        self.lasts[chunk : chunk + 1] = [part[-1] for part in parts]
        self.count += len(keys)

    def runs_of(self, keys: Sequence[int]) -> "list[Run]":
        """Returns the chunks in which these keys may be, each with its keys. keys: increasing."""
        wanted = keys if isinstance(keys, array) else array("Q", keys)
        runs: list[Run] = []
        at = 0
        chunk = bisect_left(self.lasts, wanted[0]) if wanted else len(self.lasts)
        while at < len(wanted) and chunk < len(self.lasts):
            end = bisect_right(wanted, self.lasts[chunk], at)
            if end > at:
                own, part = self._keys[chunk], wanted[at:end]
                start = bisect_left(own, part[0])
                runs.append(Run(chunk, part, start if own[start : start + len(part)] == part else None))
            at, chunk = end, chunk + 1
        return runs

    def discard_all(self, keys: Sequence[int]) -> None:
        """Removes many keys, in a few steps for each chunk. keys: increasing; some may not be in the set."""
        for chunk, part, start in reversed(self.runs_of(keys)):
            old = self._keys[chunk]
            if start is not None:
                self._keep(chunk, old[:start] + old[start + len(part) :])
            elif len(part) * FEW <= len(old):
                for key in part:
                    self.discard(key)
            elif not (gone := set(part)).isdisjoint(old):
                self._keep(chunk, array("Q", [key for key in old if key not in gone]))

    def _keep(self, chunk: int, keys: "array[int]") -> None:
        self.count -= len(self._keys[chunk]) - len(keys)
        if keys:
            self._keys[chunk], self.lasts[chunk] = keys, keys[-1]
        else:
            del self._keys[chunk], self.lasts[chunk]

    def discard(self, key: int) -> None:
        lasts = self.lasts
        if not lasts or key > lasts[-1]:
            return
        chunk = at = 0
        keys = self._keys[0]
        if keys[0] != key:  # nearly always it is the first
            chunk = bisect_left(lasts, key) if key > lasts[0] else 0
            keys = self._keys[chunk]
            at = bisect_left(keys, key)
            if keys[at] != key:
                return
        del keys[at]
        self.count -= 1
        if not keys:
            del self._keys[chunk], lasts[chunk]
        elif at == len(keys):
            lasts[chunk] = keys[-1]
