"""The lives of the messages of one partition, in a Spark task: how often what happened, and how long it took.

Whole columns are computed at once with numpy, which takes a tenth of the time that Spark needs for a window and an
aggregation for each table. The result are rows for `tables`, few beside the events. A message is in one partition, so
its life is known there completely; queues and hours are in many, and `tables` adds them up.

Assumes the events of a message one after the other, in the order that `history` describes. Each event except `extended`
ends what the previous one began:

- waiting: from pushed, released or expired to the next event, which is a receive, or the message left the queue;
- handling: from received to deleted. A release, an expiry or a death is a failed handling, without a handling time. A
  deletion without `receives` came with the queue's, and ends no handling.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from .durations import sample
from .history import ENDS, EVENTS, WAITING
from .series import HOUR, depth_bins, plot_bins

Array = Any  # numpy's own types say more than is of use here

COUNTED = (*EVENTS, "redelivered", "pushed_bytes", "found")
"""The numbers of a row `counts`, after the first and the last time. found: messages whose first event in the history is
not `pushed`, so that they were in the queue before."""

PARTIAL = "kind STRING, queue STRING, at BIGINT, numbers ARRAY<BIGINT>, durations BINARY"
"""The columns of a row, for Spark. The meaning of `at` and `numbers` depends on its kind:

- `extent`: numbers are events, lines that are not events, the first and the last time. A row for each partition.
- `torn`: numbers is how many lines of the file `queue` are not events.
- `counts`: of the bin that begins `at`, which is at most an hour. numbers are the first and the last time, and COUNTED.
- `waiting`, `handling`: of the bin that begins `at`, as narrow as plots need at most. numbers are how many durations
  ended in it, and the greatest; durations is a sample of them.
- `received`: of the message `at`: receives, released, expired, size, the times of pushed, first and last received, and
  the last event.
- `waited`: of the message `at`: its longest wait, the beginning, the size, and the event that ended it.
- `waits`: of the message `at`, which waits at the end of its life: since when, and the size.

Events are numbers, their places in EVENTS. Of the last three kinds, a row for each of the `top` first messages of the
partition.
"""

_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("queue", pa.string()),
        ("at", pa.int64()),
        ("numbers", pa.list_(pa.int64())),
        ("durations", pa.binary()),
    ]
)
_NEVER = np.iinfo(np.int64).max
_ROWS = 10_000
_PUSHED, _RECEIVED, _EXTENDED = (EVENTS.index(name) for name in ("pushed", "received", "extended"))
_DELETED = EVENTS.index("deleted")

Partial = tuple[str, str, int | None, Sequence[int | None], bytes | None]


class _Events(NamedTuple):
    """The events of a partition, column by column. queue: places in `names`; event: places in EVENTS; receives: -1,
    size: 0, where the line has none; has_size: where it has."""

    names: list[str]
    queue: Array
    mid: Array
    time: Array
    event: Array
    receives: Array
    size: Array
    has_size: Array


def partials(top: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function for `mapInArrow`: from the events of a partition to its rows. top: messages of each list."""

    def of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The whole partition: `history` bounds its bytes.
        found = [batch for batch in batches if batch.num_rows]
        if found:
            yield from _batches(_partials(pa.Table.from_batches(found), top))

    return of_partition


def _batches(rows: Iterable[Partial]) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)],
        schema=_SCHEMA,
    )
    return iter(table.to_batches(max_chunksize=_ROWS))


def _partials(table: pa.Table, top: int) -> Iterator[Partial]:
    broken = table.column("event").is_null()
    whole = table.filter(pa.compute.invert(broken))
    left_out = table.num_rows - whole.num_rows
    if left_out:
        for each in table.filter(broken).column("queue").value_counts().to_pylist():
            yield "torn", each["values"], None, [each["counts"]], None
    if not whole.num_rows:
        yield "extent", "", None, [0, left_out, None, None], None
        return
    events = _events(whole)
    begin, end = int(events.time.min()), int(events.time.max())
    yield "extent", "", None, [len(events.time), left_out, begin, end], None

    rows = np.arange(len(events.time))
    first = np.ones(len(rows), bool)  # of its message
    first[1:] = (events.mid[1:] != events.mid[:-1]) | (events.queue[1:] != events.queue[:-1])
    last = np.append(first[1:], True)
    started = np.maximum.accumulate(np.where(first, rows, 0))
    # The row before that ends or begins something; -1 without one.
    before = np.append(-1, np.maximum.accumulate(np.where(events.event != _EXTENDED, rows, -1))[:-1])
    known = before >= started
    past = np.where(known, events.event[before], -1)
    took = events.time - events.time[before]

    # Bins of a part of the history are as narrow as those of the whole, or narrower: each width is a multiple of those
    # before it, so that `tables` can add them up.
    fine = min(depth_bins(begin, end).width, HOUR)
    yield from _counts(events, first, fine)
    waited = known & np.isin(past, _places(WAITING)) & np.isin(events.event, _places(("received", *ENDS)))
    handled = known & (past == _RECEIVED) & (events.event == _DELETED) & (events.receives >= 0)
    width = plot_bins(begin, end).width
    yield from _durations("waiting", events, waited & (events.event == _RECEIVED), took, width)
    yield from _durations("handling", events, handled, took, width)
    yield from _received(events, first, last, top)
    yield from _waited(events, np.flatnonzero(waited), took, top)
    yield from _waits(events, np.flatnonzero(last & np.isin(events.event, _places(WAITING))), top)


