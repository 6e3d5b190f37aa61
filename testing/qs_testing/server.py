"""A queue server and a bus for tests: the handles, with faults and checks as methods."""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qs_client import BusClient, QueueClient
from qs_schemas.extras import NotInstalledError

from . import checks
from .checks import Life, Stored
from .forking import forking
from .inside import Orders, Setup
from .programs import Fault, Program
from .proxy import Proxy

if find_spec("trio") is None:  # looked for, not imported: only the programs need it, and they start elsewhere
    raise NotInstalledError("testing", ModuleNotFoundError(name="trio"))

_SHARED = (
    "this server is shared by tests, and a fault would disturb others: ask for one of its own, with "
    "@pytest.mark.qs_faults or serving(faults=True)"
)

_numbers = itertools.count(1)


class _ServerProgram(Program):
    name = "server"
    modules = ("qs_server.main.queue_server", "qs_server.main.server", "qs_testing.unsynced")


class _FaultyProgram(_ServerProgram):
    """A server that obeys orders, and is started again with the faults that it had."""

    def __init__(self, setup: Setup, orders: Orders, flags: Sequence[str], log: Path) -> None:
        self._setup, self._orders, self._own_flags = setup, orders, flags
        super().__init__("qs_testing.inside", (), 0, log)

    def start(self) -> None:
        self._flags = replace(self._setup, standing=self._orders.standing).arguments(*self._own_flags)
        super().start()


class _BusProgram(Program):
    name = "bus"
    modules = ("qs_bus.command", "qs_bus.bus")


