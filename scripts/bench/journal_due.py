"""Measures a million messages that are due at the same moment: how long other requests wait, and how many messages are
handled a second. Measures also what a queue's policy costs the queue's users."""

import re
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack
from functools import partial

from journal_cold import longest_of
from journal_load import Address, close, connect, new_queue, rate
from load import Client, Connection, Exchange, document, mid_in, push_document
from measuring import Figure, Run, in_turn, ratio
from processes import queue_server

from qs_client import Draft, PushMessage
from qs_schemas import serialize
from qs_storage import engine as storage
from qs_storage.directories import JournalEngine

_DUE, _BESIDE = "due", "beside"
_LIST = 1000
_SMALL = 100
"""Bytes of a payload."""
_BEFORE = 5
"""Seconds for which pushes are measured before anything is due."""
_LOOK = 200
"""Requests between two looks at the queue."""
_YEAR = 365 * 86400 * storage.SECOND
_CHUNK, _SLICE = 200, 0.002
"""Messages between two looks at the time, and seconds of a slice: the values of the broker."""
_SHARES = (("half", 0.5), ("99 %", 0.99), ("99.9 %", 0.999), ("all", 1.0))


def stalls(run: Run) -> list[Figure]:
    """Measures the requests of others while 1,000,000 windows end, or 1,000,000 messages retire, at the same moment."""
    messages = 100_000 if run.quick else 1_000_000
    with queue_server(run.folder / "root") as server, Client(server.address) as client:
        for qid in (_DUE, _BESIDE):
            new_queue(server.address, qid)
        _fill(client, messages)
        end = _receive_all(client, messages)
        time.sleep(max(end - time.time() - _BEFORE, 0))
        bare = _Beside(client).run_for(_BEFORE)  # on the same log, so that it takes as much compaction
        time.sleep(max(end - time.time(), 0))
        ending = _Beside(client).run_until(r'in-flight="0"')
        client.lines(document(b"set-queue", b'<qid>%s</qid><options retention="0.001"/>' % _DUE.encode()))
        retiring = _Beside(client).run_until(r'ready="0"')
    figures = []
    for name, found in (("windows end", ending), ("messages retire", retiring)):
        figures += found.against(bare, f"{messages:,} {name} at once", messages)
    return figures


