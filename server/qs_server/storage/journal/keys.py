"""The keys of idempotent pushes: which message a key stands for, while a repeated push has to be recognised."""

from collections.abc import Iterator
from hashlib import blake2b

from ..engine import SECOND

WINDOW = 300 * SECOND
"""How long a key is remembered after its push."""

_LOOK = 256
"""Keys that are looked at together."""


def digest(key: str) -> bytes:
    """What stands for a key: 16 bytes, as two keys with the same ones are not to be expected."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Keys:
    """Of one queue."""

    def __init__(self) -> None:
        self.known: dict[bytes, tuple[int, int, int]] = {}
        """Digest -> (id, time of the push, segment that says so), in the order in which they were noted."""

    def find(self, key: bytes, now: int) -> int | None:
        """The message that was pushed with a key, if that was not too long ago."""
        found = self.known.get(key)
        return found[0] if found is not None and found[1] > now - WINDOW else None

    def note(self, key: bytes, mid: int, at: int, segment: int) -> None:
        """A message has been pushed with a key."""
        self.known.pop(key, None)
        self.known[key] = mid, at, segment

    def forget(self, key: bytes) -> None:
        """The push did not happen."""
        self.known.pop(key, None)

    def forget_old(self, now: int, count: int) -> None:
        """Those whose time is over, a few for each of so many pushes."""
        for _ in range(4 * count):
            first = next(iter(self.known), None)
            if first is None or self.known[first][1] > now - WINDOW:
                return
            del self.known[first]

    def before(self, segment: int, now: int) -> Iterator[tuple[bytes, int, int, int] | None]:
        """Those which only older segments know of: key, id, time of the push, and which segment that is; None now and
        then, as there may be a million to look at. They may change meanwhile."""
        for looked_at, key in enumerate(list(self.known), 1):
            found = self.known.get(key)
            if found is not None and found[2] < segment and found[1] > now - WINDOW:
                yield key, *found
            if looked_at % _LOOK == 0:
                yield None
