"""A socket for one event loop: reads and writes what it can at once, and waits for it without blocking others."""

import contextlib
import socket

import anyio

_PIECE = 64 * 1024  # of what is read at a time: more would be taken from the system, and given back, each time


class AsyncWire:
    """sock: connected, not blocking, from now on the wire's. One task at a time may wait; any may send."""

    def __init__(self, sock: socket.socket) -> None:
        self.cut = False  # the socket takes nothing any more; what the other side said before can still be read
        self._sock = sock
        self._out = bytearray()  # what the socket did not take yet
        self._waits: anyio.CancelScope | None = None  # while somebody waits for the socket to be readable only

    def give_up_after(self, seconds: float) -> None:
        """As AsyncConnection has it."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None:
            self._sock.setsockopt(socket.IPPROTO_TCP, option, round(seconds * 1000))

    @property
    def unsent(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._out)

    def send(self, data: bytes = b"") -> None:
        """Sends what was left and then the data, as far as the socket takes it; keeps the rest."""
        if self.cut:
            return
        if self._out:
            self._out += data
            del self._out[: self._taken(self._out)]
        else:
            taken = self._taken(data)
            if taken < len(data):
                self._out += memoryview(data)[taken:]
        if self._out and self._waits is not None:
            self._waits.cancel()  # whoever waits is to wait for the socket to take more, too

    def _taken(self, data: bytes | bytearray) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self.cut = True  # the other side may have said why before it hung up: whoever reads will see
            return len(data)

    def receive(self) -> bytes | None:
        """What has come, at most 64 KiB; b"" at the end of the stream; None when nothing has. OSError when it broke."""
        try:
            return self._sock.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return None

    def has_input(self) -> bool:
        """Whether something has come, be it the end."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass
        return True

    async def wait(self, deadline: float) -> bool:
        """Until there is something to read, or the socket takes what is to be sent, or `send` says that there is more;
        or until the deadline: then False."""
        with anyio.CancelScope(deadline=deadline) as scope:
            if self._out:
                await self._readable_or_writable()
            else:
                self._waits = scope
                try:
                    await anyio.wait_readable(self._sock)
                finally:
                    self._waits = None
        return not scope.cancelled_caught or anyio.current_time() < deadline

    async def _readable_or_writable(self) -> None:
        async with anyio.create_task_group() as group:

            async def writable() -> None:
                await anyio.wait_writable(self._sock)
                group.cancel_scope.cancel()

            group.start_soon(writable)
            await anyio.wait_readable(self._sock)
            group.cancel_scope.cancel()

    def end(self) -> None:
        """Says that nothing more will be sent; what the other side says can still be read."""
        self._out.clear()
        self.cut = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def shut_down(self) -> None:
        """Ends the stream both ways, which wakes whoever waits. Before `close`: while somebody waits on the descriptor,
        that must not become another's."""
        self._out.clear()
        self.cut = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives the descriptor back. Of a connection that is not this process's, that is all that may be done."""
        self._sock.close()
