"""Opens the end of a queue's directory in each layout."""

from qs_storage import vsqs
from qs_storage.settings import read_options

from .bodies import Body
from .dirq_end import DirqEnd, open_dirq
from .flow import End, Taken
from .layouts import DIRQ, VSQS


class VsqsEnd:
    def __init__(self, path: str, *, sync: bool, capacity: int | None, visibility: float, put_only: bool) -> None:
        """capacity: messages, None: what the directory says; visibility: seconds; put_only: see `open_end`."""
        self._visibility = visibility
        # The library waits for room under the bound that it is given; over that of the directory it is an error.
        bounds = [bound for bound in (capacity, read_options(path, "files").capacity) if bound is not None]
        self._queue = vsqs.Queue(path, min(bounds, default=None), create=True, publish_only=put_only, sync=sync)

    def put(self, payload: bytes, seconds: float) -> bool:
        try:
            self._queue.publish(payload, timeout=seconds)
        except vsqs.QueueFullException:
            return False
        return True

    def take(self, seconds: float) -> Taken | None:
        mid, payload = self._queue.receive(self._visibility, timeout=seconds)
        return None if mid is None or payload is None else Taken(mid, mid.zfill(18), payload)

    def remove(self, taken: Taken) -> None:
        self._queue.delete(taken.name)

    def give_back(self, taken: Taken) -> None:
        """Does nothing: the message comes back when its window ends."""

    def close(self) -> None:
        self._queue.close()


def open_end(
    path: str,
    layout: str,
    body: Body,
    *,
    sync: bool = True,
    capacity: int | None = None,
    visibility: float = 10,
    put_only: bool = False,
) -> End:
    """Opens a directory, made if missing. put_only: so a server may have the queue. OSError; StorageError."""
    if layout == VSQS:
        return VsqsEnd(path, sync=sync, capacity=capacity, visibility=visibility, put_only=put_only)
    return DirqEnd(open_dirq(path, layout, body, sync=sync), path, body if layout == DIRQ else None)
