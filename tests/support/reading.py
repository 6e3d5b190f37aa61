"""Reads from a transport in a task, as tests do; servers take what comes in a plain call."""

import trio

from qs_serving.transport import Transport


class Reading:
    """What comes from a transport, kept for the test. failed: the error with which reading ended, None without one."""

    def __init__(self, transport: Transport) -> None:
        self.failed: Exception | None = None
        self.parts: list[bytes] = []
        self._transport = transport
        self._changed = trio.Event()
        transport.start(self._take, self._fail)

    def _take(self, data: bytes) -> None:
        self.parts.append(data)
        self._changed.set()

    def _fail(self, error: Exception) -> None:
        self.failed = error
        self._changed.set()

    async def some(self) -> bytes:
        """Takes out what one read gave, none at the end of the stream. Raises the error with which reading ended."""
        while not self.parts:
            if self.failed is not None:
                raise self.failed
            self._changed = trio.Event()
            await self._changed.wait()
        return self.parts.pop(0)

    async def bytes(self, count: int) -> bytes:
        """Takes out as many bytes, which have to be the end of one read."""
        got = b""
        while len(got) < count:
            got += await self.some()
        assert len(got) == count
        return got
