"""Programs that use the Python clients with a token, and fail in as many ways as there are. They print all they can:
tracebacks with local variables, repr, logs.

Usage: python -m support.clients.secret_clients HOST PORT BUS_PORT CLOSED_PORT CA OTHER_CA. The tokens are in the
variables MARK and WRONG.
"""

import contextlib
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable

import trio

from qs_client import AsyncQueueClient, Authenticate, BusClient, QueueClient


def main() -> None:
    host, port, bus_port, closed_port, ca, other_ca = sys.argv[1:]
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    token, wrong = os.environ.pop("MARK"), os.environ.pop("WRONG")
    right = QueueClient(host, int(port), tls=ca, token=token)
    bus = BusClient(host, int(bus_port), tls=ca, token=token, reconnect=False)
    for each in (right, bus, right.token, right.security, Authenticate(right.token.reveal()), [vars(right)]):
        print(repr(each), str(each))
    failures: list[Callable[[], object]] = [
        lambda: QueueClient(host, int(port), tls=other_ca, token=token).ping(),
        lambda: QueueClient("127.0.0.2", int(port), tls=ca, token=token).ping(),
        lambda: QueueClient(host, int(port), token=token, timeout=5).ping(),
        lambda: QueueClient(host, int(closed_port), tls=ca, token=token).ping(),
        lambda: QueueClient(host, int(port), tls=ca, token=wrong).ping(),
        lambda: right.push("others", b"x"),
        lambda: right.delete("orders", 17),
        lambda: pickle.dumps(right.token),
        lambda: next(iter(BusClient(host, int(bus_port), tls=ca, token=wrong, reconnect=False).subscribe("orders"))),
        lambda: next(iter(bus.subscribe("others"))),
        lambda: trio.run(_fails_async, host, int(port), ca, wrong),
        lambda: trio.run(_fails_async, host, int(port), other_ca, token),
        lambda: QueueClient(f"qss://{host}:{port}/{'x' * 10}", tls=ca),
        lambda: QueueClient(host, int(port), tls="/nowhere/ca.pem", token=token),
    ]
    for number, fails in enumerate(failures):
        try:
            fails()
        except Exception:
            print(f"failed as it should: {number}", flush=True)
            traceback.print_exc()
        else:
            print(f"did not fail: {number}", flush=True)
    with contextlib.suppress(Exception):
        bus.close()
    right.push("others", b"the end is a traceback")


async def _fails_async(host: str, port: int, ca: str, token: str) -> None:
    async with AsyncQueueClient(host, port, tls=ca, token=token) as client:
        await client.ping()


if __name__ == "__main__":
    main()