def _places(names: Sequence[str]) -> list[int]:
    return [EVENTS.index(name) for name in names]


def _events(table: pa.Table) -> _Events:
    queues = table.column("queue").combine_chunks().dictionary_encode()
    # In order: what is sorted by number is sorted by name.
    names = sorted(queues.dictionary.to_pylist())
    place = {name: at for at, name in enumerate(names)}
    order = np.array([place[name] for name in queues.dictionary.to_pylist()])
    size = table.column("size")
    return _Events(
        names,
        order[queues.indices.to_numpy(zero_copy_only=False)],
        table.column("mid").to_numpy(),
        table.column("time").to_numpy(),
        table.column("event").to_numpy(),
        table.column("receives").fill_null(-1).to_numpy(),
        size.fill_null(0).to_numpy(),
        size.is_valid().to_numpy(),
    )


def _bins(events: _Events, rows: Array, width: int) -> tuple[Array, Array]:
    """Returns the bin of each row, as one number for its queue and its time, in order of the queues and times; and the
    rows in order of the bins."""
    count = int(events.time.max()) // width + 1
    keys = events.queue[rows] * count + events.time[rows] // width
    order = np.argsort(keys, kind="stable")
    return keys[order], rows[order]


def _groups(keys: Array) -> Array:
    """Returns the places at which equal keys begin."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))


def _counts(events: _Events, first: Array, width: int) -> Iterator[Partial]:
    keys, rows = _bins(events, np.arange(len(events.time)), width)
    starts = _groups(keys)
    event, time = events.event[rows], events.time[rows]
    flags = [event == kind for kind in range(len(EVENTS))]
    flags.append((event == _RECEIVED) & (events.receives[rows] > 1))
    flags.append(np.where(event == _PUSHED, events.size[rows], 0))
    flags.append(first[rows] & (event != _PUSHED))
    columns = [np.minimum.reduceat(time, starts), np.maximum.reduceat(time, starts)]
    columns += [np.add.reduceat(flag.astype(np.int64), starts) for flag in flags]
    queues = events.queue[rows[starts]]
    at = time[starts] - time[starts] % width
    for queue, begin, numbers in zip(queues.tolist(), at.tolist(), np.column_stack(columns).tolist(), strict=True):
        yield "counts", events.names[queue], begin, numbers, None


def _durations(kind: str, events: _Events, chosen: Array, took: Array, width: int) -> Iterator[Partial]:
    keys, rows = _bins(events, np.flatnonzero(chosen), width)
    if not len(rows):
        return
    starts = _groups(keys)
    values = took[rows]
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        ordered = np.sort(values[begin:end])
        row = rows[begin]
        at = int(events.time[row] - events.time[row] % width)
        name = events.names[events.queue[row]]
        yield kind, name, at, [len(ordered), int(ordered[-1])], sample(ordered).tobytes()


def _received(events: _Events, first: Array, last: Array, top: int) -> Iterator[Partial]:
    starts = np.flatnonzero(first)
    ends = np.append(starts[1:], len(first))
    times = np.maximum.reduceat(np.where(events.event == _RECEIVED, events.receives, 0), starts)
    again = np.flatnonzero(times > 1)
    order = again[np.lexsort((events.mid[starts[again]], events.queue[starts[again]], -times[again]))[:top]]
    for message in order.tolist():
        life = slice(starts[message], ends[message])
        event, time = events.event[life], events.time[life]
        sizes = events.size[life][events.has_size[life]]
        pushed, received = time[event == _PUSHED], time[event == _RECEIVED]
        row = starts[message]
        numbers = [
            int(times[message]),
            *(int((event == EVENTS.index(name)).sum()) for name in ("released", "expired")),
            int(sizes.max()) if len(sizes) else None,
            int(pushed[0]) if len(pushed) else None,
            int(received[0]),
            int(received[-1]),
            int(event[-1]),
        ]
        yield "received", events.names[events.queue[row]], int(events.mid[row]), numbers, None


def _waited(events: _Events, rows: Array, took: Array, top: int) -> Iterator[Partial]:
    # The longest of each message: the first, as the sort is stable and the messages come one after the other.
    found = rows[np.lexsort((events.mid[rows], events.queue[rows], -took[rows]))]
    for row in _of_each_message(events, found, top):
        time, wait = int(events.time[row]), int(took[row])
        yield "waited", events.names[events.queue[row]], int(events.mid[row]), [
            wait, time - wait, _size(events, row), int(events.event[row])
        ], None  # fmt: skip


def _waits(events: _Events, rows: Array, top: int) -> Iterator[Partial]:
    found = rows[np.lexsort((events.mid[rows], events.queue[rows], events.time[rows]))]
    for row in _of_each_message(events, found, top):
        numbers = [int(events.time[row]), _size(events, row)]
        yield "waits", events.names[events.queue[row]], int(events.mid[row]), numbers, None


def _of_each_message(events: _Events, rows: Array, top: int) -> Iterator[int]:
    """Yields the first row of each message, for at most `top` messages."""
    seen: set[tuple[int, int]] = set()
    for row in rows.tolist():
        message = int(events.queue[row]), int(events.mid[row])
        if message in seen:
            continue
        if len(seen) == top:
            return
        seen.add(message)
        yield row


def _size(events: _Events, row: int) -> int | None:
    return int(events.size[row]) if events.has_size[row] else None
