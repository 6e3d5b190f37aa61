"""What order costs: push, receive and delete of messages with a priority, or in one of 100,000 groups, beside messages
without; and a queue that is 1,000,000 deep with ten priorities beside one that is 1,000 deep.

All queues are on one server without syncs, which would hide most of the cost, and are loaded in turn by the same raw
connections: each pushes, receives and deletes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from journal_load import SIZE, Address, close, connect, new_queue, rate, run_rounds
from load import Exchange, Pushes, document, mid_in
from measuring import Figure, Run, in_turn, ratio
from processes import queue_server

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
        "priority": ("priority", lambda: f' priority="{next(numbers) % _PRIORITIES}"'),
        "ten groups": ("ten", lambda: f' group="g{next(numbers) % 10}"'),
        "groups": ("groups", lambda: f' group="g{next(numbers) * 7919 % groups}"'),
        "shallow": ("shallow", lambda: f' priority="{next(numbers) % _PRIORITIES}"'),
        "deep": ("deep", lambda: f' priority="{next(numbers) % _PRIORITIES}"'),
    }
    with queue_server(run.folder / "root", "--durability", "none") as server:
        for qid, _ in loads.values():
            new_queue(server.address, qid)
        _fill(server.address, "groups", groups, lambda at: Draft(b"x" * 64, group=f"g{at}"))
        _fill(server.address, "shallow", _SHALLOW, lambda at: Draft(b"x" * 64, priority=at % _PRIORITIES))
        _fill(server.address, "deep", deep, lambda at: Draft(b"x" * 64, priority=at % _PRIORITIES))
        sides = {
            name: partial(_rate, server.address, _Cycle(qid, attribute), seconds)
            for name, (qid, attribute) in loads.items()
        }
        found = in_turn(sides, rounds)
    cycle = f"push + receive + delete, {_CONNECTIONS} connections"
    return [
        ratio(f"{cycle}: with a priority / without", found["priority"], found["plain"], 0.8),
        ratio(f"{cycle}: in one of {groups:,} groups / without", found["groups"], found["plain"], 0.8),
        ratio(f"{cycle}: in one of {groups:,} groups / of 10", found["groups"], found["ten groups"]),
        ratio(f"{cycle}: {deep:,} deep with ten priorities / {_SHALLOW:,} deep", found["deep"], found["shallow"], 0.8),
    ]


def _rate(address: Address, script: _Cycle, seconds: float) -> float:
    connections = connect(address, script, _CONNECTIONS)
    found = rate(connections, 1, seconds)
    close(connections)
    return found


def _fill(address: Address, qid: str, messages: int, draft: Callable[[int], Draft]) -> None:
    for begin in range(0, messages, _LIST):
        push = serialize(PushMessage(qid, messages=[draft(at) for at in range(begin, begin + min(_LIST, messages))]))
        connections = connect(address, Pushes(push, 1, _LIST), 1)
        run_rounds(connections, 1)
        close(connections)
