"""Many subscribers in a process of their own, as cheap as can be: they count lines and bytes, and parse nothing.

Run as a program, its arguments are: host, port, the number of subscribers, and the bytes that each sends first ("" for
nothing; otherwise one line answers them); or, for subscribers that send different ones, the bytes of each. It prints
`ready` when all are connected. Then it reads lines with a number of messages. For each line it counts until every
subscriber got that many messages: it prints the clock each time that as many lines have come as there are subscribers,
then `done` and the bytes. A subscriber that got more or less than the others ends the program with an error.
"""

import os
import select
import socket
import sys
import time
from collections.abc import Sequence

from processes import Assistant

_TIMEOUT = 60
_buffer = bytearray(1 << 16)


class Subscribers(Assistant):
    """Many connections to an address in a process of their own; each has sent its greeting."""

    def __init__(self, address: tuple[str, int], many: int | Sequence[bytes], greeting: bytes = b"") -> None:
        """many: connections, or the greeting of each; greeting: the bytes that each sends first, which one line
        answers; empty for nothing."""
        self.many = many if isinstance(many, int) else len(many)
        greetings = [greeting] if isinstance(many, int) else many
        super().__init__("subscribers.py", *address, self.many, *(each.decode() for each in greetings))

    def expect(self, messages: int) -> None:
        """Tells the process to count until each subscriber has that many messages."""
        self.tell(b"%d" % messages)


def connect(address: tuple[str, int], greeting: bytes) -> socket.socket:
    """Connects a subscriber, whose greeting is answered."""
    connected = socket.create_connection(address, _TIMEOUT)
    if greeting:
        connected.sendall(greeting)
        answer = b""
        while not answer.endswith(b"\n"):
            data = connected.recv(4096)
            if not data:
                raise RuntimeError(f"the connection was closed after {answer!r}")
            answer += data
        if b'type="error"' in answer:
            raise RuntimeError(answer.decode())
    return connected


def count(epoll: select.epoll, sockets: dict[int, socket.socket], messages: int) -> int:
    """Reads until each subscriber got so many messages, and returns the bytes of all."""
    lines = dict.fromkeys(sockets, 0)
    each = len(sockets)
    got = size = 0
    mark = each
    while got < messages * each:
        ready = epoll.poll(_TIMEOUT)
        if not ready:
            raise RuntimeError(f"nothing came in {_TIMEOUT} s, after {got} of {messages * each} deliveries")
        for descriptor, _ in ready:
            length = sockets[descriptor].recv_into(_buffer)
            if not length:
                raise RuntimeError(f"a connection was closed after {lines[descriptor]} deliveries")
            found = _buffer.count(b"\n", 0, length)
            lines[descriptor] += found
            got += found
            size += length
        while got >= mark:
            os.write(1, b"%.6f\n" % time.perf_counter())
            mark += each
    if set(lines.values()) != {messages}:
        raise RuntimeError(f"{messages} messages, but {min(lines.values())} to {max(lines.values())} deliveries")
    return size


def main() -> None:
    """Counts the messages that the lines of stdin ask for."""
    host, port, many, *greetings = sys.argv[1:]
    each = greetings * int(many) if len(greetings) == 1 else greetings
    connected = [connect((host, int(port)), greeting.encode()) for greeting in each]
    sockets = {subscriber.fileno(): subscriber for subscriber in connected}
    epoll = select.epoll()
    for descriptor in sockets:
        epoll.register(descriptor, select.EPOLLIN)
    os.write(1, b"ready\n")
    for order in sys.stdin:
        os.write(1, b"done %d\n" % count(epoll, sockets, int(order)))


if __name__ == "__main__":
    main()
