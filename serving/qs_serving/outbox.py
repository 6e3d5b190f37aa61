"""Queues bytes to send to one client.

Putting data in never waits. A task sends the data that the socket does not take at once; the task exists only while
there is data to send.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import trio

from .transport import Transport


class Outbox:
    """Sends documents in the order in which they are put.

    Ensures that no byte of a document follows half of another, also when the task that sends is cancelled. Once the
    connection is lost or `close` was called, the outbox accepts all data and sends nothing, so that callers of `put`
    need not check first. It never waits, and never drops data that it has accepted: its owner bounds `unsent`."""

    __slots__ = (
        "_drained", "_emptied", "_nursery", "_transport", "_waiting", "_written", "closed", "unsent", "used",
    )  # fmt: skip

    def __init__(
        self,
        transport: Transport,
        nursery: trio.Nursery,
        written: Callable[[Any], None] = lambda token: None,
        emptied: Callable[[], None] = lambda: None,
    ) -> None:
        """nursery: runs the task that sends; written: called with the token of data that the task has sent; emptied:
        called when the task ends, because the socket has taken everything, or the outbox is closed."""
        self._transport = transport
        self._nursery = nursery
        self._written = written
        self._emptied = emptied
        self._waiting: deque[tuple[bytes | memoryview, Any]] | None = None
        self._drained: trio.Event | None = None
        self.closed = False
        """True once nothing is sent any more: the connection is lost, or `close` was called."""
        self.unsent = 0
        """Bytes that the socket has not taken."""
        self.used = False
        """True if anything has been put in."""

    def put(self, data: bytes, token: Any = None) -> bool:
        """Sends bytes. Returns True if the socket has taken all of them at once. If not, calls `written` with the token
        after the socket has taken them, unless the token is None or the connection is lost before."""
        sent = 0
        self.used = True
        if not self._waiting:
            if self.closed:
                return False
            try:
                sent = self._transport.send_now(data)
            except trio.BrokenResourceError:
                self.close()
                return False
            if sent == len(data):
                return True
            self._waiting = deque()
            self._nursery.start_soon(self._flush)
        rest = memoryview(data)[sent:] if sent else data
        self._waiting.append((rest, token))
        self.unsent += len(rest)
        return False

    def put_all(self, documents: Sequence[bytes], together: bytes, tokens: Iterable[Any]) -> int:
        """Sends documents with one call of the socket. Returns how many of the first ones the socket has taken at once.
        Keeps the others one by one, each with its token, as if each had been put by itself.

        together: the documents joined, which the caller may use for several clients."""
        if self.put(together):
            return len(documents)
        if self.closed or not self._waiting:
            return 0
        waiting, taken, at = self._waiting, 0, 0
        rest, _ = waiting.pop()  # what the socket has not taken, which is divided here
        sent = len(together) - len(rest)
        begun = 0 if waiting else sent + self._transport.begun
        ends = list(accumulate(map(len, documents)))
        for document, end, token in zip(documents, ends, tokens, strict=True):
            if end <= sent:
                taken += 1
            elif at >= begun:
                waiting.append((document, token))
            elif at <= sent:  # what has been begun stays in one piece, up to the end of a document
                whole = next(other for other in ends if other >= begun)
                waiting.append((bytes(memoryview(together)[sent:whole]), token))  # a view would keep all in memory
            else:
                waiting.append((b"", token))  # written when the piece before it is
            at = end
        return taken

    async def drained(self) -> None:
        """Waits until the socket has taken everything. Raises trio.BrokenResourceError if the connection is lost."""
        while self._waiting:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()
        if self.closed:
            raise trio.BrokenResourceError("connection lost")

    async def _flush(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                data, token = waiting[0]
                if data:
                    await self._transport.send_all(data)
                if not waiting:
                    break  # closed meanwhile
                waiting.popleft()
                self.unsent -= len(data)
                if token is not None:
                    self._written(token)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.close()
        except trio.Cancelled:
            self.close()  # a line may be sent in part, and nothing may follow it
            raise
        finally:
            is_last = self._waiting is waiting  # `written` may have put in more, which another task sends
            if is_last:
                self._waiting = None
            self._wake()
            if is_last:
                self._emptied()

    def withdraw(self, unwanted: Callable[[Any], bool]) -> None:
        """Removes data that is not to be sent any more. unwanted: returns True for the token of such data. Data without
        a token stays, and so does the first entry, which the socket may have taken in part. With TLS that entry may
        have several documents, of which the later ones are sent although their entries are removed."""
        waiting = self._waiting
        if waiting:
            begun, *rest = waiting
            kept = [entry for entry in rest if entry[1] is None or not unwanted(entry[1])]
            self.unsent -= sum(len(data) for data, _ in rest) - sum(len(data) for data, _ in kept)
            waiting.clear()
            waiting.extend([begun, *kept])

    def close(self) -> None:
        """Drops the data that has not been sent, and sends nothing from now on."""
        self.closed = True
        if self._waiting:
            self._waiting.clear()
        self.unsent = 0
        self._wake()

    def _wake(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None
