"""Subscribers that come and go, late and slow, while bus and server stand still or are killed: nothing is lost.

All clients are tasks of this process, on bare sockets, and what becomes of each message is counted. Nobody asks for
some of the queues; the bus monitors them all.
"""

import os
import random
import re
import socket
import struct
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from support.bus.clients import acknowledge, subscribe
from support.clients.documents import code, mids, new_queue, payloads, push_list, req, request
from support.faults import pass_time
from support.servers.processes import FAST, BusProcess, Listening, ServerProcess, Wire, lasting_port

ASKED = ("a", "b")
UNASKED = ("u", "v")
NAME = "shared"
KEPT = f"bus:b:{NAME}"
"""The queue of a name, which is subscribed to queue b."""
BATCH = 10
QUIET_WITHIN = 60
_QID = re.compile(r"<qid>([^<]*)</qid>")


@dataclass(frozen=True)
class Scale:
    """The sizes of a run. stall: seconds at most that a process stands still, or that a client waits; seconds:
    after which something must have come to a stand."""

    subscribers: int
    messages: int
    stalls: int
    kills: int
    stall: float
    seconds: float


@dataclass
class Counted:
    """Counts events by queue. taken: payloads that some subscriber has acknowledged; named: those that a member of the
    name has; unasked: deliveries to clients that were taken for silent, before they sent anything."""

    answered: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    unanswered: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    taken: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    named: set[str] = field(default_factory=set)
    trouble: list[str] = field(default_factory=list)
    unasked: int = 0
    subscriptions: int = 0


class Lines:
    """A connection, line by line. OSError and EOFError when it has ended."""

    def __init__(self, connected: trio.socket.SocketType) -> None:
        self._socket = connected
        self._held = bytearray()

    async def send(self, text: str) -> None:
        data = text.encode()
        while data:
            data = data[await self._socket.send(data) :]

    async def line(self) -> str:
        while (end := self._held.find(b"\n") + 1) == 0:
            data = await self._socket.recv(65536)
            if not data:
                raise EOFError
            self._held += data
        line = self._held[:end].decode()
        del self._held[:end]
        return line


