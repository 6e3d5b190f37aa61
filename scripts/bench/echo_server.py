"""The least that a trio server can do: it sends back what it gets. A process of its own, for comparison."""

import contextlib

import trio


async def echo(stream: trio.SocketStream) -> None:
    """Echoes until the client has gone."""
    async for data in stream:
        await stream.send_all(data)


async def main() -> None:
    """On a free port of loopback, which it prints."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listeners[0].socket.getsockname()[:2]
    print(f"listening on {host}:{port}", flush=True)
    await trio.serve_listeners(echo, listeners)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        trio.run(main)
