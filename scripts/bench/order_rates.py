"""What order costs: push, receive and delete of messages with a priority, or in one of 100,000 groups, beside messages
without; and a queue that is 1,000,000 deep with ten priorities beside one that is 1,000 deep.

All queues are on one server without syncs, and are loaded in turn by the same raw connections: each pushes, receives
and deletes. What is compared is the processor time of the server: on two cores, the rates of the load say less.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from journal_load import SIZE, Address, close, connect, new_queue, rate, run_rounds
from load import Exchange, Pushes, document, mid_in
from measuring import Figure, Run, in_turn, ratio
from processes import Process, queue_server

from qs_schemas import Draft, PushMessage, serialize

_CONNECTIONS = 8
_GROUPS = 100_000
_DEEP, _SHALLOW = 1_000_000, 1_000
_LIST = 1000
_PRIORITIES = 10


class _Cycle:
    """A push with an attribute, a receive, a delete. attribute: returns that of the next push."""

    worth = 1

    def __init__(self, qid: str, attribute: Callable[[], str]) -> None:
        self._qid = b"<qid>%s</qid>" % qid.encode()
        self._payload = b"<payload>%s</payload>" % (b"x" * SIZE)
        self._attribute = attribute
        self._receive = document(b"receive-message", self._qid, b' wait="1"')

    def round(self) -> Iterator[Exchange]:
        yield document(b"push-message", self._qid + self._payload, self._attribute().encode()), 1
        answer = yield self._receive, 1  # type: ignore[misc]
        yield document(b"delete-message", self._qid + b"<mid>" + mid_in(answer) + b"</mid>"), 1


def order(run: Run) -> list[Figure]:
    """Compares push, receive and delete with priorities, in many groups and in a deep queue, with plain ones."""
    rounds, seconds = (3, 0.5) if run.quick else (7, 3.0)
    deep, groups = (_DEEP // 10, _GROUPS // 10) if run.quick else (_DEEP, _GROUPS)
    numbers = count()
    loads = {
        "plain": ("plain", lambda: ""),
        "plain deep": ("plain-deep", lambda: ""),
        "priority": ("priority", lambda: f' priority="{next(numbers) % _PRIORITIES}"'),
        "ten groups": ("ten", lambda: f' group="g{next(numbers) % 10}"'),
        "groups": ("groups", lambda: f' group="g{next(numbers) * 7919 % groups}"'),
        "shallow": ("shallow", lambda: f' priority="{next(numbers) % _PRIORITIES}"'),
        "deep": ("deep", lambda: f' priority="{next(numbers) % _PRIORITIES}"'),
    }
    with queue_server(run.folder / "root", "--durability", "none") as server:
        for qid, _ in loads.values():
            new_queue(server.address, qid)
        _fill(server.address, "plain-deep", groups, lambda at: Draft(b"x" * 64))
        _fill(server.address, "groups", groups, lambda at: Draft(b"x" * 64, group=f"g{at}"))
        _fill(server.address, "shallow", _SHALLOW, lambda at: Draft(b"x" * 64, priority=at % _PRIORITIES))
        _fill(server.address, "deep", deep, lambda at: Draft(b"x" * 64, priority=at % _PRIORITIES))
        sides = {
            name: partial(_microseconds, server, _Cycle(qid, attribute), seconds)
            for name, (qid, attribute) in loads.items()
        }
        found = in_turn(sides, rounds)
    cycle = f"processor time of push + receive + delete, {_CONNECTIONS} connections"
    pairs = {
        "without / with a priority": ("plain", "priority"),
        "without / in one of 10 groups": ("plain", "ten groups"),
        f"without / in one of {groups:,} groups, as deep": ("plain deep", "groups"),
        f"ten priorities, {_SHALLOW:,} deep / {deep:,} deep": ("shallow", "deep"),
    }
    return [
        ratio(f"{cycle}: {name}", found[over], found[under], 0.8, unit=" us") for name, (over, under) in pairs.items()
    ]


def _microseconds(server: Process, script: _Cycle, seconds: float) -> float:
    """Returns the server's processor time for each message."""
    connections = connect(server.address, script, _CONNECTIONS)
    used = server.processor_seconds()
    done = rate(connections, 1, seconds) * seconds
    used = server.processor_seconds() - used
    close(connections)
    return used / done * 1e6


def _fill(address: Address, qid: str, messages: int, draft: Callable[[int], Draft]) -> None:
    for begin in range(0, messages, _LIST):
        push = serialize(PushMessage(qid, messages=[draft(at) for at in range(begin, begin + min(_LIST, messages))]))
        connections = connect(address, Pushes(push, 1, _LIST), 1)
        run_rounds(connections, 1)
        close(connections)
