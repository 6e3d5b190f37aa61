"""The payloads that were written last, in memory up to a bound.

They are kept in slices of the log, and the oldest slice goes as a whole when there is too much: that costs nothing for
each message. A payload that is deleted leaves at once.
"""

from collections.abc import Sequence

from .places import segment_of

CACHE = 64 << 20
"""Bytes of payloads that are kept unless somebody says otherwise."""
_SLICE = 23
"""Bits of a place within its slice: 8 MiB of log."""
_OVERHEAD = 200
"""Bytes that a payload in memory takes beside its own, about."""


class _Slice:
    __slots__ = ("payloads", "size")

    def __init__(self) -> None:
        self.payloads: dict[int, bytes] = {}
        self.size = 0


class PayloadCache:
    """Payloads by their places."""

    def __init__(self, limit: int) -> None:
        """limit: bytes, 0 for none."""
        self.limit = limit
        self.size = 0
        """Bytes that are taken, about."""
        self._slices: dict[int, _Slice] = {}

    def get(self, place: int) -> bytes | None:
        """The payload at a place, if it is here."""
        found = self._slices.get(place >> _SLICE)
        return None if found is None else found.payloads.get(place)

    def put(self, places: Sequence[int], payloads: Sequence[bytes], size: int) -> None:
        """Keeps payloads that were just written, side by side. size: of all of them."""
        key = places[0] >> _SLICE
        found = self._slices.get(key)
        if found is None:
            found = self._slices[key] = _Slice()
        if places[-1] >> _SLICE == key:
            found.payloads.update(zip(places, payloads, strict=True))
            size += _OVERHEAD * len(places)
            found.size += size
            self.size += size
        else:
            for place, payload in zip(places, payloads, strict=True):
                self._put(place, payload)

    def trim(self) -> None:
        """Drops what is too much. To be called when all that is here is in the log."""
        while self.size > self.limit:
            self.size -= self._slices.pop(next(iter(self._slices))).size

    def _put(self, place: int, payload: bytes) -> None:
        found = self._slices.setdefault(place >> _SLICE, _Slice())
        found.payloads[place] = payload
        found.size += len(payload) + _OVERHEAD
        self.size += len(payload) + _OVERHEAD

    def drop(self, place: int) -> None:
        """The payload at a place is not needed any more."""
        found = self._slices.get(place >> _SLICE)
        if found is not None and (payload := found.payloads.pop(place, None)) is not None:
            size = len(payload) + _OVERHEAD
            found.size -= size
            self.size -= size
            if not found.payloads:  # an emptied dict keeps its room: a slice of many payloads some 300 KB
                del self._slices[place >> _SLICE]

    def forget(self, segment: int) -> None:
        """The segment is removed: payloads that were copied from it are never asked for at their old places."""
        for key in [key for key in self._slices if segment_of(key << _SLICE) == segment]:
            self.size -= self._slices.pop(key).size
