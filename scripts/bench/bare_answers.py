"""The least that a trio server can do for pushes: it reads the documents and answers OK to each, or once to whatever it
has read. A process of its own, for comparison: bare_answers.py [--once]."""

import contextlib
import sys

import trio

_ANSWER = b"OK\r\n"


async def serve(stream: trio.SocketStream) -> None:
    """Answers until the client has gone. Every document ends in a line feed, and has no other."""
    once = "--once" in sys.argv
    async for data in stream:
        answers = data.count(b"\n")
        if once:
            answers = min(answers, 1)
        if answers:
            await stream.send_all(_ANSWER * answers)


async def main() -> None:
    """On a free port of loopback, which it prints."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listeners[0].socket.getsockname()[:2]
    print(f"listening on {host}:{port}", flush=True)
    await trio.serve_listeners(serve, listeners)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        trio.run(main)
