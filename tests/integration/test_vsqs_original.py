"""Queues as a library beside the original package vsqs 0.3 in other processes, on one directory."""

import itertools
import os
import select
import threading
import time
from pathlib import Path

from support.storage.engines import EPOCH, ManualClock, arrived
from support.storage.vsqs_original import original, output

from qs_storage import vsqs as queue
from qs_storage.directories import FilesEngine
from qs_storage.engine import Durability, Receipt, State

LONG = 20
"""Seconds: only a failure waits that long."""


def test_original_receives_ours(q: queue.Queue) -> None:
    """The original receives what ours published, in order, and its window hides the message from ours."""
    mids = [q.publish(b"a"), q.publish(b"b")]
    q._clock = lambda: int(time.time() * 1e6)
    assert output(original("receive", q.path, 60)) == [f"{mids[0]} a"]
    assert q.receive(timeout=0) == (mids[1], b"b")
    assert q.receive(timeout=0) == (None, None)
    assert q.size() == 2


def test_ours_receives_the_originals(path: Path) -> None:
    """Ours receives what the original published, in order, and our window hides it from the original."""
    with queue.Queue(path, create=True) as q:
        mids = output(original("publish", path, "m", 3))
        assert q.receive(60, timeout=0) == (mids[0], b"m-0")
        assert output(original("consume", path, 1)) == [f"{mids[1]} m-1", f"{mids[2]} m-2"]
        assert q.size() == 1
        q.delete(mids[0])
        assert q.size() == 0


def test_original_window_ends(path: Path) -> None:
    """A message that a process of the original took with it when it died comes back when its window ends."""
    with queue.Queue(path, create=True) as q:
        mid = q.publish(b"x")
        output(original("receive", path, 1))
        assert q.receive(timeout=LONG) == (mid, b"x")


def test_our_window_ends(path: Path) -> None:
    """A message that ours did not delete is received by the original when its window has ended."""
    clock = ManualClock(int(time.time() * 1e6) - 10**6)
    with queue.Queue(path, create=True, clock=clock) as q:
        mid = q.publish(b"x")
        q.receive(visibility_timeout=0.5)
    assert output(original("consume", path, 1)) == [f"{mid} x"]


def test_engine_notices_without_polling(tmp_path: Path) -> None:
    """The descriptor of an engine becomes readable when the original publishes; a refresh then knows the message."""
    (tmp_path / "q").mkdir()
    engine = FilesEngine(str(tmp_path), clock=lambda: EPOCH, durability=Durability.NONE)
    process = original("publish", tmp_path / "q", "m", 1)
    while not arrived(engine):
        assert select.select([engine.fileno() or 0], [], [], LONG)[0]
        engine.refresh()
    [mid] = output(process)
    assert engine.queue("q").list_mids(State.NEW, 9, -1) == [int(mid)]
    engine.queue("q").delete(Receipt(int(mid)))
    engine.close()


def test_everybody_at_once(path: Path) -> None:
    """Publishers and consumers, ours and the original, on one directory: each message is handled once, by one of them,
    no id is given twice, and nothing is left."""
    count = 100
    path.mkdir()
    originals = [original("publish", path, f"original{n}", count) for n in range(2)]
    consumers = [original("consume", path, 3) for _ in range(2)]
    ours: list[list[tuple[str, str]]] = [[], []]
    mids: list[list[str]] = [[], []]

    def publish(name: int) -> None:
        with queue.Queue(path, create=True, sync=False) as q:
            mids[name] += [q.publish(f"ours{name}-{n}".encode()) for n in range(count)]

    def drained() -> bool:
        return all(process.poll() is not None for process in consumers)

    def consume(found: list[tuple[str, str]]) -> None:
        with queue.Queue(path, create=True, sync=False) as q:
            while True:
                mid, data = q.receive(visibility_timeout=60, timeout=0.1)
                if mid is not None:
                    q.delete(mid)
                    found.append((mid, (data or b"").decode()))
                elif drained():
                    return

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(2)]
    threads += [threading.Thread(target=consume, args=(found,)) for found in ours]
    for thread in threads:
        thread.start()
    published = [*itertools.chain(*(output(process) for process in originals))]
    handled = [tuple(line.split()) for process in consumers for line in output(process)]
    for thread in threads:
        thread.join(60)
    published += mids[0] + mids[1]
    handled += ours[0] + ours[1]
    assert len(set(published)) == len(published) == 4 * count
    assert sorted(mid for mid, _ in handled) == sorted(published)
    assert sorted(data for _, data in handled) == sorted(
        f"{name}-{n}" for name in ("original0", "original1", "ours0", "ours1") for n in range(count)
    )
    assert os.listdir(path) == []


def test_ready_messages_of_everybody_in_order(path: Path) -> None:
    """Messages of both publishers wait in the order of ids, those of each in the order of publishing."""
    path.mkdir()
    processes = [original("publish", path, f"original{n}", 20) for n in range(2)]
    with queue.Queue(path, create=True) as q:
        for n in range(20):
            q.publish(f"ours-{n}".encode())
        for process in processes:
            output(process)
        found = [q.receive(timeout=0) for _ in range(60)]
        assert q.receive(timeout=0) == (None, None)
    mids = [int(mid or "") for mid, _ in found]
    assert mids == sorted(set(mids))
    for name in ("original0", "original1", "ours"):
        mine = [data.decode() for _, data in found if data is not None and data.decode().startswith(f"{name}-")]
        assert mine == [f"{name}-{n}" for n in range(20)]