class _Handle:
    """Holds what the handles of server and bus have in common: a program, in front of which a proxy may stand.

    host, port: where clients connect; they stay the same over `kill`, `restart` and every fault."""

    def __init__(self, program: Program, *, faults: bool) -> None:
        self.program = program
        self._proxy = Proxy(program.host, program.port) if faults else None
        where = self._proxy or program
        self.host, self.port = where.host, where.port

    @property
    def address(self) -> str:
        """HOST:PORT, as the flags and variables of qs have it."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.program.pid

    @property
    def proxy(self) -> Proxy:
        """The proxy between clients and the program: delays, stalls, cuts. RuntimeError for a shared program."""
        if self._proxy is None:
            raise RuntimeError(_SHARED)
        return self._proxy

    def log(self) -> str:
        """Returns what the program has written to its log."""
        return self.program.log()

    def until_logged(self, text: str, times: int = 1) -> None:
        """Waits until a text is in the log so many times. AssertionError after 20 seconds."""
        self.program.until_logged(text, times)

    # -- faults of any program

    def kill(self) -> None:
        """Ends the process at once, as the kernel does when memory runs out, or an operator with `kill -9`: whatever
        was answered is on disk; what is under way is cut off. Clients find nobody until `restart`."""
        self.proxy.refuse()
        self.program.kill()
        self.proxy.cut()

    def restart(self) -> None:
        """Stops the program gently if it runs, and starts it again at the same address, as an upgrade does: requests
        that have begun are answered, connections are closed, and clients have to connect again."""
        proxy = self.proxy
        proxy.refuse()
        self.thaw()
        if self.program.process.poll() is None:
            self.program.stop()
        self.program.start()
        proxy.target = self.program.host, self.program.port
        proxy.admit()

    def freeze(self) -> Fault:
        """Stops the process without ending it (SIGSTOP), as an overloaded or swapping machine, or a paused virtual one,
        does: connections stay open, and nothing is answered. `thaw`, or the end of a `with` block, ends it."""
        _ = self.proxy
        return self.program.freeze()

    def thaw(self) -> None:
        """Lets the process go on after `freeze`."""
        self.program.thaw()

    def cut(self, *, in_answer: bool = False) -> None:
        """Resets all connections at once; what was under way is gone, and new connections work. In production: a load
        balancer or a firewall was started anew, or the network was lost for a while. A client has to connect again, and
        cannot know whether a request without an answer was carried out. What it had received stays hidden until its
        window ends.

        in_answer: cuts off the next answer in its middle instead. The request was carried out: a message that was to be
        received stays hidden until its window ends, and comes again."""
        if in_answer:
            self.proxy.cut_in_answer()
        else:
            self.proxy.cut()

    def _stop(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
            self.program.kill()  # no fault holds up the end, and its files are thrown away
        elif self.program.process.poll() is None:
            self.program.stop()


class Server(_Handle):
    """A queue server of a test.

    Faults are there if it has a process of its own (`faults=True`); each lasts until `heal`, or to the end of its
    `with` block. Checks wait for what they expect, up to `within` seconds."""

    def __init__(self, folder: Path, *flags: str, faults: bool = False) -> None:
        """Starts a server. folder: an empty one, for all its files; flags: more flags of queue-server.py; faults: True
        for a process with a proxy in front and faults inside, whose answers mean that a change survives a power loss;
        False for a quick one that syncs nothing. StartFailedError."""
        self.folder = folder
        self.root = folder / "root"
        self.history_folder = folder / "history"
        self._orders: Orders | None = None
        flags = ("--root", str(self.root), "--history", str(self.history_folder), "--history-age", "86400", *flags)
        if faults:
            keep = folder / "unsynced"
            self.root.mkdir()
            keep.mkdir()
            # Not the folder's path: the name of a socket has at most 107 bytes.
            control = f"qs-testing-{os.getpid()}-{next(_numbers)}"
            setup = Setup(control, str(keep), [str(self.root), str(self.history_folder)])
            self._orders = Orders(control)
            program: Program = _FaultyProgram(setup, self._orders, flags, folder / "server.log")
        else:
            program = _ServerProgram(
                "qs_server.main.queue_server", ("--durability", "none", *flags), 0, folder / "server.log"
            )
        super().__init__(program, faults=faults)

    def client(self, **options: Any) -> QueueClient:
        """Returns a new client. options: those of QueueClient; timeout is 20 seconds unless it is given."""
        return QueueClient(self.host, self.port, **{"timeout": 20, **options})

    # -- faults inside

    @property
    def _inside(self) -> Orders:
        if self._orders is None:
            raise RuntimeError(_SHARED)
        return self._orders

    def _begin(self, fault: str, **arguments: object) -> Fault:
        orders = self._inside
        orders.send(fault, **arguments)
        return Fault(lambda: orders.send("heal", fault=fault))

    def full_disk(self) -> Fault:
        """Makes the disk full, also over a restart. In production: somebody else's files have filled the disk of the
        broker, or its own messages have. Pushes and new queues are refused with 507 (`Full`) until there is room again;
        receives, deletes and releases go on, so that consumers make room. In production, the journal stores pushes for
        some more MB, in room that it has reserved; here that room is used up."""
        return self._begin("full_disk")

    def failing_disk(self, *, reads: bool = False) -> Fault:
        """Makes each write and sync fail with an input/output error, also over a restart, which mostly fails then; with
        reads, reads fail too. In production: a disk dies, or a network volume is gone. Requests that change something
        are refused with 500 (`InternalError`), and trying again cures nothing. After a failed sync nobody knows what is
        on the disk: so the journal accepts nothing more until `restart`, also when the disk works again."""
        return self._begin("failing_disk", reads=reads)

    def slow(self, seconds: float) -> Fault:
        """Makes each sync of the disk take so many seconds longer. In production: somebody copies files on the same
        disk, a RAID is rebuilt, a cloud volume is throttled. Each push and delete waits for a sync, and all that come
        meanwhile share the next one: single calls become slow, while lists and pipelined calls keep most of their rate.
        A client whose time-out is shorter gives up, and its message is stored all the same."""
        return self._begin("slow", seconds=seconds)

    def skew_clock(self, seconds: float) -> Fault:
        """Sets the clock of the server's machine forward by so many seconds, or back by a negative number. In
        production: NTP or an operator sets a clock that was wrong. The server's own time does not jump: windows,
        delays, keys and ids stay right, and the log says that the clock was set. The server's times, such as
        `pushed-at`, then differ from the clocks of clients, which must not compare them."""
        return self._begin("skew_clock", seconds=seconds)

    def power_loss(self, *, restart: bool = True) -> None:
        """Cuts the power of the server's machine: all that was written and not synced is gone, and the process ends at
        once. In production: the power fails, or the kernel panics. What was answered is there after the start, unless
        the server syncs nothing (--durability none); what was under way may be there or not. What an earlier process of
        the server has written counts as synced. restart: False to leave the server off."""
        self.proxy.refuse()
        self.thaw()
        self._inside.send("power_loss")
        self.program.wait()
        self.proxy.cut()
        if restart:
            self.restart()

    def heal(self) -> None:
        """Ends all faults of disk, clock and connections, and `freeze`. A server that was killed stays dead, and a
        journal whose disk has failed accepts nothing: see `restart`."""
        self.thaw()
        self._inside.send("heal")
        self.proxy.heal()

    def lose_answer(self, *, cut: bool = True) -> None:
        """Loses the answer to the next push: the message is stored, and the connection is reset before the answer comes
        (cut=False: the answer never comes, until the client's time is over). A client cannot tell whether its message
        is there: it has to push again, with a `key` if twice would harm."""
        self.proxy.lose_answer(cut=cut)

    def deliver_twice(self, message: Any) -> None:
        """Ends the window of a message that a consumer holds, as if it had taken too long: the next receive gets the
        message again while the first consumer still works on it. message: a delivery, or (queue, id)."""
        qid, mid = checks.key_of(message)
        with QueueClient(self.program.host, self.program.port, timeout=20) as client:
            client.release(qid, mid)

    # -- checks

    def all_messages(self, queue: str | None = None) -> list[Stored]:
        """Returns all messages of a queue, or of all queues, in whatever state: queue, id, state, payload, receives.
        Without a queue, what the bus keeps for itself is left out (queues whose names begin with `bus::`)."""
        return checks.all_messages(self, queue)

    def expect_empty(self, queue: str, *, within: float = 5) -> None:
        """Waits until a queue holds no message: all are handled. AssertionError, which shows the lives of those that
        are left."""
        checks.expect_empty(self, queue, within)

    def expect_dead(self, queue: str, *, reason: str | None = None, count: int = 1, within: float = 5) -> list[Stored]:
        """Waits until so many messages of a queue are dead letters, and returns them. reason: a part of the reason
        that the worker has given, or `receives` or `rejected`. AssertionError, which shows what there is instead."""
        return checks.expect_dead(self, queue, reason, count, within)

    def history(self, message: Any) -> Life:
        """Returns what happened to a message, from the lifecycle record: also after it has moved to another queue.
        message: a delivery, or (queue, id). `str()` of the result is a table."""
        return checks.life_of(self, message)

    # -- a shared server

    def reset(self) -> None:
        """Removes all queues, and forgets what happened to their messages."""
        with QueueClient(self.program.host, self.program.port, timeout=20) as client:
            for qid in client.queues():
                client.delete_queue(qid, force=True)
        checks.forget_history(self)

    def close(self) -> None:
        """Stops the server, and frees its port."""
        self._stop()


class Bus(_Handle):
    """A bus of a test, in front of its server."""

    def __init__(self, server: Server, *flags: str, faults: bool = False) -> None:
        """Starts a bus that is a client of a server. flags: more flags of queue-bus.py; faults: as of Server."""
        log = Path(tempfile.mkstemp(prefix="bus-", suffix=".log", dir=server.folder)[1])
        super().__init__(_BusProgram("qs_bus.command", ("--server", server.address, *flags), 0, log), faults=faults)

    def client(self, **options: Any) -> BusClient:
        """Returns a new client. options: those of BusClient."""
        return BusClient(self.host, self.port, **options)

    def close(self) -> None:
        """Stops the bus, and frees its port."""
        self._stop()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Makes a folder for the length of a with block, which is removed also if the tests' process is killed."""
    made = Path(tempfile.mkdtemp(prefix="qs-testing-"))
    forking(*_ServerProgram.modules).remove_at_end(made)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def serving(*flags: str, faults: bool = False) -> Iterator[Server]:
    """Runs a queue server for the length of a with block. flags: more flags of queue-server.py; faults: True for one
    whose faults a test may ask for."""
    with folder() as made:
        server = Server(made, *flags, faults=faults)
        try:
            yield server
        finally:
            server.close()


@contextlib.contextmanager
def bus_serving(server: Server, *flags: str, faults: bool = False) -> Iterator[Bus]:
    """Runs a bus in front of a server for the length of a with block."""
    bus = Bus(server, *flags, faults=faults)
    try:
        yield bus
    finally:
        bus.close()
