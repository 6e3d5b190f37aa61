"""Batches: staged part by part where nobody sees them, published as a whole, and never twice."""

from collections.abc import Callable

import pytest
from support.storage.calls import claim, payloads, receive_and_commit
from support.storage.engines import Bench

from qs_storage.engine import (
    BadQueueNameError,
    BatchOrderError,
    Draft,
    Engine,
    NoSuchPartError,
    Options,
    QueueFullError,
    State,
)
from qs_storage.names import owned_name

Reopened = Callable[[Bench], Engine]
ATTEMPT = 10**18 - 1
"""Spark's are long."""


def stage(engine: Engine, *found: bytes, batch: int = 0, part: int = 0, attempt: int = 0, producer: str = "p") -> None:
    engine.queue("q").batches.stage(producer, (batch, part, attempt), list(map(Draft, found)))
    engine.commit()


def publish(engine: Engine, batch: int = 0, *parts: tuple[int, int], producer: str = "p") -> None:
    engine.queue("q").batches.publish(producer, batch, parts)
    engine.commit()


def test_staged_is_invisible(claiming: Bench, reopened: Reopened) -> None:
    """Neither messages nor figures show staged messages, also after a restart."""
    claiming.queue()
    stage(claiming.engine, b"1", b"2")
    for _ in range(2):
        assert receive_and_commit(claiming.engine) == []
        assert claim(claiming.engine).count == 0
        stats = claiming.engine.queue("q").stats()
        assert (stats.ready, stats.bytes, stats.pushed) == (0, 0, 0)
        assert len(claiming.engine.queue("q").list_mids(State.ALL, 10, -1)) == 0
        reopened(claiming)


def test_what_nobody_publishes_can_be_dropped(claiming: Bench, reopened: Reopened) -> None:
    """Publishing an empty part drops a batch and earlier ones, and leaves later ones."""
    claiming.queue()
    for batch in range(3):
        stage(claiming.engine, b"x", batch=batch, part=batch)
    stage(claiming.engine, batch=1, part=9)
    publish(claiming.engine, 1, (9, 0))
    engine = reopened(claiming)
    assert receive_and_commit(engine) == []
    publish(engine, 0, (0, 0))
    publish(engine, 1, (1, 0))
    assert receive_and_commit(engine) == []
    with pytest.raises(NoSuchPartError):
        publish(engine, 2, (1, 0))
    publish(engine, 2, (2, 0))
    assert payloads(receive_and_commit(engine)) == [b"x"]


def test_publication_without_parts(claiming: Bench, reopened: Reopened) -> None:
    """Publishes nothing, drops nothing and does not count: what is staged for the batch can still be published."""
    claiming.queue()
    engine = claiming.engine
    stage(engine, b"0")
    for _ in range(2):
        for batch in (0, 1):
            publish(engine, batch)
        engine = reopened(claiming)
    assert receive_and_commit(engine) == []
    publish(engine, 0, (0, 0))
    publish(engine, 1)
    engine = reopened(claiming)
    stage(engine, b"1", batch=1)
    publish(engine, 1, (0, 0))
    assert payloads(receive_and_commit(engine)) == [b"0", b"1"]


def test_too_far_ahead(claiming: Bench, reopened: Reopened) -> None:
    """A batch more than one past the greatest that was published or staged is refused, and changes nothing. Staging may
    leave a gap."""
    claiming.queue()
    engine = claiming.engine

    def refuse(*batches: int, greatest: int) -> None:
        for batch in batches:
            for parts in ((), ((0, 0),)):
                with pytest.raises(BatchOrderError, match=rf"batch {batch} .*: {greatest} is the greatest"):
                    publish(engine, batch, *parts)

    refuse(2, 3, 10**18 - 1, greatest=1)
    stage(engine, b"0")
    refuse(2, 10**18 - 1, greatest=1)
    publish(engine, 0, (0, 0))
    refuse(2, 10**18 - 1, greatest=1)
    stage(engine, b"7", batch=7)
    stage(engine, b"another", batch=20, producer="other")
    engine = reopened(claiming)
    publish(engine, 8)
    with pytest.raises(NoSuchPartError):
        publish(engine, 8, (0, 0))
    refuse(9, 10**18 - 1, greatest=8)
    publish(engine, 7, (0, 0))
    engine = reopened(claiming)
    refuse(9, 20, greatest=8)
    publish(engine, 8)
    assert payloads(receive_and_commit(engine)) == [b"0", b"7"]
    stage(engine, b"8", batch=8)
    publish(engine, 8, (0, 0))
    assert payloads(receive_and_commit(engine)) == [b"8"]


