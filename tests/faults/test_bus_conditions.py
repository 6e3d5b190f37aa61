"""Bus and server killed and stopped while large payloads stand in line to be evaluated."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.bus.clients import gone
from support.clients.documents import mids, new_queue, push
from support.servers.processes import FAST, BusProcess, ServerProcess, Wire, bus_serving, lasting_port

from qs_client import BusClient

COUNT = 40
FILLER = "x" * 100_000


class Reader(threading.Thread):
    """Takes messages by a condition and acknowledges them. payloads: how each payload began, with repeats."""

    def __init__(self, bus: BusProcess, more: threading.Condition, **how: str) -> None:
        super().__init__(daemon=True)
        self.payloads: list[str] = []
        self._more = more
        self._client = BusClient(bus.host, bus.port, on_trouble=lambda text: None)
        self._messages = self._client.subscribe("q", ack=True, where="/a/@of='me'", **how)
        self._messages.open()
        self.start()

    def run(self) -> None:
        for message in self._messages:
            with self._more:
                self.payloads.append(message.text.partition(">")[0])
                self._more.notify_all()

    def close(self) -> None:
        self._client.close()
        self.join(20)
        assert not self.is_alive()


def kill_bus(server: ServerProcess, bus: BusProcess) -> None:
    bus.kill()
    bus.start()


def stop_bus(server: ServerProcess, bus: BusProcess) -> None:
    assert bus.stop() == 0
    bus.start()


def kill_server(server: ServerProcess, bus: BusProcess) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("fault", [kill_bus, stop_bus, kill_server])
def test_large_payloads_in_line(fault: Callable[[ServerProcess, BusProcess], None], tmp_path: Path) -> None:
    """Every message that matches reaches the plain subscriber and the name, in order; none that does not match reaches
    anybody; and all leave the queue."""
    more = threading.Condition()
    server = ServerProcess(tmp_path / "root", *FAST, port=lasting_port())
    try:
        with Wire(server) as producer:
            producer.ask(new_queue("q"))
        # Little memory: most of what stands in line is dropped, and fetched again.
        with bus_serving(server, "-q", "q", "--outbox", "500000", port=lasting_port()) as bus:
            readers = [Reader(bus, more), Reader(bus, more, name="n")]
            wanted = [f'<a n="{number}" of="me"' for number in range(0, COUNT, 2)]
            for part in range(2):
                with Wire(server) as producer:
                    numbers = range(part * COUNT // 2, (part + 1) * COUNT // 2)
                    for number in numbers:
                        of = "others" if number % 2 else "me"
                        assert mids(producer.ask(push("q", f'&lt;a n="{number}" of="{of}">{FILLER}&lt;/a>')))
                with more:
                    # In the middle of what was pushed.
                    half = len(wanted) * (part + 1) // 2 - 5
                    assert more.wait_for(lambda: len(set(readers[0].payloads)) >= half, 20)  # noqa: B023
                fault(server, bus)
            with more:
                assert more.wait_for(lambda: all(set(wanted) <= set(each.payloads) for each in readers), 30)
            with Wire(server) as producer:
                assert gone(producer, "q")
                assert gone(producer, "bus:q:n")
            for reader in readers:
                reader.close()
                assert list(dict.fromkeys(reader.payloads)) == wanted
    finally:
        server.stop()
