"""A batch that fails: what was refused is not stored, and what is stored already is not refused."""

import errno
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from support.crashing import Place, places, segments_of

from qs_schemas import PushMessage
from qs_server.broker.committer import Committer
from qs_server.broker.jobs import Job
from qs_server.broker.subscriptions import Subscriptions
from qs_server.broker.waiting import Waiters
from qs_storage.engine import Durability, Options

SEGMENT = 1 << 16
HALF = 1 << 14
"""Of what pushes may use of a segment, and a little more."""


class Ask(Job):
    """Work of a client: a function, and whether it was refused."""

    refused: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.refused = error


class Fault(Ask):
    """Work that breaks the batch it is in."""

    def advance(self, *, pushing: bool | None) -> None:
        raise RuntimeError("a fault")


class Pushes(Ask):
    """Pushes to a queue that may be done with others'."""

    def __init__(self, qid: str, *payloads: bytes) -> None:
        super().__init__()
        self._pushes = [PushMessage(qid, payload=payload) for payload in payloads]

    def pushes(self) -> list[PushMessage]:
        return self._pushes

    def pushed(self, mids: Iterable[int]) -> None:
        self.left -= len(list(mids))


class Broken(Ask):
    """Work that breaks its batch after a part of it."""

    def advance(self, *, pushing: bool | None) -> None:
        super().advance(pushing=pushing)
        raise RuntimeError("a fault")


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    segments_of(monkeypatch, SEGMENT, SEGMENT)
    yield from places(tmp_path)


@pytest.fixture(name="run")
def _run(place: Place) -> Callable[..., None]:
    """Runs a batch of some work."""
    committer = Committer(place.engine, Durability.ALWAYS, Waiters(), Subscriptions(place.engine, place.clock))

    def run(*works: Ask) -> None:
        for work in works:
            committer.enqueue(work)
        assert committer.on_poll_end()

    run(Ask(lambda: None))  # a first batch tells the committer that commits are quick
    return run


def test_what_a_fault_refuses_is_not_stored(place: Place, run: Callable[..., None]) -> None:
    """An exception that nobody expects, too, takes back what was asked for in its batch: the next commit stores its
    own alone."""
    place.queue("q")
    refused, later = Ask(lambda: place.ask_push("q", b"refused")), Ask(lambda: place.ask_push("q", b"later"))
    run(refused, Fault())
    assert refused.refused is not None
    run(later)
    assert later.refused is None
    assert place.payloads("q") == [b"later"]
    place.crash()
    assert place.payloads("q") == [b"later"]


def test_what_is_committed_already_is_not_refused(place: Place, run: Callable[..., None]) -> None:
    """A batch goes over into another segment, which cannot be written: what the first one holds is answered, what it
    holds a part of, or nothing, is refused."""
    place.queue("q")

    def push_two() -> None:
        place.ask_push("q", b"2" * HALF)
        place.ask_push("q", b"3" * HALF)

    works = [
        Ask(lambda: place.ask_push("q", b"1" * HALF)),
        Ask(push_two),
        Ask(lambda: place.ask_push("q", b"4")),
    ]
    place.disk.refuse("_pwrite", "*/0000000000000002.segment")
    run(*works)
    assert [work.refused is None for work in works] == [True, False, False]
    kept = [b"1" * HALF, b"2" * HALF]
    assert place.payloads("q") == kept
    place.crash()
    assert place.payloads("q") == kept


def test_a_part_that_is_committed_does_not_answer_for_all(place: Place, run: Callable[..., None]) -> None:
    """Work that ends in a fault is refused, whatever of it is stored."""
    place.queue("q")

    def push_two() -> None:
        place.ask_push("q", b"1" * HALF)
        place.ask_push("q", b"2" * HALF)
        place.ask_push("q", b"3" * HALF)

    broken = Broken(push_two)
    run(broken)
    assert broken.refused is not None
    assert place.payloads("q") == [b"1" * HALF, b"2" * HALF]


def test_pushes_that_were_done_together_are_not_refused(place: Place, run: Callable[..., None]) -> None:
    """The pushes to a queue that are committed are answered; those that are not are refused."""
    place.queue("one", "other")
    payloads = [b"x" * (HALF // 3)] * 5
    one, other = Pushes("one", *payloads), Pushes("other", *payloads)
    place.disk.refuse("_pwrite", "*/0000000000000002.segment")
    run(one, other)
    assert (one.refused, other.refused is None) == (None, False)
    assert (place.payloads("one"), place.payloads("other")) == (payloads, [])


def test_a_queue_that_may_not_last_is_refused(place: Place, run: Callable[..., None]) -> None:
    """A push to a queue that was made in the same batch is refused with it, though it is in the log."""
    place.queue("q")

    def push_to_new() -> None:
        place.engine.create("new", Options())
        place.ask_push("new", b"1" * HALF)

    works = [Ask(push_to_new), Ask(lambda: place.ask_push("q", *[b"2" * HALF] * 2))]
    place.disk.refuse("fsync", str(place.root), errno.EIO)
    run(*works)
    assert all(work.refused is not None for work in works)