def test_producers_of_principals(claiming: Bench, reopened: Reopened) -> None:
    """Two principals' producers of one name have batches of their own. An error shows the name without the
    principal."""
    claiming.queue()
    engine = claiming.engine
    owners = [None, "a", "ab", "p" * 200, "p:q", 'sp "ace" ', "\N{GRINNING FACE}" * 200]
    for owner in owners:
        stage(engine, repr(owner).encode(), batch=3, producer=owned_name(owner, "p"))
    publish(engine, 3, (0, 0), producer=owned_name("ab", "p"))
    engine = reopened(claiming)
    for owner in owners:
        publish(engine, 3, (0, 0), producer=owned_name(owner, "p"))
    found = payloads(receive_and_commit(engine))
    assert sorted(found) == sorted(repr(owner).encode() for owner in owners)
    with pytest.raises(NoSuchPartError, match=r"^producer 'p' has not"):
        publish(engine, 4, (0, 0), producer=owned_name("a", "p"))
    for name in ("", "x" * 201, "\n"):
        with pytest.raises(BadQueueNameError, match=r"^the producer '"):
            stage(engine, b"1", producer=owned_name("a", name))


def test_publish(claiming: Bench, reopened: Reopened) -> None:
    """All of it, in order of part and then as it was staged, with increasing ids; also what is empty."""
    claiming.queue()
    before = claiming.push(b"before")
    engine = claiming.engine
    stage(engine, b"20", b"", part=2, attempt=ATTEMPT)
    stage(engine, b"00", part=0, attempt=7)
    stage(engine, b"22", part=2, attempt=ATTEMPT)
    stage(engine, b"10", b"\0" * 20_000, part=1)
    publish(engine, 0, (2, ATTEMPT), (0, 7), (1, 0))
    after = claiming.push(b"after")
    stats = engine.queue("q").stats()
    assert (stats.new, stats.ready, stats.pushed) == (8, 8, 8)
    engine = reopened(claiming)
    found = receive_and_commit(engine)
    assert payloads(found) == [b"before", b"00", b"10", b"\0" * 20_000, b"20", b"", b"22", b"after"]
    assert [found[0].mid, found[-1].mid] == before + after
    assert {message.receives for message in found} == {1}


def test_at_most_once(claiming: Bench, reopened: Reopened) -> None:
    """A batch at or below the last one: the same answer, and nothing happens, whatever it names."""
    claiming.queue()
    engine = claiming.engine
    stage(engine, b"5", batch=5)
    publish(engine, 5, (0, 0))
    for _ in range(2):
        for batch in (0, 4, 5):
            publish(engine, batch, (0, 0), (9, 9))
            stage(engine, b"again", batch=batch)
            publish(engine, batch, (0, 0))
        engine = reopened(claiming)
    assert payloads(receive_and_commit(engine)) == [b"5"]
    stage(engine, b"6", batch=6)
    publish(engine, 6, (0, 0))
    assert payloads(receive_and_commit(engine)) == [b"6"]


def test_other_attempts_are_dropped(claiming: Bench, reopened: Reopened) -> None:
    """Other attempts, other parts and earlier batches are dropped; later batches stay."""
    claiming.queue()
    engine = claiming.engine
    for batch in (0, 1, 2):
        for attempt in (0, 1):
            stage(engine, b"%d-%d" % (batch, attempt), batch=batch, attempt=attempt)
    stage(engine, b"other", batch=1, part=1)
    publish(engine, 1, (0, 1))
    assert payloads(receive_and_commit(engine)) == [b"1-1"]
    engine = reopened(claiming)
    publish(engine, 2, (0, 1))
    assert payloads(receive_and_commit(engine))[-1] == b"2-1"
    assert len(engine.queue("q").list_mids(State.ALL, 10, -1)) == 2


