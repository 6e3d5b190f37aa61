"""Ordered sets and maps of message ids, with 8 bytes an id, or 16 with a value: Python integers would take ten times as
much.

The ids are in sorted chunks of machine words. Appending at the end and taking from the front touch one chunk; any other
change takes two binary searches and a short move.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self

CHUNK = 1024
"""Ids of a chunk, which gets at most twice as many: so an insert moves at most 16 KiB, and a search among a million ids
begins with some thousand chunks."""
FEW = 32
"""One key in so many of a chunk, or fewer, are looked up one by one, which is faster than to go over the chunk: ids
that are due at random times are in hundreds of chunks."""


class Run(NamedTuple):
    """The keys that are in the range of one chunk. start: the position of the first key if all keys are in the chunk
    side by side, which is nearly always so; otherwise None, and some keys may not be in the set."""

    chunk: int
    keys: "array[int]"
    start: int | None


class MidSet:
    """An ordered set of numbers from 0 to 2**64 - 1.

    Ensures that `lasts` has the greatest key of each chunk, and that no chunk is empty. Methods for many keys take them
    in increasing order, and then go over each chunk once. The order is not checked: after a call with a wrong order,
    keys of the set are not found."""

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
        if self._keys[0][0] == key:  # consumers ask for the oldest message most
            return True
        chunk = bisect_left(lasts, key) if key > lasts[0] else 0
        keys = self._keys[chunk]
        return keys[bisect_left(keys, key)] == key

    def first(self) -> int | None:
        """Returns the smallest key, None without any."""
        return self._keys[0][0] if self._keys else None

    def last(self) -> int | None:
        """Returns the greatest key, None without any."""
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
        """Adds a key, if it is not in the set."""
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
        added = keys if isinstance(keys, array) else array("Q", keys)
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
        """Groups keys by chunk: returns the chunks that may have some of them, each with these keys. keys:
        increasing."""
        # As an array, a part of the keys is compared with a part of a chunk in one step.
        wanted = keys if isinstance(keys, array) else array("Q", keys)
        runs: list[Run] = []
        at = 0
        chunk = bisect_left(self.lasts, wanted[0]) if wanted else len(self.lasts)
        while at < len(wanted) and chunk < len(self.lasts):
            end = bisect_right(wanted, self.lasts[chunk], at)
            if end > at:
                own = self._keys[chunk]
                # Keys between two chunks are in none: they may be thousands, and a set of them would be made in vain.
                part = wanted[bisect_left(wanted, own[0], at, end) : end]
                if part:
                    start = bisect_left(own, part[0])
                    runs.append(Run(chunk, part, start if own[start : start + len(part)] == part else None))
            at, chunk = end, chunk + 1
        return runs

    def discard_all(self, keys: Sequence[int]) -> None:
        """Removes many keys, in a few steps for each chunk. keys: increasing; some may not be in the set."""
        for chunk, part, start in reversed(self.runs_of(keys)):  # from the end: a chunk that gets empty is removed
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
        """Removes a key, if it is in the set."""
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


class MidMap(MidSet):
    """An ordered map from numbers to numbers, each from 0 to 2**64 - 1: the keys of a `MidSet`, with a value for each.

    Ensures that values are in chunks like those of the keys, at the same positions."""

    __slots__ = ("_values",)

    def __init__(self, keys: Iterable[int] = (), value: int = 0) -> None:
        """keys: strictly increasing; value: the value of each key."""
        super().__init__(keys)
        self._values = [array("Q", [value]) * len(chunk) for chunk in self._keys]

    @classmethod
    def of(cls, keys: "array[int]", values: "array[int]") -> Self:
        """Makes a map from keys, which are strictly increasing, to values."""
        made = cls(keys)
        made._values = [values[at : at + CHUNK] for at in range(0, len(values), CHUNK)]
        return made

    def pages(self, after: int) -> "Iterator[tuple[array[int], array[int]]]":
        """Yields (keys, values) for the keys greater than after, in order, a chunk at a time. The map must not change
        meanwhile."""
        for chunk in range(bisect_right(self.lasts, after), len(self._keys)):
            keys, values = self._keys[chunk], self._values[chunk]
            at = bisect_right(keys, after)
            yield (keys[at:], values[at:]) if at else (keys, values)

    def get(self, key: int) -> int | None:
        """Returns the value of a key, None if it is not in the map."""
        lasts = self.lasts
        if not lasts or key > lasts[-1]:
            return None
        first = self._keys[0]
        if first[0] == key:
            return self._values[0][0]
        chunk = bisect_left(lasts, key) if key > lasts[0] else 0
        keys = self._keys[chunk]
        at = bisect_left(keys, key)
        return self._values[chunk][at] if keys[at] == key else None

    def set(self, key: int, value: int = 0) -> None:
        """Gives a key a value. A key greater than all others, such as that of a new message, costs no search."""
        lasts = self.lasts
        if lasts and key <= lasts[-1]:
            self._set_within(key, value)
        elif lasts and len(self._keys[-1]) < CHUNK:
            self._keys[-1].append(key)
            self._values[-1].append(value)
            lasts[-1] = key
            self.count += 1
        else:
            self._keys.append(array("Q", (key,)))
            self._values.append(array("Q", (value,)))
            lasts.append(key)
            self.count += 1

    def _set_within(self, key: int, value: int) -> None:
        chunk = bisect_left(self.lasts, key)
        keys, values = self._keys[chunk], self._values[chunk]
        at = bisect_left(keys, key)
        if keys[at] == key:
            values[at] = value
            return
        keys.insert(at, key)
        values.insert(at, value)
        self.count += 1
        if len(keys) > 2 * CHUNK:
            self._keys[chunk : chunk + 1] = [keys[:CHUNK], keys[CHUNK:]]
            self._values[chunk : chunk + 1] = [values[:CHUNK], values[CHUNK:]]
            self.lasts.insert(chunk, keys[CHUNK - 1])

    def set_run(self, keys: Sequence[int], values: Iterable[int]) -> None:
        """Adds keys with their values. keys: increasing, greater than the last one in the map."""
        added, beside = keys if isinstance(keys, array) else array("Q", keys), array("Q", values)
        if self.lasts and len(self._keys[-1]) + len(added) <= 2 * CHUNK:
            self._keys[-1] += added
            self._values[-1] += beside
            self.lasts[-1] = added[-1]
        else:
            for at in range(0, len(added), CHUNK):
                self._keys.append(added[at : at + CHUNK])
                self._values.append(beside[at : at + CHUNK])
                self.lasts.append(self._keys[-1][-1])
        self.count += len(added)

    def pop(self, key: int) -> int | None:
        """Removes a key. Returns its value, None if it was not in the map."""
        lasts = self.lasts
        if not lasts or key > lasts[-1]:
            return None
        chunk = at = 0
        keys = self._keys[0]
        if keys[0] != key:  # nearly always it is the first
            chunk = bisect_left(lasts, key) if key > lasts[0] else 0
            keys = self._keys[chunk]
            at = bisect_left(keys, key)
            if keys[at] != key:
                return None
        del keys[at]
        value = self._values[chunk].pop(at)
        self.count -= 1
        if not keys:
            del self._keys[chunk], self._values[chunk], lasts[chunk]
        elif at == len(keys):
            lasts[chunk] = keys[-1]
        return value

    def values_of(self, keys: Sequence[int]) -> list[int | None]:
        """Returns the values of many keys, None for one that is not in the map. keys: increasing."""
        found: list[int | None] = []
        for chunk, part, start in self.runs_of(keys):
            own, values = self._keys[chunk], self._values[chunk]
            found += [None] * (bisect_left(keys, part[0], len(found)) - len(found))  # for keys between two chunks
            if start is not None:
                found += values[start : start + len(part)]
            elif len(part) * FEW <= len(own):
                places = [bisect_left(own, key) for key in part]
                found += [values[at] if own[at] == key else None for key, at in zip(part, places, strict=True)]
            else:
                found += map(dict(zip(own, values, strict=True)).get, part)
        return found + [None] * (len(keys) - len(found))  # for keys after the last one in the map

    def set_all(self, keys: Sequence[int], value: int) -> None:
        """Gives many keys the same value. keys: increasing."""
        if not keys or (self.lasts and keys[0] <= self.lasts[-1]):
            for key in keys:
                self.set(key, value)
            return
        self.set_run(keys, array("Q", [value]) * len(keys))

    def discard_all(self, keys: Sequence[int]) -> None:
        for chunk, part, start in reversed(self.runs_of(keys)):
            old, values = self._keys[chunk], self._values[chunk]
            if start is not None:
                end = start + len(part)
                left, their = old[:start] + old[end:], values[:start] + values[end:]
            elif len(part) * FEW <= len(old):
                for key in part:
                    self.pop(key)
                continue
            elif (gone := set(part)).isdisjoint(old):
                continue
            else:
                left = array("Q", [key for key in old if key not in gone])
                their = array("Q", [value for key, value in zip(old, values, strict=True) if key not in gone])
            if left:
                self._values[chunk] = their
            else:
                del self._values[chunk]
            self._keep(chunk, left)
