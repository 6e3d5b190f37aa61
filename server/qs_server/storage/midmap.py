"""An ordered map from message ids to small whole numbers, in 16 bytes an entry.

A queue holds hundreds of thousands of ids; as Python objects in a dict they would take ten times that. Keys and values
lie in sorted chunks of machine words. Appending at the end and taking from the front, what a queue does, touch
one chunk; anything else is two binary searches and a short move.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

_CHUNK = 1024


class MidMap:
    """Keys and values are 0 to 2**64 - 1."""

    __slots__ = ("_keys", "_lasts", "_length", "_values")

    def __init__(self, keys: Iterable[int] = (), value: int = 0) -> None:
        """keys: in increasing order, none twice; each gets the value."""
        whole = array("Q", keys)
        self._length = len(whole)
        self._keys = [whole[at : at + _CHUNK] for at in range(0, len(whole), _CHUNK)]
        self._values = [array("Q", [value]) * len(chunk) for chunk in self._keys]
        self._lasts = [chunk[-1] for chunk in self._keys]

    def __len__(self) -> int:
        return self._length

    def __contains__(self, key: int) -> bool:
        return self.get(key) is not None

    def first(self) -> int | None:
        """The smallest key."""
        return self._keys[0][0] if self._keys else None

    def last(self) -> int | None:
        """The greatest key."""
        return self._lasts[-1] if self._lasts else None

    def get(self, key: int) -> int | None:
        """The value of a key."""
        lasts = self._lasts
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
        """Adds a key, or changes its value."""
        lasts = self._lasts
        if lasts and key <= lasts[-1]:
            self._set_within(key, value)
        elif lasts and len(self._keys[-1]) < _CHUNK:
            self._keys[-1].append(key)
            self._values[-1].append(value)
            lasts[-1] = key
            self._length += 1
        else:
            self._keys.append(array("Q", (key,)))
            self._values.append(array("Q", (value,)))
            lasts.append(key)
            self._length += 1

    def extend(self, keys: range, values: Iterable[int] | None = None) -> None:
        """Adds keys that are all greater than the last one. values: one each; None: zeros."""
        chunk = array("Q", keys)
        added = array("Q", bytes(8 * len(chunk)) if values is None else values)
        if self._lasts and len(self._keys[-1]) + len(chunk) <= 2 * _CHUNK:
            self._keys[-1] += chunk
            self._values[-1] += added
            self._lasts[-1] = chunk[-1]
            self._length += len(chunk)
            return
        for at in range(0, len(chunk), _CHUNK):
            self._keys.append(chunk[at : at + _CHUNK])
            self._values.append(added[at : at + _CHUNK])
            self._lasts.append(self._keys[-1][-1])
        self._length += len(chunk)

    def _set_within(self, key: int, value: int) -> None:
        chunk = bisect_left(self._lasts, key)
        keys, values = self._keys[chunk], self._values[chunk]
        at = bisect_left(keys, key)
        if keys[at] == key:
            values[at] = value
            return
        keys.insert(at, key)
        values.insert(at, value)
        self._length += 1
        if len(keys) > 2 * _CHUNK:
            self._split(chunk)

    def _split(self, chunk: int) -> None:
        for parts in (self._keys, self._values):
            whole = parts[chunk]
            parts[chunk : chunk + 1] = [whole[:_CHUNK], whole[_CHUNK:]]
        self._lasts.insert(chunk, self._keys[chunk][-1])

    def pop(self, key: int) -> int | None:
        """Removes a key; its value, or None when it was not there."""
        lasts = self._lasts
        if not lasts or key > lasts[-1]:
            return None
        chunk = at = 0
        keys = self._keys[0]
        if keys[0] != key:  # else it is the oldest, as nearly always
            chunk = bisect_left(lasts, key) if key > lasts[0] else 0
            keys = self._keys[chunk]
            at = bisect_left(keys, key)
            if keys[at] != key:
                return None
        del keys[at]
        value = self._values[chunk].pop(at)
        self._length -= 1
        if not keys:
            del self._keys[chunk], self._values[chunk], lasts[chunk]
        elif at == len(keys):
            lasts[chunk] = keys[-1]
        return value

    def after(self, key: int, count: int) -> list[int]:
        """At most count keys greater than key (-1: from the smallest), in order."""
        found: list[int] = []
        chunk = bisect_right(self._lasts, key)
        at = bisect_right(self._keys[chunk], key) if chunk < len(self._keys) else 0
        while chunk < len(self._keys) and len(found) < count:
            found += self._keys[chunk][at : at + count - len(found)]
            chunk, at = chunk + 1, 0
        return found
