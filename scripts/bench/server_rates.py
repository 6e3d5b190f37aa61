"""Measures what the server adds to a round trip, a durable push, a deep queue; and what starting the command `qs`
costs.

Each figure is a ratio to the least cost of the same work: a bare trio server, a bare loop over files, a shallow queue,
an interpreter that does nothing. Both sides take turns, round by round, so that other work on the machine hits both.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from bare_disk import BareFiles
from journal_load import SIZE, fill, new_queue
from load import Client, document, mid_in, push_document, rate, rate_of_many
from measuring import Figure, Run, in_turn, ratio
from processes import bare_server, queue_server

_PIPELINE = 32
_CLIENTS = (1, 8, 32)

_DEEP = 200_000
_SHALLOW = 100
_EACH = _SHALLOW // 2
Rates = tuple[float, float, float]
"""Requests a second, of push, receive and delete."""

_QS = Path(sys.executable).parent / "qs"


def roundtrips(run: Run) -> list[Figure]:
    """Compares pushes with the round trips of a bare trio echo server, and pipelined ones with one at a time."""
    rounds, seconds = (3, 0.4) if run.quick else (9, 1.0)
    root = run.folder / "root"  # where the file system puts one directory it puts the other
    push = push_document("q", SIZE)
    with (
        queue_server(root, "--durability", "none") as server,
        bare_server(run.folder, "echo") as echo,
        Client(server.address) as client,
        Client(echo.address) as other,
        BareFiles(root / ".bare", SIZE, sync=False) as bare,
    ):
        client.lines(document(b"new-queue", b"<qid>q</qid>"))
        sides = {
            "single": lambda: rate(seconds, lambda: client.lines(push)),
            "echo": lambda: rate(seconds, lambda: other.same(push)),
            "pipelined": lambda: rate(seconds, lambda: client.lines(push * _PIPELINE, _PIPELINE), _PIPELINE),
            "file": lambda: rate(seconds, bare.store),
        }
        rates = in_turn(sides, rounds)
    return [
        ratio("push, one client, one at a time / bare trio echo", rates["single"], rates["echo"], 0.3),
        ratio(f"push, one client, pipelined by {_PIPELINE} / one at a time", rates["pipelined"], rates["single"], 3),
        Figure("a file created, written, renamed, without a server", median(rates["file"]), unit="/s", digits=0),
    ]


def durable(run: Run) -> list[Figure]:
    """Compares durable pushes by 1, 8 and 32 clients with a loop of create, fsync, rename, fsync of the directory."""
    rounds, seconds = (3, 0.5) if run.quick else (7, 1.5)
    push = push_document("q", SIZE)
    with (
        queue_server(run.folder / "root", "--durability", "always") as server,
        BareFiles(run.folder / "bare", SIZE, sync=True) as files,
    ):
        clients = [Client(server.address) for _ in range(max(_CLIENTS))]
        clients[0].lines(document(b"new-queue", b"<qid>q</qid>"))
        sides: dict[str, Callable[[], float]] = {"bare": lambda: rate(seconds, files.store)}
        sides |= {str(count): partial(rate_of_many, clients[:count], push, seconds) for count in _CLIENTS}
        rates = in_turn(sides, rounds)
        for client in clients:
            client.close()
    name = "create, fsync, rename, fsync"
    return [
        ratio(f"durable pushes, {count} client{'s'[: count > 1]} / {name}", rates[str(count)], rates["bare"])
        for count in _CLIENTS
    ]


def depth(run: Run) -> list[Figure]:
    """Compares push, receive and delete on a queue of 200,000 messages with one of 100."""
    rounds = 20 if run.quick else 100
    root = run.folder / "root"
    shallow = [f"shallow-{number}" for number in range(rounds + 1)]
    deep_rates: list[Rates] = []
    shallow_rates: list[Rates] = []
    with queue_server(root, "--durability", "none") as server, Client(server.address) as client:
        for qid, messages in [("deep", _DEEP), *((qid, _SHALLOW) for qid in shallow)]:
            new_queue(server.address, qid)
            fill(server.address, messages, qid)
        for measured, other in enumerate(shallow):
            turns = [("deep", deep_rates), (other, shallow_rates)]
            for qid, kept in turns if measured % 2 else reversed(turns):
                _round(client, qid, 1)
                kept.append(_round(client, qid, _EACH))
    # The first round warms up.
    return [
        ratio(
            f"{operation}, queue of {_DEEP:,} / of {_SHALLOW}",
            [rates[at] for rates in deep_rates[1:]],
            [rates[at] for rates in shallow_rates[1:]],
            0.9,
        )
        for at, operation in enumerate(("push", "receive", "delete"))
    ]


def _round(client: Client, qid: str, each: int) -> Rates:
    """Pushes, receives and deletes `each` messages, one by one, which leaves the depth unchanged. Returns the rates."""
    name = b"<qid>%s</qid>" % qid.encode()
    push = push_document(qid, SIZE)
    receive = document(b"receive-message", name, b' visibility="3600"')
    pushes, _ = _timed(client, [push] * each)
    receives, answers = _timed(client, [receive] * each)
    deletes, _ = _timed(
        client, [document(b"delete-message", b"%s<mid>%s</mid>" % (name, mid_in(answer))) for answer in answers]
    )
    return pushes, receives, deletes


def _timed(client: Client, requests: list[bytes]) -> tuple[float, list[bytes]]:
    started = time.perf_counter()
    answers = [client.lines(request) for request in requests]
    return len(requests) / (time.perf_counter() - started), answers


def _cost(command: list[str], environment: dict[str, str]) -> float:
    """Returns the seconds of processor time that a command takes: other programs on the machine change these least."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _start_figure(name: str, cost: list[float], bare: list[float], most: float) -> Figure:
    """Compares the fastest runs: other work of the machine only adds to a start."""
    of = f"{min(cost) * 1000:.0f} ms to {min(bare) * 1000:.0f} ms"
    return Figure(f"{name} / python -c pass", min(cost) / min(bare), most, "at most", of=of, digits=1)


def starts(run: Run) -> list[Figure]:
    """Compares `qs --help` and `qs push` with `python -c pass`, in processor time."""
    # Compiled modules: where they are not kept, each start compiles all of them.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    bare: list[float] = []
    shown: list[float] = []
    pushed: list[float] = []
    with queue_server(run.folder / "root", "--durability", "none") as server:
        environment = {**kept, "QS_SERVER": f"{server.address[0]}:{server.address[1]}"}
        subprocess.run([_QS, "new", "orders"], check=True, env=environment)
        commands = (
            ([sys.executable, "-c", "pass"], bare),
            ([str(_QS), "--help"], shown),
            ([str(_QS), "push", "orders", "two apples"], pushed),
        )
        for measured in range(8 if run.quick else 25):
            for command, figures in commands:
                cost = _cost(command, environment)
                if measured:  # the first round compiles
                    figures.append(cost)
    return [_start_figure("qs --help", shown, bare, 4), _start_figure("qs push", pushed, bare, 7.5)]