@asynccontextmanager
async def connected(where: Listening, *, resets: bool = False) -> AsyncIterator[Lines]:
    """resets: at the end, the connection is broken and not closed."""
    with trio.socket.socket() as made:
        await made.connect((where.host, where.port))
        yield Lines(made)
        if resets:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Churn:
    """Everything at work."""

    def __init__(self, server: ServerProcess, bus: BusProcess, scale: Scale, rng: random.Random) -> None:
        self.counted = Counted()
        self._server = server
        self._bus = bus
        self._scale = scale
        self._rng = rng
        self._may_push = 0
        self._pushed = 0
        self._more = trio.Event()
        self._up = trio.Event()  # set but while something that was killed is started again
        self._up.set()
        self._ending = False

    async def run_in_time(self) -> None:
        """Calls `run`. If something hangs, raises AssertionError with what everybody waits for, and leaves nothing
        to disturb other tests."""
        with trio.move_on_after(self._scale.seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report_a_stand)
                await self.run()
                nursery.cancel_scope.cancel()
                return
        raise AssertionError("it came to a stand")

    async def _report_a_stand(self) -> None:
        """Shortly before its time is over: where the tasks stand, and what the queues hold."""
        await trio.sleep(self._scale.seconds * 0.9)
        print(f"pushed {self._pushed} of {self._may_push}; {'ending' if self._ending else 'at work'}")
        for where, count in Counter(waits()).most_common():
            print(f"{count} tasks wait in {where}")
        with trio.move_on_after(self._scale.seconds * 0.05):
            async with connected(self._server) as lines:
                await lines.send(request("queue-stats"))
                print(await lines.line())

    async def run(self) -> None:
        """Runs until everything is pushed, all faults have been, and the queues that were asked for are empty."""
        async with trio.open_nursery() as staying:
            for request_, named in ((subscribe("a", "b", prefetch=1000), False), (subscribe("b", name=NAME), True)):
                await staying.start(self._stay, request_, named)
            async with trio.open_nursery() as nursery:
                for _ in range(self._scale.subscribers):
                    nursery.start_soon(self._come_and_go)
                nursery.start_soon(self._push_all)
                await self._break_things()
                self._allow(self._scale.messages)
                while self._pushed < self._scale.messages:
                    await self._more.wait()
                self._ending = True
            await self._be_quiet()
            staying.cancel_scope.cancel()

    # -- who pushes -----------------------------------------------------------------------------------------------

    def _allow(self, messages: int) -> None:
        self._may_push = messages
        self._note()

    def _note(self) -> None:
        self._more.set()
        self._more = trio.Event()

    async def _push_all(self) -> None:
        while self._pushed < self._scale.messages:
            with suppress(OSError, EOFError):
                async with connected(self._server) as lines:
                    while self._pushed < self._scale.messages:
                        while self._pushed >= self._may_push:
                            await self._more.wait()
                        await self._push(lines)
            await self._up.wait()

    async def _push(self, lines: Lines) -> None:
        qid = self._rng.choice(ASKED + UNASKED)
        batch = {f"{qid}-{self._pushed + number}" for number in range(BATCH)}
        self._pushed += BATCH
        self._note()
        self.counted.unanswered[qid] |= batch
        await lines.send(push_list(qid, *batch))
        answer = await lines.line()
        if code(answer):
            self.counted.trouble.append(answer)
        self.counted.unanswered[qid] -= batch
        self.counted.answered[qid] |= batch

    # -- who subscribes -------------------------------------------------------------------------------------------

    async def _come_and_go(self) -> None:
        rng = self._rng
        while not self._ending:
            queue, name = rng.choice((("a", ""), ("b", ""), ("b", NAME)))
            with suppress(OSError, EOFError):
                async with connected(self._bus, resets=rng.random() < 0.3) as lines:
                    await self._speak(lines, subscribe(queue, name=name, prefetch=rng.choice((1, 10, 100))))
                    with trio.move_on_after(rng.uniform(0, 2)):
                        await self._take(lines, bool(name), {queue}, leaves=rng.randint(1, 60))
            await trio.sleep(rng.uniform(0, 0.2))

    async def _speak(self, lines: Lines, request_: str) -> None:
        """At once, or after a while, or first the half and then the rest. What it got until then was not for it."""
        rng = self._rng
        when = rng.random()
        cut = rng.randrange(len(request_)) if when < 0.2 else 0
        if cut:
            await lines.send(request_[:cut])
        if when < 0.4:
            await trio.sleep(rng.uniform(0, self._scale.stall))
        await lines.send(request_[cut:])
        while "<get-message/>" in (answer := await lines.line()):
            self.counted.unasked += 1
        if code(answer) not in (0, 503):
            self.counted.trouble.append(answer)
        self.counted.subscriptions += not code(answer)

    async def _stay(self, request_: str, named: bool, *, task_status: trio.TaskStatus[None]) -> None:
        """Has started when it has subscribed for the first time: a name gets what is pushed from then on."""
        started = False
        while True:
            with suppress(OSError, EOFError):
                async with connected(self._bus) as lines:
                    await lines.send(request_)
                    answer = await lines.line()
                    if code(answer) not in (0, 503):
                        self.counted.trouble.append(answer)
                    elif not code(answer) and not started:
                        started = True
                        task_status.started()
                    await self._take(lines, named, set(ASKED))
            await self._up.wait()

    async def _take(self, lines: Lines, named: bool, asked: set[str], leaves: int = 1 << 60) -> None:
        """Takes what comes, now and then slowly, and leaves after so many lines."""
        for _ in range(leaves):
            line = await lines.line()
            if "<get-message/>" not in line:
                if code(line) not in (0, 503):
                    self.counted.trouble.append(line)
                continue
            qid, mid, payload = _QID.findall(line)[0], mids(line)[0], payloads(line)[0]
            if qid not in asked or not req(line):
                self.counted.trouble.append(line)
            if leaves < 1000 and self._rng.random() < 0.02:
                await trio.sleep(self._rng.uniform(0, self._scale.stall))
            await lines.send(acknowledge(qid, mid))
            self.counted.taken[qid].add(payload)
            if named:
                self.counted.named.add(payload)

    # -- what goes wrong ------------------------------------------------------------------------------------------

    async def _break_things(self) -> None:
        """Each fault comes when its share of the messages has been pushed."""
        faults = ["kill"] * self._scale.kills + ["stall"] * self._scale.stalls
        self._rng.shuffle(faults)
        for number, fault in enumerate(faults, 1):
            self._allow(self._scale.messages * number // (len(faults) + 1))
            while self._pushed < self._may_push:
                await self._more.wait()
            which = self._rng.sample([self._bus, self._server], self._rng.choice((1, 1, 2)))
            seconds = self._rng.uniform(0.1, self._scale.stall)
            if fault == "kill":
                self._up = trio.Event()
                await trio.to_thread.run_sync(kill, which[:1], seconds)
                self._up.set()
            else:
                await trio.to_thread.run_sync(stall, which, seconds)

    # -- what is left ---------------------------------------------------------------------------------------------

    async def _be_quiet(self) -> None:
        """Waits until what was asked for has been handled, and nothing is in anybody's hands."""
        held: dict[str, int] = {}

        def quiet() -> bool:
            with Wire(self._server) as wire:
                held.update({qid: len(stored(wire, qid, "all")) for qid in (*ASKED, KEPT)})
                held.update({qid: len(stored(wire, qid, "in-flight")) for qid in UNASKED})
            return not any(held.values())

        try:
            await trio.to_thread.run_sync(self._server.until, quiet, QUIET_WITHIN)
        except AssertionError:
            raise AssertionError(held) from None

    def check(self) -> None:
        """Every message is where it belongs."""
        counted = self.counted
        assert counted.trouble == []
        for qid in ASKED:
            missing = counted.answered[qid] - counted.taken[qid]
            assert not missing, (
                f"{len(missing)} of {qid} are deleted, and nobody has handled them: {sorted(missing)[:5]}"
            )
        missing = counted.answered["b"] - counted.named
        assert not missing, f"the name never got {len(missing)}: {sorted(missing)[:5]}"
        with Wire(self._server) as wire:
            for qid in UNASKED:
                found = contents(wire, qid)
                assert len(found) == len(set(found)), qid
                lost = counted.answered[qid] - set(found)
                assert not lost, (
                    f"{len(lost)} of {len(counted.answered[qid])} of {qid}, which nobody asked for, are lost"
                )
                assert set(found) <= counted.answered[qid] | counted.unanswered[qid]


def waits() -> Iterator[str]:
    """The functions in which each task of this loop waits, from the outermost on."""
    tasks = [trio.lowlevel.current_root_task()]
    while tasks and (task := tasks.pop()) is not None:
        yield " > ".join(f"{frame.f_code.co_name}:{line}" for frame, line in task.iter_await_frames())
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def stored(wire: Wire, qid: str, state: str, after: int = 0) -> list[int]:
    """Ids of at most 1000 messages."""
    return mids(wire.ask(request("list-messages", f"<qid>{qid}</qid>", state=state, after=after)))


def contents(wire: Wire, qid: str) -> list[str]:
    """The payloads of all messages of a queue."""
    found: list[str] = []
    listed = stored(wire, qid, "all")
    while listed:
        peeks = [request("get-message", f"<qid>{qid}</qid><mid>{mid}</mid>", peek="yes") for mid in listed]
        for start in range(0, len(peeks), 100):
            some = peeks[start : start + 100]
            wire.send(*some)
            found += [payload for _ in some for payload in payloads(wire.line())]
        listed = stored(wire, qid, "all", after=listed[-1])
    return found


def stall(which: list[Listening], seconds: float) -> None:
    """Stops all of them together for so long."""
    if which:
        with which[0].freeze():
            stall(which[1:], seconds)
    else:
        pass_time(seconds)


def kill(which: list[Listening], seconds: float) -> None:
    """Kills the process with SIGKILL, and starts it again after a moment."""
    for process in which:
        process.kill()
    pass_time(seconds / 10)
    for process in which:
        process.start()


def churn(folder: Path, scale: Scale, seed: int) -> Counted:
    """Runs everything, and checks it."""
    print(f"seed {seed}; repeat with QS_CHURN_SEED={seed}")
    server = ServerProcess(folder / "root", *FAST, port=lasting_port())
    bus = None
    try:
        with Wire(server) as wire:
            wire.ask(*(new_queue(qid) for qid in (*ASKED, *UNASKED)))
        bus = BusProcess(server, "-q", ",".join(ASKED + UNASKED), "--settle", "1", port=lasting_port())
        at_work = Churn(server, bus, scale, random.Random(seed))
        try:
            trio.run(at_work.run_in_time)
            at_work.check()
        except BaseException:
            print(f"server:\n{server.log()[-5000:]}\nbus:\n{bus.log()[-5000:]}")
            raise
    finally:
        for process in (bus, server):
            if process is not None:
                process.kill()
    assert not re.search("Traceback|ERROR|CRITICAL", server.log() + bus.log()), server.log() + bus.log()
    print(f"{at_work.counted.subscriptions} subscriptions; {at_work.counted.unasked} deliveries before a client spoke")
    return at_work.counted


def seed_or(default: int) -> int:
    """The seed that the environment asks for."""
    return int(os.environ.get("QS_CHURN_SEED", default))


SEED = 20261122
SHORT = Scale(subscribers=40, messages=2000, stalls=4, kills=2, stall=0.6, seconds=100)
LONG = Scale(subscribers=200, messages=20_000, stalls=25, kills=5, stall=2, seconds=500)


@pytest.mark.slow  # some 6 s: everything is killed and stands still, several times
def test_subscribers_that_come_and_go(tmp_path: Path) -> None:
    """Every message that was asked for is handled by somebody, and by the name; every other one is in its queue, also
    when clients that had been taken for silent got it."""
    assert churn(tmp_path, SHORT, seed_or(SEED)).subscriptions > SHORT.subscribers // 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_subscribers_that_come_and_go(tmp_path: Path) -> None:
    """With 200 subscribers and 20,000 messages, no message is lost. Takes one to two minutes."""
    counted = churn(tmp_path, LONG, seed_or(SEED + 1))
    assert counted.unasked > 0
