#!/usr/bin/env python3
"""Makes the pictures of docs/web.md: runs a queue server, a bus and the page, lets messages flow for a minute, and
takes pictures in Chromium (apt install chromium chromium-driver).

The clock of the page runs ten times as fast, so that its charts are full after a minute.
"""

import math
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import trio

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.servers.processes import (  # noqa: E402
    ServerProcess,
    bus_serving,
    serving,
)
from support.servers.web import INSTALL, Chromium, chromium, missing  # noqa: E402

from qs_client import QueueClient  # noqa: E402
from qs_client.security import PLAIN  # noqa: E402
from qs_serving.listening import open_listeners  # noqa: E402
from qs_web.app import make_app  # noqa: E402
from qs_web.http_server import HttpServer  # noqa: E402
from qs_web.options import WebOptions  # noqa: E402
from qs_web.serving import make_services  # noqa: E402
from qs_web.upstream import Identity  # noqa: E402

IMAGES = HERE.parent / "docs" / "images"
SPEED = 10
SECONDS = 62
BUSY = {"orders": 9, "invoices": 4, "mail": 6, "thumbnails": 12, "search-index": 7}
"""Queues and how many messages they get in a tenth of a second, on average."""
ORDER = (
    '{"order": 4711, "customer": "A. N. Other", "express": true, "lines": [{"sku": "apple", "count": 2, '
    '"price": 0.40}, {"sku": "pear", "count": 1, "price": 0.55}], "note": "<please ring twice>"}'
)


def prepare(client: QueueClient) -> None:
    """Makes the queues, and what does not change in them."""
    for name in (*BUSY, "audit", "reports", "webhooks", "mail-dead"):
        client.new_queue(name)
    client.set_queue("mail", dead_letter="mail-dead", max_receives=1)
    client.set_queue("orders", visibility=60, capacity=100_000)
    client.push_many("audit", ["<entry><who>ops</who><what>login</what></entry>"] * 2_400)
    client.push_many("webhooks", ['{"event": "paid"}'] * 37)
    client.push("reports", "monthly", delay=3600)
    client.pause("webhooks")
    client.set_queue("reports", max_in_flight=1)
    client.push_many("reports", ["daily", "weekly"])
    client.receive("reports", visibility=3600)
    first = {
        "content-type": "application/json",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
    client.push("mail", ORDER, priority=5, group="customer 4711", headers=first)
    client.release(client.receive("mail")[0], reason="ConnectionRefusedError: mail.example.org does not answer")


def flow(server: ServerProcess, until: float) -> None:
    """Lets messages through the queues, some of which cannot be handled."""
    chance = random.Random(7)
    with QueueClient(server.host, server.port) as client:
        while (left := until - time.monotonic()) > 0:
            for number, (name, rate) in enumerate(BUSY.items()):
                wave = 1 + 0.6 * math.sin(left / 9 + number) + chance.random() * 0.5
                client.push_many(name, [ORDER] * round(rate * wave))
                taken = client.receive(name, max=max(round(rate * (wave + 0.25 * math.sin(left / 5))), 1))
                if name == "mail" and taken and chance.random() < 0.2:
                    client.release(taken.pop())
                client.delete_many(taken)
            time.sleep(0.1)


class Page:
    """The page, in a thread of this process."""

    def __init__(self, options: WebOptions) -> None:
        self._options = options
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run,))
        self.port = 0
        self._stop: Callable[[], None] = lambda: None

    async def _run(self) -> None:
        services = make_services(
            self._options, Identity(lambda: PLAIN), sign_in=False, clock=lambda: time.monotonic() * SPEED
        )
        listeners = await open_listeners("127.0.0.1", 0)
        server = HttpServer(make_app(services), listeners, None, 1)
        self.port = listeners[0].socket.getsockname()[1]
        token = trio.lowlevel.current_trio_token()
        self._stop = lambda: token.run_sync_soon(server.stop)
        self._ready.set()
        await server.serve()
        await services.upstreams.close()

    def __enter__(self) -> "Page":
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join()


def take(window: Chromium, name: str, path: str, height: int = 900) -> None:
    """Takes a picture of a page. height: of the window."""
    window.open(path)
    window.resize(int(str(window.run("return innerWidth"))), height)
    window.driver.save_screenshot(str(IMAGES / f"{name}.png"))
    print(name)


def main() -> int:
    """Makes the pictures. Returns 0."""
    if missing():
        sys.exit(f"screenshots.py needs Chromium: {INSTALL}")
    folder = Path(tempfile.mkdtemp(prefix="qs-screenshots-"))
    with serving(folder / "root") as server, bus_serving(server, "-q", "audit-log") as bus:
        options = WebOptions(server=(server.host, server.port), bus=(bus.host, bus.port))
        with QueueClient(server.host, server.port) as client, Page(options) as page:
            prepare(client)
            url = f"http://127.0.0.1:{page.port}"
            with chromium(url) as window:
                window.open("/")  # asks for figures all the while
                flow(server, time.monotonic() + SECONDS)
                dead = next(client.list_messages("mail-dead", state="all"))
                running = threading.Thread(target=flow, args=(server, time.monotonic() + 25))
                running.start()
                take(window, "page-queues", "/", 960)
                take(window, "page-queue", "/queue?q=orders", 1000)
                take(window, "page-message", f"/message?q=mail-dead&id={dead}", 900)
                take(window, "page-server", "/server", 1000)
                window.open("/queue?q=audit")
                window.press("Purge…")
                window.until_text("for good")
                window.resize(1280, 560)
                window.driver.save_screenshot(str(IMAGES / "page-purge.png"))
            with chromium(url, dark=True) as window:
                take(window, "page-queues-dark", "/", 960)
            with chromium(url, 400) as window:
                take(window, "page-phone", "/", 1000)
            running.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
