"""Idle means idle: with nothing to do, neither the bus nor the server wakes up, however many are connected."""

import contextlib
import select
from pathlib import Path

import pytest
from support.bus.clients import acknowledge, subscribe
from support.clients.documents import mids, new_queue, push_list
from support.servers.processes import BusProcess, ServerProcess, Wire, bus_serving, polling, serving, settled, woken

PUSHED = 5


def _client(bus: BusProcess, kind: int) -> tuple[Wire, str]:
    """One that only connects, or subscribes: acknowledging, or not, or with a name. And what it is."""
    wire = Wire(bus)
    what = ("silent", "ack", "silent", "plain", "silent", "name")[kind % 6]
    if what != "silent":
        request = subscribe("q", ack=what != "plain", name=f"n{kind}" if what == "name" else "")
        assert "<subscribe/>" in wire.ask(request)
    return wire, what


def _measure(server: ServerProcess, bus: BusProcess, clients: int, seconds: float, poll: float) -> None:
    """Lets that many connect, and all of them work, and then counts."""
    with contextlib.ExitStack() as stack:
        connected = [_client(bus, number) for number in range(clients)]
        for wire, _ in connected:
            stack.enter_context(wire)
        with Wire(server) as pusher:
            # A silent one is subscribed a moment after it has connected. This is the last of them.
            last = stack.enter_context(Wire(bus))
            while not select.select([last.socket], [], [], 0.1)[0]:
                pusher.ask(push_list("q", "first"))
            pushed = mids(pusher.ask(push_list("q", *("x" * PUSHED))))
            for wire, what in connected:
                found: list[int] = []
                while not found or found[-1] != pushed[-1]:
                    found += mids(wire.line())
                if what in ("ack", "name"):
                    wire.ask(acknowledge("q", *found))
        # What was acknowledged last is still being deleted, and the bus looks after the silent ones for some seconds,
        # once a second.
        settled(server.process.pid, bus.process.pid, seconds=1.2)
        control = polling(poll)
        try:
            found = woken(seconds, server.process.pid, bus.process.pid, control.pid)
        finally:
            control.kill()
            control.communicate()
    print(f"wake-ups in {seconds} s with {clients} clients: server {found[0]}, bus {found[1]}, a poll {found[2]}")
    assert found[2] > 1, "this would not see a poll"
    assert found[0] <= 1
    assert found[1] <= 1


@pytest.mark.slow
def test_nothing_wakes_up(tmp_path: Path) -> None:
    """With all kinds of clients connected, and everything handled, nobody wakes up; a poll would be seen. 14 s."""
    with serving(tmp_path / "root", "--durability", "none") as server:
        with Wire(server) as wire:
            wire.ask(new_queue("q"))
        with bus_serving(server, "--queue", "q") as bus:
            _measure(server, bus, clients=100, seconds=5, poll=1)
