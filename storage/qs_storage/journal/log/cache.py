"""Keeps the most recently written payloads in memory, up to a limit.

Payloads are grouped by slices of the log; over the limit, the oldest slice is dropped as a whole, at no cost per
message.
"""

from collections.abc import Sequence
from itertools import repeat

from .places import segment_of

CACHE = 64 << 20
"""The default limit in bytes."""
_SLICE = 23
"""Bits of a place within its slice: a slice is 8 MiB of log."""
_OVERHEAD = 200
"""Estimated bytes of memory that a payload takes beyond its own."""


class _Slice:
    __slots__ = ("payloads", "size")

    def __init__(self) -> None:
        self.payloads: dict[int, bytes] = {}
        self.size = 0


class PayloadCache:
    """Keeps payloads by their places."""

    def __init__(self, limit: int) -> None:
        """limit: bytes of memory, 0 to keep nothing."""
        self.limit = limit
        self.size = 0
        """Estimated bytes of memory in use."""
        self._slices: dict[int, _Slice] = {}

    def get(self, place: int) -> bytes | None:
        slice_ = self._slices.get(place >> _SLICE)
        return None if slice_ is None else slice_.payloads.get(place)

    def put(self, places: Sequence[int], payloads: Sequence[bytes], size: int) -> None:
        """Keeps payloads that were just appended one after the other. size: bytes of all of them."""
        key = places[0] >> _SLICE
        slice_ = self._slices.get(key)
        if slice_ is None:
            slice_ = self._slices[key] = _Slice()
        if places[-1] >> _SLICE == key:
            slice_.payloads.update(zip(places, payloads, strict=True))
            size += _OVERHEAD * len(places)
            slice_.size += size
            self.size += size
        else:
            for place, payload in zip(places, payloads, strict=True):
                self.keep(place, payload)

    def trim(self) -> None:
        """Drops the oldest slices until the size is within the limit. Call it once all payloads are in the log."""
        while self.size > self.limit:
            self.size -= self._slices.pop(next(iter(self._slices))).size

    def keep(self, place: int, payload: bytes) -> None:
        """Keeps one payload, which may be there already."""
        slice_ = self._slices.setdefault(place >> _SLICE, _Slice())
        if place in slice_.payloads:
            return
        slice_.payloads[place] = payload
        slice_.size += len(payload) + _OVERHEAD
        self.size += len(payload) + _OVERHEAD

    def drop_all(self, places: Sequence[int]) -> None:
        """Drops many payloads of one segment, in a third of the time. places: not empty; one may have no payload."""
        for key in range(min(places) >> _SLICE, (max(places) >> _SLICE) + 1):
            slice_ = self._slices.get(key)
            if slice_ is None:
                continue
            gone = [each for each in map(slice_.payloads.pop, places, repeat(None)) if each is not None]
            size = sum(map(len, gone)) + _OVERHEAD * len(gone)
            slice_.size -= size
            self.size -= size
            if not slice_.payloads:
                del self._slices[key]

    def drop(self, place: int) -> None:
        slice_ = self._slices.get(place >> _SLICE)
        if slice_ is not None and (payload := slice_.payloads.pop(place, None)) is not None:
            size = len(payload) + _OVERHEAD
            slice_.size -= size
            self.size -= size
            if not slice_.payloads:  # an emptied dict keeps its memory, some 300 KB for a slice of small payloads
                del self._slices[place >> _SLICE]

    def forget(self, segment: int) -> None:
        """Drops the payloads of a removed segment; copied ones have new places."""
        for key in [key for key in self._slices if segment_of(key << _SLICE) == segment]:
            self.size -= self._slices.pop(key).size
