"""An ordered map from message ids to whole numbers, with 16 bytes an entry: a `MidSet` with a value for each id."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from .midset import CHUNK, FEW, MidSet


class MidMap(MidSet):
    """Keys and values are 0 to 2**64 - 1."""

    __slots__ = ("_values",)

    def __init__(self, keys: Iterable[int] = (), value: int = 0) -> None:
        """keys: strictly increasing; each gets the value."""
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
        added, beside = array("Q", keys), array("Q", values)
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
