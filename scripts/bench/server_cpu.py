"""The processor time of the server for each message: this checkout beside another one (`--before DIR`).

Both servers run all the time, by the same interpreter and with durability `always`, and are loaded in turn, round by
round, by the same raw connections. The processor time of the whole process counts, so that other programs on the
machine disturb little. The load costs processor time too, which is shown: on two cores it takes part of what the server
could have, so the rates of this load would say little.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median

import peer_qs
from journal_load import SIZE, close, connect, new_queue
from load import Script, drive
from measuring import Figure, Run, in_turn, ratio
from processes import PROJECT, Process, queue_server

_LOADS: dict[str, tuple[int, Callable[[], Script], float]] = {
    "push, 32 connections, one at a time": (32, lambda: peer_qs.pushes(SIZE, 1), 0.6),
    "push, 8 connections that pipeline 32": (8, lambda: peer_qs.pushes(SIZE, 32), 0.5),
    "push + receive + delete, 8 connections": (8, lambda: peer_qs.Cycle(SIZE), 0.7),
}
"""The loads: connections, what each sends, and the most that the figure may be of that of the other checkout."""


def server_cpu(run: Run) -> list[Figure]:
    """Compares the server's processor time of a push, and of push, receive and delete, with another checkout's."""
    before = run.options.before and run.options.before.resolve()
    if before is not None and not (before / "scripts" / "queue-server.py").exists():
        return [Figure("processor time of the server", None, of=f"{before} is no checkout of qs")]
    rounds, seconds = (3, 1.0) if run.quick else (7, 4.0)
    figures: list[Figure] = []
    for number, (name, (connections, script, target)) in enumerate(_LOADS.items()):
        costs: list[float] = []
        checkouts = {"after": PROJECT} | ({} if before is None else {"before": before})
        with ExitStack() as stack:
            sides: dict[str, Callable[[], float]] = {}
            for side, checkout in checkouts.items():
                server = stack.enter_context(queue_server(run.folder / f"{number}-{side}", checkout=checkout))
                new_queue(server.address)
                sides[side] = partial(_microseconds, server, connections, script, seconds, costs)
            found = in_turn(sides, rounds)
        if "before" in found:
            title = f"processor time of the server, {name}: after / before"
            figures.append(ratio(title, found["after"], found["before"], target, "at most", " us"))
        else:
            title = f"processor time of the server, {name}"
            figures.append(Figure(title, median(found["after"]), unit=" us", of="--before DIR compares", digits=1))
        figures.append(Figure(f"processor time of the load, {name}", median(costs), unit=" us", digits=1))
    return figures


def _microseconds(
    server: Process, connections: int, script: Callable[[], Script], seconds: float, costs: list[float]
) -> float:
    """Returns the server's processor time for each message, and adds that of the load to costs."""
    said = script()
    done = 0

    def ended(_: float, __: float) -> bool:
        nonlocal done
        done += said.worth
        return True

    opened = connect(server.address, said, connections)
    used, own = server.processor_seconds(), time.process_time()
    drive(opened, ended, time.monotonic() + seconds)
    used, own = server.processor_seconds() - used, time.process_time() - own
    close(opened)
    costs.append(own / done * 1e6)
    return used / done * 1e6
