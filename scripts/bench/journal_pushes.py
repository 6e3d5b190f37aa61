"""Measures pushes and lone cycles of the store: whether they keep their speed, and their rates beside Redis and
beanstalkd.

All clients are raw sockets with ready-made bytes. The compared servers run at the same time and are measured in turn.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path

import peer_beanstalkd
import peer_qs
import peer_redis
from journal_load import SIZE, close, connect, rate, series
from load import Connection
from measuring import Figure, Run, in_turn, ratio
from peer import Peer

_FIRST = 5
_WINDOW = 10
_PIPELINED = 32


def _peer(key: str) -> Peer:
    """Returns a peer that is driven through raw sockets, by its key."""
    every = [*peer_qs.peers("journal"), *peer_redis.peers(), *peer_beanstalkd.peers()]
    return next(peer for peer in every if peer.key == key)


class Sides:
    """Servers that run at the same time, by their keys. Close them with `with`.

    All of them run while one is measured: a server that was started for its own turn would have a cold cache, and a
    disk that still writes the bytes of the server before it.
    """

    def __init__(self, folder: Path, keys: Sequence[str]) -> None:
        self._stack = ExitStack()
        self._targets = {}
        for key in keys:
            if missing := _peer(key).missing:
                print(f"{_peer(key).name} is left out: {missing}", flush=True)
            else:
                own = folder / key
                own.mkdir()
                self._targets[key] = self._stack.enter_context(_peer(key).started(own)).target

    def __enter__(self) -> "Sides":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def connect(self, key: str, work: str, count: int, batch: int = 1) -> list[Connection]:
        """Opens that many connections to a server. work: push or cycle; batch: commands sent together."""
        target = {**self._targets[key], "lists": False}
        address = tuple(target.get("address") or ("127.0.0.1", target["port"]))
        script = import_module(target["module"]).script(target, work, SIZE, batch)
        made = connect(address, script, count)
        self._stack.callback(close, made)
        return made

    def in_turn(self, work: str, count: int, batch: int, rounds: int, seconds: float) -> dict[str, list[float]]:
        """Returns messages a second of each server, round by round, after a round that warms up."""
        made = {key: self.connect(key, work, count, batch) for key in self._targets}
        return in_turn({key: partial(rate, sides, batch, seconds) for key, sides in made.items()}, rounds)


def _ratios(name: str, rates: Mapping[str, Sequence[float]], targets: Mapping[str, tuple[str, float]]) -> list[Figure]:
    """Returns the ratios of qs to the others. targets: by key, the name of a server, and the target."""
    return [
        ratio(f"{name}: qs / {shown}", rates["qs-raw"], rates[key], target)
        for key, (shown, target) in targets.items()
        if key in rates
    ]


def _slowest(done: Sequence[float]) -> float:
    """Returns the least messages a second in any ten seconds. done: messages of each second."""
    width = min(_WINDOW, len(done))
    return min(sum(done[at : at + width]) / width for at in range(len(done) - width + 1))


def sustained(run: Run) -> list[Figure]:
    """Measures whether the speed of pushes without a consumer holds: 8 connections that pipeline 32; qs / Redis."""
    seconds = run.options.seconds or (15 if run.quick else 120)
    with Sides(run.folder, ("qs-raw", "redis-raw")) as sides:
        done = series(sides.connect("qs-raw", "push", 8, _PIPELINED), _PIPELINED, seconds)
        first = sum(done[:_FIRST]) / min(_FIRST, len(done))
        slowest = _slowest(done)
        name = f"{seconds:.0f} s of pushes, 8 connections that pipeline 32: slowest 10 s / first 5 s"
        held = Figure(name, slowest / first, 0.8, of=f"{slowest:,.0f}/s to {first:,.0f}/s; {sum(done):,.0f} messages")
        rates = sides.in_turn("push", 8, _PIPELINED, *((2, 1.0) if run.quick else (5, 5.0)))
    name = "after that, pushes by 8 connections that pipeline 32"
    return [held, *_ratios(name, rates, {"redis-raw": ("Redis always", 0.9)})]


def singly(run: Run) -> list[Figure]:
    """Compares pushes by 32 connections, one at a time: qs / Redis appendfsync always, qs / beanstalkd -f 0."""
    with Sides(run.folder, ("qs-raw", "redis-raw", "beanstalkd-raw")) as sides:
        rates = sides.in_turn("push", 32, 1, *((2, 0.5) if run.quick else (7, 2.0)))
    targets = {"redis-raw": ("Redis always", 1.0), "beanstalkd-raw": ("beanstalkd -f 0", 3.0)}
    return _ratios("pushes by 32 connections, one at a time", rates, targets)


def cycle(run: Run) -> list[Figure]:
    """Compares push, receive and delete over one connection: qs / beanstalkd -f 0."""
    with Sides(run.folder, ("qs-raw", "beanstalkd-raw")) as sides:
        rates = sides.in_turn("cycle", 1, 1, *((2, 0.5) if run.quick else (7, 2.0)))
    return _ratios("push + receive + delete, one connection", rates, {"beanstalkd-raw": ("beanstalkd -f 0", 0.8)})
