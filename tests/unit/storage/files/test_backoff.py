"""The back-off in queues of files, alone and beside other programs: it is a name, from which others know the time."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.storage.calls import next_due
from support.storage.engines import EPOCH, LOTS, Bench, FaultyDisk, always, files_engine

from qs_server.main.qs_dir import main as qs_dir
from qs_storage.engine import SECOND, Durability, Options, Receipt, StaleReceiptError, State
from qs_storage.policy import backoff_of
from qs_storage.vsqs import Queue as Library

WINDOW = 5 * SECOND
OPTIONS = Options(backoff=10 * SECOND)


@pytest.fixture(params=[True, False], ids=["attributes", "sidecars"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A queue `q` with one message, which was received once."""
    disk = FaultyDisk(attributes=request.param)
    made = Bench(files_engine(Durability.ALWAYS, always(disk))(tmp_path))
    made.queue(backoff=OPTIONS.backoff)
    made.push(b"x")
    receive(made)
    yield made
    made.engine.close()


def receive(bench: Bench) -> list[int]:
    found = bench.engine.receive(["q"], 10, WINDOW, LOTS)
    bench.engine.commit()
    return [message.receives for message in found]


def expire(bench: Bench) -> None:
    bench.engine.expire(100)
    bench.engine.commit()


def status(bench: Bench) -> tuple[str, int, int | None]:
    """The message's status, receives, and when it is visible: microseconds after the end of its first window."""
    [mid] = bench.engine.queue("q").list_mids(State.ALL, 10, -1)
    message = bench.engine.queue("q").get(mid, peek=True, visibility=None)
    visible_at = message.visible_at
    return message.status, message.receives, None if visible_at is None else visible_at - first_end(bench)


def first_end(bench: Bench) -> int:
    return EPOCH + 1 + WINDOW  # it was pushed at EPOCH, and received when the clock had gone on by 1


def names(bench: Bench) -> list[str]:
    found = os.listdir(bench.engine.queue("q").path)  # type: ignore[attr-defined]
    return sorted(name for name in found if not name.startswith("."))


def wait(receives: int) -> int:
    return backoff_of(OPTIONS, EPOCH, receives)


def test_a_window_that_ends(bench: Bench) -> None:
    """The message is renamed to the end of the back-off, and to its own name then; the next time it takes longer."""
    assert 9 * SECOND <= wait(1) <= 11 * SECOND < 18 * SECOND <= wait(2)
    bench.clock.now = first_end(bench)
    expire(bench)
    assert names(bench) == [f"{EPOCH}.{first_end(bench) + wait(1)}"]
    assert bench.engine.queue("q").stats().expired == 1
    for _ in range(2):
        assert status(bench) == ("delayed", 1, wait(1))
        assert next_due(bench.engine) == first_end(bench) + wait(1)
        bench.reopen()
    assert receive(bench) == []
    bench.clock.now += wait(1)
    expire(bench)
    assert (names(bench), status(bench)) == ([str(EPOCH)], ("ready", 1, None))
    assert receive(bench) == [2]
    again = bench.clock.now + WINDOW
    bench.clock.now = again
    assert receive(bench) == []
    assert names(bench) == [f"{EPOCH}.{again + wait(2)}"]


def test_a_release(bench: Bench) -> None:
    """A release without a delay backs off from now; one with a delay, or that does not count, does not."""
    queue = bench.engine.queue("q")
    until = queue.release(Receipt(EPOCH, 1), None)
    assert until == bench.clock.now + wait(1)
    assert names(bench) == [f"{EPOCH}.{until}"]
    with pytest.raises(StaleReceiptError):
        queue.release(Receipt(EPOCH, 1), None)  # it is not in flight any more
    assert queue.release(Receipt(EPOCH), None) is None  # no receive was in vain: the delay ends
    assert receive(bench) == [2]
    assert queue.release(Receipt(EPOCH, 2), None, count=False) is None
    assert receive(bench) == [2]
    assert queue.release(Receipt(EPOCH, 2), SECOND) == bench.clock.now + SECOND
    assert queue.release(Receipt(EPOCH), 0) is None


@pytest.mark.parametrize("late", [0, SECOND, 20 * SECOND])
def test_a_window_that_ends_while_no_server_runs(bench: Bench, late: int) -> None:
    """The next start hides the message until the same moment, if that is still to come."""
    bench.engine.close()
    bench.clock.now = first_end(bench) + late
    bench.engine = bench.make(bench.clock)
    expire(bench)
    assert status(bench) == (("ready", 1, None) if late > wait(1) else ("delayed", 1, wait(1)))


def test_two_servers(bench: Bench) -> None:
    """Both choose the same name: whichever renames the file, the other one knows it for a delay."""
    other = bench.make(bench.clock)
    bench.clock.now = first_end(bench)
    expire(bench)
    bench.clock.now += SECOND
    other.expire(100)
    message = other.queue("q").get(EPOCH, peek=True, visibility=None)
    assert (message.status, message.visible_at) == ("delayed", first_end(bench) + wait(1))
    other.close()
    assert status(bench) == ("delayed", 1, wait(1))


def test_a_program_that_knows_no_back_off(bench: Bench) -> None:
    """A vsqs program that ends a window first makes the message visible at once; it waits as long as the name says."""
    [name] = names(bench)
    directory = Path(bench.engine.queue("q").path)  # type: ignore[attr-defined]
    bench.clock.now = first_end(bench)
    (directory / name).rename(directory / str(EPOCH))
    bench.engine.refresh()
    assert status(bench) == ("ready", 1, None)
    assert receive(bench) == [2]
    bench.clock.now += WINDOW
    expire(bench)
    [name] = names(bench)
    assert int(name.rpartition(".")[2]) == bench.clock.now + wait(2)


def test_the_library(bench: Bench) -> None:
    """The library backs off as a server does."""
    bench.engine.close()
    with Library(bench.engine.queue("q").path, clock=bench.clock) as queue:  # type: ignore[attr-defined]
        bench.clock.now = first_end(bench)
        assert queue.receive(timeout=0) == (None, None)
        bench.clock.now += wait(1)
        assert queue.receive(timeout=0) == (str(EPOCH), b"x")
    bench.engine = bench.make(bench.clock)


def test_a_purge_by_hand(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """`qs-dir purge` makes the message ready, as it says, though its back-off of years is not over."""
    years = 100_000_000 * SECOND
    bench.engine.configure("q", replace(bench.engine.queue("q").options, backoff=years, backoff_max=years))
    assert qs_dir(["purge", bench.engine.queue("q").path]) == 0  # type: ignore[attr-defined]
    assert "1 expired message made ready" in capsys.readouterr().out
    assert names(bench) == [str(EPOCH)]


def test_backoff_names_in_unit_of_queue(bench: Bench) -> None:
    """The name is in the queue's unit."""
    bench.queue("ms", backoff=OPTIONS.backoff, timestamps="ms")
    [mid] = bench.push(b"x", qid="ms")
    [message] = bench.engine.receive(["ms"], 1, WINDOW, LOTS)
    assert message.visible_at is not None
    bench.clock.now = message.visible_at
    expire(bench)
    found = bench.engine.queue("ms").get(mid, peek=True, visibility=None)
    until = (message.visible_at + backoff_of(OPTIONS, mid, 1)) // 1000
    assert (found.status, found.visible_at) == ("delayed", until * 1000)
    assert f"{mid}.{until}" in os.listdir(bench.engine.queue("ms").path)  # type: ignore[attr-defined]
