"""Dead letters that are moved back, by every engine that has them."""

from collections.abc import Iterable

import pytest
from support.storage.calls import WINDOW, fail, listed
from support.storage.contract import has_others, needs, unguarded
from support.storage.engines import LOTS, Bench, arrived

from qs_storage.engine import (
    Feature,
    QueueFullError,
    Receipt,
    State,
    UnsupportedError,
)


@pytest.fixture
def dead(bench: Bench) -> Bench:
    """Three dead letters, of two queues."""
    needs(bench, Feature.DEAD, Feature.REDRIVE)
    for qid, payloads in (("a", [b"1", b"2"]), ("b", [b"3"])):
        bench.queue(qid, dead_letter="dead", max_receives=1)
        bench.push(*payloads, qid=qid)
        fail(bench, qid, times=1)
    return bench


def redrive(bench: Bench, into: str | None = None, mids: Iterable[int] = (), count: int = 1000) -> list[int]:
    tool = bench.engine.queue("dead").redrive
    assert tool is not None
    letters = tool.letters(list(mids), count)
    queues = {name: unguarded(bench).queue(into or name) for name in {came_from for _, came_from in letters}}
    moved = tool.move([(mid, queues[came_from]) for mid, came_from in letters])
    assert [mid for mid, _ in moved] == [mid for mid, _ in letters]
    return [new for _, new in moved]


def payloads(bench: Bench, qid: str) -> list[tuple[bytes | None, int, bool, bool]]:
    """Returns of each message: payload, receives, whether its id is the time of its push, whether it is not a dead
    letter."""
    found = [bench.engine.queue(qid).get(mid, peek=True, visibility=None) for mid in listed(bench, qid=qid)]
    return [(m.payload, m.receives, m.pushed_at == m.mid, m.origin is None) for m in found]


def test_back_to_where_they_came_from(dead: Bench) -> None:
    """Each is a new message of its queue, also after a start."""
    bench = dead
    arrived(bench.engine)
    bench.clock.tick()
    new = redrive(bench)
    assert arrived(bench.engine) == {"a": 2, "b": 1}
    assert (listed(bench, qid="dead"), listed(bench, qid="a"), listed(bench, qid="b")) == ([], new[:2], new[2:])
    bench.engine.commit()
    for _ in range(2):
        assert payloads(bench, "a") == [(b"1", 0, True, True), (b"2", 0, True, True)]
        assert payloads(bench, "b") == [(b"3", 0, True, True)]
        assert bench.engine.queue("a").list_mids(State.NEW, 10, -1) == new[:2]
        bench.reopen()
    assert redrive(bench) == []


def test_into_one_queue(dead: Bench) -> None:
    """In the order in which they died; some, by their number or by their ids."""
    bench = dead
    bench.queue("c")
    first, second, third = listed(bench, qid="dead")
    redrive(bench, "c", count=1)
    assert listed(bench, qid="dead") == [second, third]
    redrive(bench, "c", mids=[third, 17, first])
    assert listed(bench, qid="dead") == [second]
    bench.engine.commit()
    bench.reopen()
    assert [each[0] for each in payloads(bench, "c")] == [b"1", b"3"]


def test_what_is_no_dead_letter_stays(dead: Bench) -> None:
    """A redrive leaves messages that are not dead letters where they are, and moves a dead letter in flight."""
    bench = dead
    [plain] = bench.push(b"plain", qid="dead")
    first, second, third = listed(bench, qid="dead")[:3]
    assert [m.mid for m in bench.engine.receive(["dead"], 1, WINDOW, LOTS)] == [first]
    assert len(redrive(bench, mids=[plain, first, second, third])) == 3
    assert listed(bench, qid="dead") == [plain]
    assert redrive(bench) == []
    assert [m.receives for m in bench.engine.receive(["a", "b"], 10, WINDOW, LOTS)] == [1, 1, 1]


def test_a_dead_letter_in_a_claim_stays(dead: Bench) -> None:
    """A redrive leaves out dead letters that are claimed; it moves them once the claim is released."""
    bench = dead
    first, second, third = listed(bench, qid="dead")
    claims = bench.engine.queue("dead").claims
    assert claims is not None
    claims.claim("one", 1, 1, None, None)
    assert len(redrive(bench, mids=[first, second, third])) == 2
    assert listed(bench, qid="dead") == [first]
    claims.release("one", 1)
    assert len(redrive(bench)) == 1


def test_all_or_nothing(dead: Bench) -> None:
    """A queue without room for its part takes nothing, and neither do the others."""
    bench = dead
    before = listed(bench, qid="dead")
    bench.queue("small", capacity=2)
    with pytest.raises(QueueFullError):
        redrive(bench, "small")
    assert (listed(bench, qid="dead"), listed(bench, qid="small")) == (before, [])


def test_a_queue_of_another_storage(dead: Bench) -> None:
    """A queue of another storage takes no dead letters."""
    bench = dead
    has_others(bench)
    before = listed(bench, qid="dead")
    bench.queue("elements", storage="dirq-simple")
    with pytest.raises(UnsupportedError, match="'dirq-simple'"):
        redrive(bench, "elements")
    assert listed(bench, qid="dead") == before


def test_to_die_once_more(dead: Bench) -> None:
    """A redriven message can die again, with a new origin; a rolled-back commit restores both queues."""
    bench = dead
    new = redrive(bench, mids=listed(bench, qid="dead")[:1])
    [again] = bench.engine.receive(["a"], 1, WINDOW, LOTS)
    bench.engine.queue("a").release(Receipt(new[0], 1), 0)
    [*_, last] = listed(bench, qid="dead")
    origin = bench.engine.queue("dead").get(last, peek=True, visibility=None).origin
    assert origin is not None
    assert (origin.qid, origin.mid, origin.pushed_at) == ("a", new[0], again.pushed_at)
