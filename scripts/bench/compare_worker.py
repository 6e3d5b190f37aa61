"""The processes that are the clients: compare_worker.py is started by `compare_load`, with a line of JSON on stdin.

It forks a process for each client, or one for all connections of a raw load or for clients that are threads. When all
have connected it prints `ready`, and reads when to begin, by the monotonic clock, which is the same for all processes.
It returns the counts as a pickle.
"""

import asyncio
import contextlib
import gc
import importlib
import json
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from load import Connection, drive
from peer import Client


@dataclass
class Work:
    """The work of the clients. kind: push, cycle (push, receive, delete) or fill; size: bytes of a message; batch:
    messages at once; clients: in all; threads: of one process; raw: connections of one process; most: messages of a
    fill, in all."""

    kind: str
    size: int
    batch: int
    clients: int
    threads: bool = False
    raw: bool = False
    most: int = 0


@dataclass
class Times:
    """Times of the monotonic clock: start of the load, begin and end of counting."""

    start: float
    begin: float
    until: float


@dataclass
class Tally:
    """Counts messages between begin and until. latencies: seconds, of a call or a round; cpu: seconds."""

    times: Times
    worth: int
    messages: int = 0
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    cpu: float = 0.0
    pushed: int = 0
    _before: float | None = None
    _after: float | None = None

    def ended(self, began: float, now: float) -> None:
        """Counts an operation with its times of begin and end."""
        self.pushed += self.worth
        if now < self.times.begin or self._after is not None:
            return
        if self._before is None:
            self._before = _cpu()
        if now <= self.times.until:
            self.messages += self.worth
            self.latencies.append(now - began)
        else:
            self._after = _cpu()

    def close(self) -> None:
        """Notes the processor time at the end of the work."""
        self.cpu = (_cpu() if self._after is None else self._after) - (_cpu() if self._before is None else self._before)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _work(client: Client, work: Work, tally: Tally) -> None:
    """Repeats the work until the time is over."""
    payloads = [b"x" * work.size] * work.batch
    until = tally.times.until
    most = work.most // work.clients if work.kind == "fill" else sys.maxsize
    push = getattr(client, "fill", client.push) if work.kind == "fill" else client.push
    now = time.monotonic()
    while now < until and tally.pushed < most:
        began = now
        await push(payloads)
        if work.kind == "cycle":
            await _take(client, work.batch, until)
        now = time.monotonic()
        tally.ended(began, now)


async def _take(client: Client, count: int, until: float) -> None:
    """Receives and deletes as many messages as were pushed. Every client pushes first, so there are always enough."""
    while count > 0:  # nats-py may give more than was asked for
        received = await client.receive(count)
        if received:
            await client.delete(received)
            count -= len(received)
        elif time.monotonic() > until:
            return


class _Child:
    """A forked process. It reports when it is connected, reads the times, and sends its tallies."""

    def __init__(self, run: Any) -> None:
        told_out, self._told = os.pipe()
        self._says, says_in = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._told)
            os.close(self._says)
            try:
                with open(says_in, "wb") as says, open(told_out, "rb") as told:
                    _child(run, says, told)
            finally:
                os._exit(0)
        os.close(told_out)
        os.close(says_in)
        self._reads = open(self._says, "rb")  # noqa: SIM115 - closed in `end`

    def connected(self) -> None:
        """Waits until the client is connected."""
        self._answer()

    def begin(self, times: Times) -> None:
        os.write(self._told, pickle.dumps(times))
        os.close(self._told)

    def tallies(self) -> list[Tally]:
        found: list[Tally] = self._answer()
        return found

    def _answer(self) -> Any:
        try:
            kind, value = pickle.load(self._reads)
        except EOFError:
            raise RuntimeError("a client ended without a report") from None
        if kind == "failed":
            raise RuntimeError(value)
        return value

    def end(self) -> None:
        self._reads.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _child(run: Any, says: Any, told: Any) -> None:
    def say(kind: str, value: Any) -> None:
        pickle.dump((kind, value), says)
        says.flush()

    def times() -> Times:
        say("connected", None)
        found: Times = pickle.load(told)
        time.sleep(max(0.0, found.start - time.monotonic()))
        return found

    try:
        say("done", run(times))
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        say("failed", f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}:{last.lineno})")


