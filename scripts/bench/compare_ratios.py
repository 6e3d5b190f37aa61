"""The ratios with a target.

Both sides of a ratio are measured in turn, round by round, while both run all the time; the ratio is the median of the
rounds' ratios. So it says the same on a fast machine and on a slow one.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bare_disk import BareJournal
from compare_cells import Plan
from compare_load import CellError, measured
from compare_worker import Work
from journal_load import fill
from machine import Disk
from measuring import Bound, Figure, ratio
from peer import QUEUE, Peer, Running
from processes import bare_server

from qs_client import QueueClient

_SIZE = 1024
_SHALLOW = 1000
_LEAST_BATCHED = 50_000
"""Messages a second in lists of 100 that are the target where the journal alone does not manage four times as many."""
Side = Callable[[], float]
"""Measures a rate once."""


def _say(what: str) -> None:
    print(f"[ratios] {what}", file=sys.stderr, flush=True)


@dataclass
class Ratios:
    """Measures the ratios of `compare`.

    Ensures that a side that fails costs only the ratios that need it, each of which has a line that says why, and that
    the ratios found until then are in `found`, however the measuring ends.

    peers: by key, the ones that can run here; found: gets each ratio at once; absent: why the other peers cannot run.
    """

    peers: Mapping[str, Peer]
    absent: Mapping[str, str]
    folder: Path
    plan: Plan
    found: list[Figure]

    def __post_init__(self) -> None:
        self._disk = Disk.of(self.folder)
        self._why = dict(self.absent)
        self._until = time.monotonic() + self.plan.ratios

    def measure(self) -> None:
        """Measures all ratios. A failed ratio has a line that says so."""
        for part in (
            self._pushes,
            self._alone,
            self._pipelined,
            self._cycles,
            self._pipelines,
            self._batches,
            self._depths,
        ):
            try:
                if time.monotonic() > self._until:
                    raise CellError("no time was left")
                part()
            except (CellError, OSError, RuntimeError) as error:
                self._add(Figure(part.__name__.strip("_"), None, of=str(error).replace("\n", " ")[:300]))

    def _add(self, figure: Figure) -> None:
        self.found.append(figure)
        _say(" ".join(figure.cells()))

    def _side(self, peer: Peer, running: Running, work: str, clients: int, batch: int = 1) -> Side:
        done = Work(work, _SIZE, batch, clients, peer.threads, peer.raw)
        return lambda: measured(peer, running, done, self.plan.round, self._disk)[0].rate

    def _started(self, stack: ExitStack, keys: Sequence[str], name: str) -> dict[str, Running]:
        running = {}
        for key in keys:
            if key in self.peers:
                _say(f"starting {self.peers[key].name}")
                folder = self.folder / f"{name}-{key}"
                folder.mkdir()
                running[key] = stack.enter_context(self.peers[key].started(folder))
        return running

    def _turns(self, sides: Mapping[str, Side]) -> dict[str, list[float]]:
        """Returns the rates of each side, round by round, every other round backwards, after one that warms up. Leaves
        out a side that fails."""
        # Like `in_turn`, but for the sides that fail: other projects' programs may, after minutes.
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(self.plan.rounds + 1):
            for name in list(rates) if number % 2 else list(reversed(rates)):
                try:
                    rate = sides[name]()
                except CellError as error:
                    self._why[name] = f"{name}: {error}"
                    _say(self._why[name])
                    del rates[name]
                    continue
                if number:
                    rates[name].append(rate)
        return rates

    def _versus(
        self,
        name: str,
        rates: Mapping[str, Sequence[float]],
        sides: tuple[str, str],
        target: float | None,
        bound: Bound = "at least",
    ) -> None:
        over, under = (rates.get(side) for side in sides)
        if not over or not under:
            why = "; ".join(self._why.get(side, f"{side} was left out") for side in sides if not rates.get(side))
            self._add(Figure(name, None, target, bound, of=why))
            return
        self._add(ratio(name, over, under, target, bound))

    def _pushes(self) -> None:
        rates = self._measured(
            "push",
            32,
            ("qs", "qs-raw", "beanstalkd", "beanstalkd-raw", "redis", "redis-raw", "rabbitmq", "nats-always"),
        )
        name = "durable push, 32 clients, one at a time: qs / "
        self._versus(f"{name}beanstalkd -f 0", rates, ("qs", "beanstalkd"), 1.2)
        self._versus(f"{name}Redis always", rates, ("qs", "redis"), 1.1)
        self._versus(f"{name}RabbitMQ confirms", rates, ("qs", "rabbitmq"), 1, "more than")
        self._versus(f"{name}JetStream sync always", rates, ("qs", "nats-always"), 1, "more than")
        self._versus(f"{name}beanstalkd -f 0, raw sockets both", rates, ("qs-raw", "beanstalkd-raw"), 4)
        self._versus(f"{name}Redis always, raw sockets both", rates, ("qs-raw", "redis-raw"), 1)

    def _alone(self) -> None:
        rates = self._measured("push", 1, ("qs-raw", "beanstalkd-raw"))
        name = "durable push, 1 client: qs / beanstalkd -f 0, raw sockets both"
        self._versus(name, rates, ("qs-raw", "beanstalkd-raw"), 0.9)

    def _pipelined(self) -> None:
        rates = self._measured("push", 8, ("qs-raw", "redis-raw"), 32)
        name = "durable push, 8 connections that pipeline 32: qs / Redis always"
        self._versus(name, rates, ("qs-raw", "redis-raw"), 1)

    def _cycles(self) -> None:
        for clients, target, raw_target, rabbit in ((8, 0.8, None, None), (1, 0.5, 0.9, 1.3)):
            rates = self._measured("cycle", clients, ("qs", "qs-raw", "beanstalkd", "beanstalkd-raw", "rabbitmq"))
            name = f"durable push + receive + delete, {clients} client{'s'[: clients > 1]}: qs / "
            self._versus(f"{name}beanstalkd -f 0", rates, ("qs", "beanstalkd"), target)
            self._versus(f"{name}beanstalkd -f 0, raw sockets both", rates, ("qs-raw", "beanstalkd-raw"), raw_target)
            self._versus(f"{name}RabbitMQ confirms", rates, ("qs", "rabbitmq"), rabbit)

    def _measured(self, work: str, clients: int, keys: Sequence[str], batch: int = 1) -> dict[str, list[float]]:
        """Starts these peers, and returns their rates. Raw connections of qs send a batch as pipelined documents."""
        with ExitStack() as stack:
            running = self._started(stack, keys, f"{work}-{clients}-{batch}")
            for one in running.values():
                one.target["lists"] = False
            return self._turns(
                {key: self._side(self.peers[key], running[key], work, clients, batch) for key in running}
            )

    @contextmanager
    def _bare(self, kind: str) -> Iterator[Running]:
        with bare_server(self.folder, kind) as server:
            yield Running({"module": "peer_qs", "address": server.address, "lists": False}, server.pid)

    def _pipelines(self) -> None:
        if "qs-raw" not in self.peers:
            return
        peer = self.peers["qs-raw"]
        with ExitStack() as stack:
            server = self._started(stack, ("qs-raw",), "pipelines")["qs-raw"]
            server.target["lists"] = False
            bare, once = (stack.enter_context(self._bare(kind)) for kind in ("answers", "answers-once"))
            together = {"qs": server, "bare": bare}
            rates = self._turns({name: self._side(peer, one, "push", 8, 32) for name, one in together.items()})
            apart = {**together, "once": once}
            singly = self._turns({name: self._side(peer, one, "push", 32) for name, one in apart.items()})
        name = "durable push, 8 connections that pipeline 32: qs / a bare trio server that answers each"
        self._versus(name, rates, ("qs", "bare"), 0.75)
        name = "durable push, 32 connections, one at a time: qs / a bare trio server that answers"
        self._versus(f"{name} each", singly, ("qs", "bare"), None)
        self._versus(f"{name} once per read", singly, ("qs", "once"), None)

    def _batches(self) -> None:
        with ExitStack() as stack:
            journal = stack.enter_context(BareJournal(self.folder / "journal", _SIZE, 100))
            running = self._started(stack, ("qs", "qs-raw"), "batches")
            sides: dict[str, Side] = {
                key: self._side(self.peers[key], one, "push", 8, 100) for key, one in running.items()
            }
            rates = self._turns({**sides, "journal": lambda: journal.rate(self.plan.round.counted)})
        if not rates.get("journal"):
            raise CellError(self._why["journal"])
        target = round(max(_LEAST_BATCHED / median(rates["journal"]), 0.25), 2)
        for key, shown_as in (("qs", "Python clients"), ("qs-raw", "raw sockets")):
            if rates.get(key):
                name = f"durable push, lists of 100, 8 {shown_as}: qs / the journal alone"
                self._versus(name, rates, (key, "journal"), target)

    def _depths(self) -> None:
        """Measures deep and shallow queues, each with a server of its own. A new shallow queue is made before each
        push."""
        depth = self.plan.depth
        if "qs" not in self.peers or not depth:
            return
        peer = self.peers["qs"]
        with ExitStack() as stack:
            _say(f"filling to {depth:,}")
            deep = self._started(stack, ("qs",), "deep")["qs"]
            fill(deep.target["address"], depth)
            shallow = self._started(stack, ("qs",), "shallow")["qs"]

            def anew(side: Side) -> Side:
                def measure() -> float:
                    with QueueClient(*shallow.target["address"], timeout=60) as client:
                        client.purge(QUEUE)
                        client.push_many(QUEUE, [b"x" * _SIZE] * _SHALLOW)
                    return side()

                return measure

            for work, name in (("cycle", "push + receive + delete"), ("push", "push")):
                sides = {"deep": self._side(peer, deep, work, 32), "shallow": anew(self._side(peer, shallow, work, 32))}
                rates = self._turns(sides)
                self._versus(
                    f"durable {name}, 32 clients: {depth:,} deep / 1,000 deep", rates, ("deep", "shallow"), 0.9
                )