def _fill(client: Client, messages: int) -> None:
    request = serialize(PushMessage(_DUE, messages=[Draft(b"x" * _SMALL)] * _LIST))
    for _ in range(messages // _LIST):
        client.lines(request)


def _receive_all(client: Client, messages: int) -> float:
    """Receives all messages with windows that end at the same moment. Returns that moment."""
    end = time.time() + messages / 10_000
    for _ in range(messages // _LIST):
        attributes = b' max="%d" visibility="%.6f"' % (_LIST, max(end - time.time(), 1))
        client.lines(document(b"receive-message", b"<qid>%s</qid>" % _DUE.encode(), attributes))
    return end


class _Beside:
    """Pushes to another queue, one message after the other, and notes the time of each push."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._push = push_document(_BESIDE, _SMALL)
        self._look = document(b"queue-stats", b"<qid>%s</qid>" % _DUE.encode())
        self.took: list[float] = []
        self.seconds = 0.0

    def run_for(self, seconds: float) -> "_Beside":
        """Pushes for that many seconds."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._push_some()
        return self

    def run_until(self, pattern: str) -> "_Beside":
        """Pushes until the statistics of the queue with the due messages match the pattern."""
        while True:
            self._push_some()
            if re.search(pattern, self._client.lines(self._look).decode()):
                return self

    def _push_some(self) -> None:
        started = before = time.perf_counter()
        for _ in range(_LOOK):
            self._client.lines(self._push)
            now = time.perf_counter()
            self.took.append(now - before)
            before = now
        self.seconds += before - started

    def against(self, bare: "_Beside", name: str, messages: int) -> list[Figure]:
        """Returns the figures of this run. bare: the run without due messages."""
        ours, theirs = sorted(self.took), sorted(bare.took)
        figures = []
        for shown, share in _SHARES:
            one, other = longest_of(ours, share) * 1000, longest_of(theirs, share) * 1000
            of = f"{one:.2f} ms to {other:.2f} ms, {len(ours):,} pushes in {self.seconds:.1f} s"
            target = 10 if share == 1 else None
            figures.append(Figure(f"{name}, {shown} of pushes: longer by", one - other, target, "at most", " ms", of))
        kept = len(ours) / self.seconds * bare.seconds / len(theirs)
        figures.append(Figure(f"{name}: rate of pushes / without", kept, 0.8))
        figures.append(Figure(f"{name}: how fast", messages / self.seconds, unit="/s"))
        return figures


def slices(run: Run) -> list[Figure]:
    """Measures the due messages in this process, by CPU time: the longest slice with its commit, and messages a
    second."""
    messages = 100_000 if run.quick else 1_000_000
    ahead = 0

    def clock() -> int:
        return storage.wall_clock() + ahead

    engine = JournalEngine(str(run.folder), clock=clock, durability=storage.Durability.ALWAYS)
    engine.create(_DUE, storage.Options(retention=2 * _YEAR))
    queue = engine.queue(_DUE)
    for _ in range(messages // _LIST):
        engine.secure(storage.NoRoomError(2 * _LIST * _SMALL, push=True))
        queue.push([storage.Draft(b"x" * _SMALL)] * _LIST)
        engine.commit()
    for _ in range(messages // _LIST):
        engine.receive([_DUE], _LIST, _YEAR, sys.maxsize)
        engine.commit()
    ahead = _YEAR + 3600 * storage.SECOND
    ended = _drain(engine, f"{messages:,} windows end at once", None)
    ahead = 3 * _YEAR
    retired = _drain(engine, f"{messages:,} messages retire at once", 200_000)
    engine.close()
    return [*ended, *retired]


def _drain(engine: storage.Engine, name: str, target: float | None) -> list[Figure]:
    """Handles the due messages, in slices as long as the server's."""
    longest = spent = done = 0.0
    more = True
    while more:
        started = time.thread_time()
        while (count := engine.expire(_CHUNK)) and time.thread_time() - started < _SLICE:
            done += count
        done += count
        more = count > 0
        engine.commit()
        took = time.thread_time() - started
        longest, spent = max(longest, took), spent + took
    return [
        Figure(f"{name}: longest slice (CPU)", longest * 1000, 10, "at most", " ms"),
        Figure(f"{name}: in a second of CPU", done / spent, target, unit="/s"),
    ]


class _Cycle:
    """Pushes a message, receives one, and deletes it."""

    worth = 1

    def __init__(self, qid: str) -> None:
        self._qid = b"<qid>%s</qid>" % qid.encode()
        self._push = push_document(qid, 1024)
        self._receive = document(b"receive-message", self._qid)

    def round(self) -> Generator[Exchange, bytes, None]:
        """Yields the three requests."""
        yield self._push, 1
        answer = yield self._receive, 1
        if b"<payload>" in answer:
            yield document(b"delete-message", self._qid + b"<mid>%s</mid>" % mid_in(answer)), 1


def policies(run: Run) -> list[Figure]:
    """Compares push, receive and delete on a queue with dead letters and a retention with one that has neither."""
    rounds, each = (5, 0.5) if run.quick else (25, 1.0)
    with queue_server(run.folder / "root") as server, ExitStack() as stack:
        sides: dict[str, list[Connection]] = {}
        for qid, options in (("bare", b""), ("policy", b'retention="86400" dead-letter="dead" max-receives="5"')):
            _make(server.address, qid, options)
            sides[qid] = connect(server.address, _Cycle(qid), 8)
            stack.callback(close, sides[qid])
        rates = in_turn({qid: partial(rate, made, 1, each) for qid, made in sides.items()}, rounds)
    return [ratio("push, receive, delete with a policy / without", rates["policy"], rates["bare"], 0.95)]


def _make(address: Address, qid: str, options: bytes) -> None:
    with Client(address) as client:
        client.lines(document(b"new-queue", b"<qid>%s</qid><options %s/>" % (qid.encode(), options)))
