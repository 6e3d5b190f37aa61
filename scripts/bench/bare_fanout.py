"""The least that a trio server can do for many: a loop that sends the same bytes to every connection. A process of its
own, for comparison. A connection that says nothing costs it a task that waits in `receive_some`, and no more.

A connection that speaks is a control: it names the way, the messages, the connections and the length, then gives that
many bytes. They are sent so often to each of so many, once there are so many, and `done` answers it. The way is
`stream`, trio's own `send_all`, or `socket`: the system call and nothing else, with trio only when it would block.
"""

import contextlib
import os
import socket

import trio

_streams: list[trio.SocketStream] = []
_more = trio.lowlevel.ParkingLot()


async def serve(stream: trio.SocketStream) -> None:
    """Sends until the client has gone."""
    _streams.append(stream)
    _more.unpark_all()
    first = await stream.receive_some()
    _streams.remove(stream)
    if first:
        await control(stream, bytes(first))


async def control(stream: trio.SocketStream, data: bytes) -> None:
    """One order after the other."""
    while True:
        while b"\n" not in data:
            data += await stream.receive_some()
        head, _, data = data.partition(b"\n")
        way, *numbers = head.split()
        messages, connections, length = map(int, numbers)
        while len(data) < length:
            data += await stream.receive_some()
        while len(_streams) < connections:
            await _more.park()
        await _WAYS[way](data[:length], messages, _streams[:connections])
        data = data[length:]
        await stream.send_all(b"done\n")
        if not data:
            data = bytes(await stream.receive_some())
            if not data:
                return


async def by_stream(delivery: bytes, messages: int, streams: list[trio.SocketStream]) -> None:
    """Sends as a program on trio does."""
    for _ in range(messages):
        for stream in streams:
            await stream.send_all(delivery)


async def by_socket(delivery: bytes, messages: int, streams: list[trio.SocketStream]) -> None:
    """One system call for each delivery, as long as the reader keeps up; others get their turn after each message."""
    sockets = [socket.socket(fileno=os.dup(stream.socket.fileno())) for stream in streams]
    try:
        for _ in range(messages):
            for connected in sockets:
                rest = delivery
                while rest:
                    try:
                        rest = rest[connected.send(rest) :]
                    except BlockingIOError:
                        await trio.lowlevel.wait_writable(connected)
            await trio.lowlevel.checkpoint()
    finally:
        for connected in sockets:
            connected.close()


_WAYS = {b"stream": by_stream, b"socket": by_socket}


async def main() -> None:
    """On a free port of loopback, which it prints."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listeners[0].socket.getsockname()[:2]
    print(f"listening on {host}:{port}", flush=True)
    await trio.serve_listeners(serve, listeners)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        trio.run(main)