def _of_clients(target: dict[str, Any], work: Work, count: int) -> Any:
    """Runs `count` clients in a process, as tasks of one loop."""
    connect = importlib.import_module(target["module"]).connect

    async def run(times: Any) -> list[Tally]:
        clients: Sequence[Client] = [await connect(target) for _ in range(count)]
        told = times()
        tallies = [Tally(told, work.batch) for _ in clients]
        await asyncio.gather(*(_work(client, work, tally) for client, tally in zip(clients, tallies, strict=True)))
        for client, tally in zip(clients, tallies, strict=True):
            tally.close()
            await client.close()
        return tallies

    return lambda times: asyncio.run(run(times))


def _of_threads(target: dict[str, Any], work: Work) -> Any:
    """Runs all clients in one process, a thread each. The process's CPU is counted once."""
    connect = importlib.import_module(target["module"]).connect

    def run(times: Any) -> list[Tally]:
        clients = [asyncio.run(connect(target)) for _ in range(work.clients)]
        told = times()
        tallies = [Tally(told, work.batch) for _ in clients]
        failed: list[BaseException] = []

        def one(client: Client, tally: Tally) -> None:
            try:
                asyncio.run(_work(client, work, tally))
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=one, args=both) for both in zip(clients, tallies, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        tallies[0].close()
        return tallies

    return run


def _of_raw(target: dict[str, Any], work: Work) -> Any:
    """Runs all raw connections in one process."""
    script = importlib.import_module(target["module"]).script

    def run(times: Any) -> list[Tally]:
        address = tuple(target.get("address") or ("127.0.0.1", target["port"]))
        said = script(target, work.kind, work.size, work.batch)
        connections = [Connection(address, said) for _ in range(work.clients)]
        told = times()
        tally = Tally(told, said.worth)
        most = work.most or sys.maxsize

        def ended(began: float, now: float) -> bool:
            tally.ended(began, now)
            return tally.pushed < most

        drive(connections, ended, told.until)
        tally.close()
        return [tally]

    return run


def main() -> None:
    """Reads the work from stdin, does it, and writes the counts to stdout."""
    order = json.loads(sys.stdin.readline())
    target, work = order["target"], Work(**order["work"])
    importlib.import_module(target["module"])
    for name in order["imports"]:
        importlib.import_module(name)
    gc.freeze()  # what is imported is not copied by the forked processes
    if work.raw:
        runs = [_of_raw(target, work)]
    elif work.threads:
        runs = [_of_threads(target, work)]
    else:
        runs = [_of_clients(target, work, 1) for _ in range(work.clients)]
    children: list[_Child] = []
    result: tuple[str, Any]
    told = False
    try:
        for run in runs:
            children.append(_Child(run))  # noqa: PERF401 - those that were made are ended, if one cannot be
        for child in children:
            child.connected()
        print("ready", flush=True)
        told = True
        times = Times(**json.loads(sys.stdin.readline()))
        for child in children:
            child.begin(times)
        tallies = [tally for child in children for tally in child.tallies()]
        latencies = array("d")
        for tally in tallies:
            latencies.extend(tally.latencies)
        figures = (sum(tally.messages for tally in tallies), sum(tally.cpu for tally in tallies), latencies)
        result = ("done", (*figures, sum(tally.pushed for tally in tallies)))
    except Exception as error:
        result = ("failed", str(error) or type(error).__name__)
        if not told:
            print("ready", flush=True)  # it is asked for what went wrong
    finally:
        for child in children:
            child.end()
    sys.stdout.flush()
    pickle.dump(result, sys.stdout.buffer)


if __name__ == "__main__":
    main()
