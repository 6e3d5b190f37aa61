"""The figures of a server or a bus, by name and labels; and the real Prometheus, which scrapes them."""

import contextlib
import json
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qs_client import Figure, QueueClient
from support.servers.processes import PROJECT, Wire

CONNECTION = ("connection_start_time_seconds", "connection_subscriptions")
"""The figures of each connection."""


class Figures:
    """The figures that a server has answered."""

    def __init__(self, figures: list[Figure]) -> None:
        self.all = figures

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Returns the figures of a name with these labels, by another label."""
        chosen = [each for each in self.all if each.name == name and labels.items() <= each.labels.items()]
        return {each.labels[label]: each.value for each in chosen}

    def get(self, name: str, **labels: str) -> float:
        """Returns one figure, 0 for a missing one."""
        return sum(each.value for each in self.all if (each.name, each.labels) == (name, labels))

    def requests(self, operation: str) -> dict[str, float]:
        """Returns how many requests of an operation there were, by code."""
        return self.by("requests_total", "code", operation=operation)


def look(client: QueueClient) -> Figures:
    """Asks for the figures."""
    return Figures(client.server_stats())


def address(wire: Wire) -> str:
    """Returns the address that the server knows a connection by."""
    host, port = wire.socket.getsockname()
    return f"{host}:{port}"


class Connected(NamedTuple):
    """The figures of one connection."""

    peer: str
    principal: str
    started: float
    subscriptions: float


def look_at_connections(client: QueueClient) -> list[Connected]:
    """Asks for the figures of each connection, in their order."""
    found = [figure for figure in client.server_stats(connections=True) if figure.name in CONNECTION]
    assert [figure.name for figure in found] == [*CONNECTION] * (len(found) // 2)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert all(first.labels == second.labels for first, second in pairs)
    return [Connected(**first.labels, started=first.value, subscriptions=second.value) for first, second in pairs]


ALERTS = PROJECT / "packaging" / "prometheus" / "alerts.yml"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="NOT TESTED: there is no prometheus on this machine (apt install prometheus)",
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="NOT TESTED: there is no promtool on this machine (apt install prometheus)",
)


def promtool(*arguments: str, given: str = "") -> str:
    """Runs promtool, which must not complain. Returns its output."""
    done = subprocess.run(
        ["promtool", *arguments], input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Alertmanager:
    """Receives the alerts that Prometheus reports. `fired` waits for one."""

    def __init__(self) -> None:
        reports: queue.Queue[list[dict[str, Any]]] = queue.Queue()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._reports = reports
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def fired(self, name: str, within: float = 60) -> dict[str, Any]:
        """Waits until an alert is reported. Raises queue.Empty if it is not reported in time."""
        until = time.monotonic() + within
        while True:
            for alert in self._reports.get(timeout=max(until - time.monotonic(), 0.001)):
                if alert["labels"]["alertname"] == name:
                    return alert

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Alertmanager]:
    """Runs the real Prometheus, which scrapes the page at `target` every second, with the project's configuration
    except for its times, and reports alerts. One more alert, `Scraped`, is reported once Prometheus has seen the server
    up."""
    shutil.copy(ALERTS, folder / "alerts.yml")
    (folder / "scraped.yml").write_text("groups: [{name: t, rules: [{alert: Scraped, expr: qs_up == 1}]}]\n")
    alertmanager = Alertmanager()
    config = (ALERTS.parent / "prometheus.yml").read_text().replace("15s", "1s").replace("127.0.0.1:9880", target)
    config = config.replace("  - alerts.yml\n", "  - alerts.yml\n  - scraped.yml\n")
    config += f'alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager.port}"]}}]}}]}}\n'
    (folder / "prometheus.yml").write_text(config)
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/tsdb",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        yield alertmanager
    finally:
        process.terminate()
        process.wait(30)
        alertmanager.close()
