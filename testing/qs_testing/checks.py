"""Checks of what became of messages: what is there, what is dead, and what happened to one."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from qs_client import QueueClient, ServerUnavailable

from .programs import Program, until

_SHOWN = 5
"""The most messages whose lives a failure shows."""
_SECOND = 1_000_000


class Checked(Protocol):
    """Gives checks what they need of a server: its process, which they ask past all faults of connections, and the
    folder of its lifecycle record."""

    program: Program
    history_folder: Path


class Stored(NamedTuple):
    """A message that a queue holds. status: ready, in-flight or delayed; reason: of the last release or reject;
    dead_from, dead_reason: of a dead letter, else None."""

    queue: str
    mid: int
    status: str
    receives: int
    payload: bytes
    reason: str | None
    dead_from: str | None
    dead_reason: str | None

    @property
    def text(self) -> str:
        """The payload decoded as UTF-8, with marks for what is not."""
        return self.payload.decode(errors="replace")


@dataclass(frozen=True)
class Event:
    """One event of a message. at: microseconds since the Epoch; name: as docs/history.md has it; peer: the address of
    the client that caused it, empty for none."""

    at: int
    name: str
    queue: str
    mid: int
    receives: int | None
    peer: str


@dataclass(frozen=True)
class Life:
    """All events of a message, the first first, also those in other queues that it has moved to."""

    events: tuple[Event, ...]

    def __str__(self) -> str:
        """Returns a table: the seconds since the first event, the event, and where it happened."""
        if not self.events:
            return "  nothing is recorded of this message"
        first = self.events[0].at
        rows = [
            (f"{(each.at - first) / _SECOND:.3f}", each.name, each.queue, str(each.mid), str(each.receives), each.peer)
            for each in self.events
        ]
        rows.insert(0, ("seconds", "event", "queue", "mid", "receives", "peer"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    @property
    def names(self) -> list[str]:
        """The names of the events."""
        return [each.name for each in self.events]


def key_of(message: Any) -> tuple[str, int]:
    """Returns (queue, id) of a delivery, a stored message, or a pair of both. TypeError."""
    if isinstance(message, Stored):
        return message.queue, message.mid
    if isinstance(message, tuple) and len(message) == 2:
        qid, mid = message
        return str(qid), int(mid)
    try:
        return message.qid, message.mid
    except AttributeError:
        raise TypeError(f"a message is a delivery, or a pair of a queue and an id, not {message!r}") from None


def all_messages(server: Checked, queue: str | None) -> list[Stored]:
    with _client(server) as client:
        found: list[Stored] = []
        # The bus keeps its own notes, such as its count of subscribers, in messages of queues of such names.
        users = (qid for qid in client.queues() if not qid.startswith("bus::"))
        for qid in users if queue is None else [queue]:
            mids = list(client.list_messages(qid, state="all"))
            for each in client.peek_many(qid, mids):
                status, receives, payload = each.status or "in-flight", each.receives or 0, each.payload
                found.append(
                    Stored(qid, each.mid, status, receives, payload, each.reason, each.dead_from, each.dead_reason)
                )
        return found


def expect_empty(server: Checked, queue: str, within: float) -> None:
    try:
        _await(server, lambda: not all_messages(server, queue), within)
    except AssertionError:
        left = all_messages(server, queue)
        lives = "\n".join(f"{_described(each)}\n{life_of(server, each)}" for each in left[:_SHOWN])
        more = f"\nand {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise AssertionError(
            f"after {within:g} s, queue {queue!r} still holds {len(left)} messages:\n{lives}{more}"
        ) from None


def expect_dead(server: Checked, queue: str, reason: str | None, count: int, within: float) -> list[Stored]:
    found: list[Stored] = []

    def are_there() -> bool:
        letters = [each for each in all_messages(server, None) if each.dead_from == queue]
        found[:] = [
            each for each in letters if reason is None or reason == each.dead_reason or reason in (each.reason or "")
        ]
        return len(found) >= count

    try:
        _await(server, are_there, within)
    except AssertionError:
        there = all_messages(server, None)
        shown = "\n".join(f"{_described(each)}\n{life_of(server, each)}" for each in there[:_SHOWN])
        wanted = f"{count} dead letters of queue {queue!r}" + (f" with the reason {reason!r}" if reason else "")
        raise AssertionError(
            f"after {within:g} s there are {len(found)} instead of {wanted}; the server holds:\n{shown or '  nothing'}"
        ) from None
    return found


def _described(stored: Stored) -> str:
    reason = f", reason {stored.reason!r}" if stored.reason else ""
    dead = f", dead letter of {stored.dead_from!r} ({stored.dead_reason})" if stored.dead_from else ""
    return f"{stored.text[:60]!r} in {stored.queue!r}: {stored.status}, {stored.receives} receives{reason}{dead}"


def _await(server: Checked, condition: Callable[[], bool], within: float) -> None:
    """Waits until a condition holds, also while the server is restarted. AssertionError."""

    def holds() -> bool:
        try:
            return condition()
        except ServerUnavailable:
            return False

    # Events of messages are seen at once; the end of a restart is none.
    until(holds, server.history_folder, within=within, every=0.1)


def _client(server: Checked) -> QueueClient:
    # Beside the proxy, so that a check looks at the server and not at a fault on connections.
    return QueueClient(server.program.host, server.program.port, timeout=20)


# -- the lifecycle record


def life_of(server: Checked, message: Any) -> Life:
    keys = {key_of(message)}
    events: list[Event] = []
    moved = False
    lines = list(_lines(server.history_folder))
    # A message that has moved has another id there: its `pushed` follows the `dead` or `redriven` of its old place.
    for known in range(-1, len(keys)):
        if len(keys) == known:
            break
        events, moved = [], False
        for each in lines:
            if moved and each.name == "pushed":
                keys.add((each.queue, each.mid))
            if (each.queue, each.mid) in keys:
                events.append(each)
            moved = each.name in ("dead", "redriven") and (each.queue, each.mid) in keys
    return Life(tuple(events))


def _lines(folder: Path) -> Iterator[Event]:
    files = [file for file in folder.glob("history-*.jsonl") if file.is_file()] + list(folder.glob(".history-*.jsonl"))
    for file in sorted(files, key=lambda file: file.name.lstrip(".")):
        for line in file.read_bytes().split(b"\n")[:-1]:  # behind the last one is half a line, or nothing
            found = json.loads(line)
            yield Event(found["time"], found["event"], found["queue"], found["mid"], found["receives"], found["peer"])


def forget_history(server: Checked) -> None:
    """Removes the finished files of the record. The file that is being written has only ids that no test has again."""
    for file in server.history_folder.glob("history-*.jsonl"):
        file.unlink(missing_ok=True)
