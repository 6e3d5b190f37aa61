"""History records for tests of the report, and their contents computed in plain Python."""

import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]
SECOND = 1_000_000
HOUR = 3600 * SECOND
START = 1_763_719_200 * SECOND
"""2025-11-21 10:00 UTC."""
ENDS = ("dead", "redriven", "retired", "deleted")


def line(seconds: float, event: str, queue: str, mid: int, receives: int | None, size: int | None = 10) -> Line:
    """Returns an event that many seconds after the start."""
    time = START + round(seconds * SECOND)
    return {
        "time": time, "event": event, "queue": queue, "mid": mid, "size": size, "receives": receives, "peer": "[::1]:7",
    }  # fmt: skip


def write_lines(path: Path, lines: Iterable[Line | str]) -> None:
    """Writes a record's lines in the server's form; a line that is a str is written unchanged."""
    texts = (each if isinstance(each, str) else json.dumps(each, separators=(",", ":")) for each in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="ascii")


def random_record(events: int, seed: int) -> list[Line]:
    """Returns the lives of messages in three queues over some hours, in order of time. Times are coarse, so that many
    events of a message have the same time, as in a batch."""
    chance = random.Random(seed)
    lives = [_life(chance, mid) for mid in range(events // 4)]
    found = [(each["time"], mid, at, each) for mid, life in enumerate(lives) for at, each in enumerate(life)]
    return [each for *_, each in sorted(found, key=lambda one: one[:3])]


def _life(chance: random.Random, mid: int) -> list[Line]:
    queue, size = chance.choice(["a", "b", "b", "b", "c c"]), chance.randrange(1000)
    now = float(chance.randrange(4 * 3600))
    life = [line(now, "pushed", queue, mid, 0, size)]

    def add(event: str, receives: int | None) -> None:
        nonlocal now
        now += chance.choice([0, 0, 0, 1, chance.randrange(2000)])
        life.append(line(now, event, queue, mid, receives, size))

    for receives in range(1, chance.randrange(1, 6)):
        add("received", receives)
        for _ in range(chance.choice([0, 0, 1, 2])):
            add("extended", receives)
        end = chance.choice(["released", "expired", "released", "expired", "deleted", "deleted", "dead", None])
        if end is None:
            break
        add(end, receives)
        if end in ENDS:
            break
    if life[-1]["event"] not in ENDS and chance.random() < 0.4:
        if chance.random() < 0.5:
            add(chance.choice(["redriven", "retired"]), life[-1]["receives"])
        else:
            add("deleted", None if chance.random() < 0.5 else life[-1]["receives"])
    lost = chance.choice([0, 0, 0, 0, 1, 2])  # what was before the record began
    return life[min(lost, len(life) - 1) :]


@dataclass
class Figures:
    """The figures of a queue, or of a queue in an hour."""

    counts: Counter[str] = field(default_factory=Counter)
    waiting: list[int] = field(default_factory=list)
    handling: list[int] = field(default_factory=list)


@dataclass
class Told:
    """The results that a report has to show."""

    hours: dict[tuple[str, int], Figures] = field(default_factory=lambda: defaultdict(Figures))
    at_start: Counter[str] = field(default_factory=Counter)
    waits: list[tuple[int, str, int, str]] = field(default_factory=list)
    receives: dict[tuple[str, int], int] = field(default_factory=dict)

    def depth(self, queue: str, until: int, lines: Iterable[Line]) -> int:
        """Returns the depth of a queue just before the time `until`."""
        events = Counter(each["event"] for each in lines if each["queue"] == queue and each["time"] < until)
        return self.at_start[queue] + events["pushed"] - sum(events[name] for name in ENDS)


def tell(lines: Sequence[Line]) -> Told:
    """Computes the results from the lines, in order of time. waits: microseconds, queue, mid, and the event that ended
    the wait."""
    told = Told()
    before: dict[tuple[str, int], Line] = {}
    for each in lines:
        message = each["queue"], each["mid"]
        event = each["event"]
        figures = told.hours[each["queue"], each["time"] // HOUR * HOUR]
        figures.counts[event] += 1
        figures.counts["redelivered"] += event == "received" and each["receives"] > 1
        last = before.get(message)
        if last is None:
            told.at_start[each["queue"]] += event != "pushed"
        else:
            _end(told, figures, last, each)
        if event == "received":
            told.receives[message] = each["receives"]
        if event != "extended" or last is None:
            before[message] = each
    end = max(each["time"] for each in lines)
    for (queue, mid), last in before.items():
        if last["event"] in ("pushed", "released", "expired"):
            told.waits.append((end - last["time"], queue, mid, "nothing"))
    return told


def _end(told: Told, figures: Figures, last: Line, now: Line) -> None:
    took = now["time"] - last["time"]
    if last["event"] in ("pushed", "released", "expired") and now["event"] in ("received", *ENDS):
        told.waits.append((took, now["queue"], now["mid"], now["event"]))
        if now["event"] == "received":
            figures.waiting.append(took)
    if last["event"] == "received" and now["event"] == "deleted" and now["receives"] is not None:
        figures.handling.append(took)


def percentile(values: Sequence[int], rank: float) -> float | None:
    """Returns the value of the nearest rank, in seconds; None if there are no values."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(rank * len(values)) - 1, 0)] / SECOND


def in_files(lines: Sequence[Line], folder: Path, count: int) -> Iterator[Path]:
    """Writes the lines to `count` files, in turn, as several servers would."""
    for number in range(count):
        path = folder / f"history-20251121T1{number}0000.000000Z-0000000{number}.jsonl"
        write_lines(path, lines[number::count])
        yield path
