"""The least that a trio server can do, in a process of its own, to compare the server and the bus with.

bare_server.py KIND prints the free port of loopback on which it listens. The kinds:

- `echo`: sends back each byte that it gets.
- `answers`: reads the documents and answers OK to each; `answers-once`: answers once to all documents of a read.
- `fanout`: sends the same bytes to every connection. A connection that says nothing costs a task that waits in
  `receive_some`, and no more. A connection that speaks is a control: it sends a line with the way, the messages, the
  connections and the length, then that many bytes. Once there are so many connections, the bytes are sent to each of
  them so many times, and then `done` answers the control. The way is `stream`, trio's own `send_all`, or `socket`: the
  system call and nothing else, with trio only when it would block.
"""

import contextlib
import os
import socket
import sys

import trio

_ANSWER = b"OK\r\n"
_streams: list[trio.SocketStream] = []
_more = trio.lowlevel.ParkingLot()


async def echo(stream: trio.SocketStream) -> None:
    """Sends back each byte until the client has gone."""
    async for data in stream:
        await stream.send_all(data)


async def answers(stream: trio.SocketStream) -> None:
    """Answers each document. Every document ends in a line feed, and has no other."""
    async for data in stream:
        documents = data.count(b"\n")
        if documents:
            await stream.send_all(_ANSWER * documents)


async def answers_once(stream: trio.SocketStream) -> None:
    """Answers once to all the documents that a read has ended."""
    async for data in stream:
        if b"\n" in data:
            await stream.send_all(_ANSWER)


async def fanout(stream: trio.SocketStream) -> None:
    """Sends to this connection until the client has gone. If the client speaks, takes orders from it."""
    _streams.append(stream)
    _more.unpark_all()
    first = await stream.receive_some()
    _streams.remove(stream)
    if first:
        await _control(stream, bytes(first))


async def _control(stream: trio.SocketStream, data: bytes) -> None:
    """Carries out one order after the other."""
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


async def _by_stream(delivery: bytes, messages: int, streams: list[trio.SocketStream]) -> None:
    """Sends with `send_all`, like a usual program on trio."""
    for _ in range(messages):
        for stream in streams:
            await stream.send_all(delivery)


async def _by_socket(delivery: bytes, messages: int, streams: list[trio.SocketStream]) -> None:
    """Sends each delivery with one system call, as long as the reader keeps up. Other tasks run after each message."""
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


_WAYS = {b"stream": _by_stream, b"socket": _by_socket}
_KINDS = {"echo": echo, "answers": answers, "answers-once": answers_once, "fanout": fanout}


async def main(kind: str) -> None:
    """Serves on a free port of loopback, which it prints."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listeners[0].socket.getsockname()[:2]
    print(f"listening on {host}:{port}", flush=True)
    await trio.serve_listeners(_KINDS[kind], listeners)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        trio.run(main, sys.argv[1])