def test_missing_part(claiming: Bench, reopened: Reopened) -> None:
    """A part that was not staged: nothing is published, and it can be once it is staged."""
    claiming.queue()
    stage(claiming.engine, b"0")
    for missing in ((1, 0), (0, 1)):
        with pytest.raises(NoSuchPartError, match=rf"part {missing[0]} of batch 0, attempt {missing[1]}"):
            publish(claiming.engine, 0, (0, 0), missing)
    engine = reopened(claiming)
    assert receive_and_commit(engine) == []
    stage(engine, b"1", part=1)
    publish(engine, 0, (0, 0), (1, 0))
    assert payloads(receive_and_commit(engine)) == [b"0", b"1"]


def test_empty_batch(claiming: Bench, reopened: Reopened) -> None:
    """A batch of an empty part counts: what comes late for it is not published any more."""
    claiming.queue()
    stage(claiming.engine, batch=4)
    publish(claiming.engine, 4, (0, 0))
    engine = reopened(claiming)
    stage(engine, b"late", batch=4)
    publish(engine, 4, (0, 0))
    assert receive_and_commit(engine) == []


def test_producers(claiming: Bench, reopened: Reopened) -> None:
    """Each has batches of its own, and any name that a queue could have; no other."""
    names = ["..", ".lock", "/", "published", "ä", "x" * 200]
    claiming.queue()
    engine = claiming.engine
    for name in names:
        stage(engine, name.encode(), producer=name)
    engine = reopened(claiming)
    for name in names:
        publish(engine, 0, (0, 0), producer=name)
        publish(engine, 0, (0, 0), producer=name)
    assert payloads(receive_and_commit(engine)) == [name.encode() for name in names]
    for name in ("", "x" * 201, "ä" * 200, "\n", "\ud800"):
        with pytest.raises(BadQueueNameError, match="the producer"):
            stage(engine, b"1", producer=name)
        with pytest.raises(BadQueueNameError, match="the producer"):
            publish(engine, 0, producer=name)


def test_capacity(claiming: Bench, reopened: Reopened) -> None:
    """A batch for which the queue has no room: nothing of it; later all of it."""
    claiming.engine.create("q", Options(capacity=3))
    claiming.push(b"1")
    stage(claiming.engine, b"2", b"3", b"4")
    with pytest.raises(QueueFullError):
        publish(claiming.engine, 0, (0, 0))
    engine = reopened(claiming)
    assert payloads(receive_and_commit(engine)) == [b"1"]
    engine.queue("q").purge(10**18, 10)
    publish(engine, 0, (0, 0))
    assert payloads(receive_and_commit(engine)) == [b"2", b"3", b"4"]


def test_large_batch(claiming: Bench) -> None:
    """More than one run of the journal, more files than are open together."""
    claiming.queue()
    expected = [b"%d" % number for number in range(1050)]
    for part in range(2):
        stage(claiming.engine, *expected[525 * part : 525 * (part + 1)], part=part)
    publish(claiming.engine, 0, (0, 0), (1, 0))
    assert payloads(receive_and_commit(claiming.engine, 2000)) == expected


def test_publish_behind_uncommitted_push(claiming: Bench) -> None:
    """Pushes that are not committed yet come first."""
    claiming.queue()
    stage(claiming.engine, b"staged")
    claiming.engine.queue("q").push([Draft(b"pushed")])
    publish(claiming.engine, 0, (0, 0))
    assert payloads(receive_and_commit(claiming.engine)) == [b"pushed", b"staged"]


def test_claimed_batch(claiming: Bench, reopened: Reopened) -> None:
    """A claim takes published messages like any others."""
    claiming.queue()
    stage(claiming.engine, b"1", b"2")
    publish(claiming.engine, 0, (0, 0))
    made = claim(claiming.engine)
    assert made.count == 2
    assert claim(reopened(claiming)) == made


def test_delete_queue_forgets_batches(claiming: Bench) -> None:
    """With what was staged and published: a queue of the same name knows nothing of it."""
    claiming.queue()
    stage(claiming.engine, batch=7)
    publish(claiming.engine, 7, (0, 0))
    stage(claiming.engine, b"1", batch=8)
    claiming.engine.remove("q", force=False)
    claiming.engine.commit()
    claiming.queue()
    with pytest.raises(BatchOrderError):
        publish(claiming.engine, 8, (0, 0))
    with pytest.raises(NoSuchPartError):
        publish(claiming.engine, 1, (0, 0))
    stage(claiming.engine, b"2")
    publish(claiming.engine, 0, (0, 0))
    assert payloads(receive_and_commit(claiming.engine)) == [b"2"]
