"""An engine refuses every feature that it names in `cannot` and has all others, so no contract test is skipped
wrongly."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.storage.contract import RemoteAsEngine, needs, unguarded
from support.storage.engines import LOTS, Bench, arrived

from qs_storage.engine import (
    DEFAULT_VISIBILITY,
    SECOND,
    Draft,
    Engine,
    Feature,
    Message,
    NoSuchMessageError,
    Options,
    Receipt,
    State,
    StorageError,
    UnsupportedError,
)
from qs_storage.policy import STORAGES_WITH, storages_with

Call = Callable[[Engine, int], object]
Probe = Callable[[Bench], bool]


def pushed(engine: Engine) -> int:
    """A message in a new queue `q`."""
    engine.create("q", Options())
    [mid] = engine.queue("q").push([Draft(b"xyz")])
    engine.commit()
    return mid


def receive(engine: Engine, *qids: str, visibility: int | None = None) -> list[Message]:
    return engine.receive(qids or ["q"], 10, visibility, LOTS)


def push(engine: Engine, **attributes: Any) -> list[int]:
    """Pushes a message with attributes, after a plain one: neither is stored if they are refused."""
    return engine.queue("q").push([Draft(b"plain"), Draft(b"y", **attributes)])


# -- what is an operation, or an option: it is refused

CALLS: list[tuple[Feature, str, Call]] = [
    (Feature.KEY, "key", lambda engine, mid: engine.queue("q").push([Draft(b"y", key="k")])),
    (Feature.CAPACITY, "capacity", lambda engine, mid: engine.create("other", Options(capacity=1))),
    (Feature.SET, "configure", lambda engine, mid: engine.configure("q", replace(engine.queue("q").options))),
    (Feature.PAUSE, "pause", lambda engine, mid: engine.configure("r", replace(engine.options("r"), paused=True))),
    (Feature.DEAD, "dead", lambda engine, mid: engine.create("other", Options(dead_letter="q", max_receives=1))),
    (Feature.RETENTION, "retention", lambda engine, mid: engine.create("other", Options(retention=60 * SECOND))),
    (Feature.REDRIVE, "uncounted", lambda engine, mid: engine.queue("q").release(Receipt(mid), 0, count=False)),
    (Feature.REASON, "reason", lambda engine, mid: engine.queue("q").release(Receipt(mid), 0, reason="why")),
    (Feature.BACKOFF, "backoff", lambda engine, mid: engine.create("other", Options(backoff=SECOND))),
    (Feature.HEADERS, "headers", lambda engine, mid: push(engine, headers=(("a", "b"),))),
    (Feature.PRIORITY, "priority", lambda engine, mid: push(engine, priority=1)),
    (Feature.EXPIRES, "expires", lambda engine, mid: push(engine, expires=SECOND)),
    (Feature.UNIQUE, "unique", lambda engine, mid: push(engine, key="k", unique=True)),
    (Feature.GROUP, "group", lambda engine, mid: push(engine, group="g")),
    (Feature.GROUP, "group-in-flight", lambda engine, mid: engine.create("other", Options(group_in_flight=2))),
    (Feature.GROUP, "fair", lambda engine, mid: engine.create("other", Options(fair=True))),
    (Feature.PACE, "max-in-flight", lambda engine, mid: engine.create("other", Options(max_in_flight=2))),
    (Feature.PACE, "rate", lambda engine, mid: engine.create("other", Options(rate=0.5))),
    (Feature.GET, "peek", lambda engine, mid: engine.queue("q").get(mid, peek=True, visibility=None)),
    (Feature.GET, "get", lambda engine, mid: engine.queue("q").get(mid, peek=False, visibility=None)),
    (Feature.GET, "read", lambda engine, mid: engine.queue("q").read(Receipt(mid))),
    (Feature.LIST, "list", lambda engine, mid: engine.queue("q").list_mids(State.ALL, 1, -1)),
    (Feature.COPY, "copy", lambda engine, mid: engine.copy("q", mid, ["r"])),
    (Feature.CLAIM, "claims", lambda engine, mid: engine.queue("q").claims),
    (Feature.CLAIM, "batches", lambda engine, mid: engine.queue("q").batches),
]
"""Feature, name of the test, what asks for it."""


@pytest.mark.parametrize(("feature", "call"), [pytest.param(each[0], each[2], id=each[1]) for each in CALLS])
def test_lacking_feature_is_refused(bench: Bench, feature: Feature, call: Call) -> None:
    """An engine refuses a lacking feature with its own error and changes nothing; it carries out every other one."""
    engine = unguarded(bench)
    engine.create("r", Options())
    mid = pushed(engine)
    if feature not in engine.cannot:
        if feature in (Feature.REDRIVE, Feature.REASON):
            receive(engine)  # only what is held can be released
        call(engine, mid)
        return
    if feature is Feature.CLAIM:
        assert call(engine, mid) is None
    else:
        with pytest.raises(UnsupportedError):
            call(engine, mid)
    engine.commit()
    assert sorted(engine.queues()) == ["q", "r"]
    assert [(m.qid, m.mid, m.receives, m.payload) for m in receive(engine, "q", "r")] == [("q", mid, 1, b"xyz")]


SAID = {Feature.REASON, Feature.BACKOFF}
GIVING: list[tuple[Feature, str, Call]] = [
    (Feature.REASON, "release", lambda engine, mid: engine.queue("q").release(Receipt(mid), None, reason="why")),
    (Feature.REASON, "reject", lambda engine, mid: engine.queue("q").reject(Receipt(mid), None)),
    (Feature.BACKOFF, "make", lambda engine, mid: engine.create("other", Options(backoff=SECOND))),
    (Feature.BACKOFF, "set", lambda engine, mid: engine.configure("q", replace(engine.options("q"), backoff=SECOND))),
    (Feature.PACE, "rate", lambda engine, mid: engine.configure("q", replace(engine.options("q"), rate=1.5))),
    (Feature.GROUP, "fair", lambda engine, mid: engine.configure("q", replace(engine.options("q"), fair=True))),
    *[(feature, name, call) for feature, name, call in CALLS if feature in STORAGES_WITH and feature not in SAID],
]


@pytest.mark.parametrize(("feature", "call"), [pytest.param(each[0], each[2], id=each[1]) for each in GIVING])
def test_a_refusal_names_who_can(bench: Bench, feature: Feature, call: Call) -> None:
    """A refusal says what it is about and which storages can, and nothing changes."""
    engine = unguarded(bench)
    if feature not in engine.cannot:
        pytest.skip(f"the storage {engine.name!r} can")
    mid = pushed(engine)
    with pytest.raises(UnsupportedError) as refused:
        call(engine, mid)
    assert storages_with(feature) in str(refused.value) or "cannot be changed" in str(refused.value)
    assert repr(engine.name) in str(refused.value)
    assert [(m.receives, m.reason) for m in receive(engine)] == [(1, None)]


# -- what shows otherwise


def can_keep(bench: Bench) -> bool:
    pushed(bench.engine)
    return bool(receive(bench.engine))


def can_be_exact(bench: Bench) -> bool:
    pushed(bench.engine)
    start = bench.clock()
    [message] = receive(bench.engine, visibility=1)
    return message.visible_at == start + 1


def can_give_back_at_a_start(bench: Bench) -> bool:
    """Tells whether a start gives back the messages of subscribers; otherwise the end of their windows does."""
    engine = unguarded(bench)
    mid = pushed(engine)
    engine.receive(["q"], 1, None, LOTS, held=True)
    engine.commit()
    for part in ("_watch", "_journal"):  # what the end of a process does
        if hasattr(engine, part):
            getattr(engine, part).close()
    if isinstance(engine, RemoteAsEngine):
        engine.close()
    bench.engine = bench.make(bench.clock)
    found = receive(bench.engine)
    if not found and Feature.EXACT not in bench.engine.cannot:
        bench.clock.now += DEFAULT_VISIBILITY
        assert [(message.mid, message.receives) for message in receive(bench.engine)] == [(mid, 2)]
    return bool(found)


def can_be_shared(bench: Bench) -> bool:
    mid = pushed(bench.engine)
    try:
        other = bench.make(bench.clock)
    except StorageError:
        return False
    assert [message.mid for message in receive(other)] == [mid]
    bench.engine.refresh()
    assert not receive(bench.engine)
    other.close()
    return True


def can_reach_any(bench: Bench) -> bool:
    mid = pushed(bench.engine)
    try:
        bench.engine.queue("q").delete(Receipt(mid))
    except NoSuchMessageError:
        return False
    return True


def can_purge_in_part(bench: Bench) -> bool:
    mid = pushed(bench.engine)
    bench.engine.queue("q").purge(mid - 1, 10)
    return bool(receive(bench.engine))


def can_give_figures(bench: Bench) -> bool:
    pushed(bench.engine)
    stats = bench.engine.queue("q").stats()
    return (stats.bytes, stats.oldest is not None) == (3, True)


def can_do_milliseconds(bench: Bench) -> bool:
    engine = unguarded(bench)
    try:
        engine.create("q", Options(timestamps="ms"))
    except UnsupportedError:
        return False
    return engine.queue("q").push([Draft(b"x")]) == [bench.clock() // 1000]


def can_tell(bench: Bench) -> bool:
    engine = unguarded(bench)
    mid = pushed(engine)
    arrivals = {} if Feature.TELLS in engine.cannot else arrived(engine)
    [message] = receive(engine)
    assert message.mid == mid
    return (arrivals, engine.effects().next_expiry) == ({"q": 1}, message.visible_at)


PROBES: dict[Feature, Probe] = {
    Feature.KEEP: can_keep,
    Feature.EXACT: can_be_exact,
    Feature.HELD: can_give_back_at_a_start,
    Feature.SHARED: can_be_shared,
    Feature.ANY: can_reach_any,
    Feature.PART: can_purge_in_part,
    Feature.FIGURES: can_give_figures,
    Feature.MILLISECONDS: can_do_milliseconds,
    Feature.TELLS: can_tell,
}


@pytest.mark.parametrize("feature", PROBES)
def test_shows(any_bench: Bench, feature: Feature) -> None:
    """Features that are not refused show in their effects."""
    if feature is not Feature.KEEP:
        needs(any_bench, Feature.KEEP)
    assert PROBES[feature](any_bench) == (feature not in any_bench.engine.cannot)


NOT_SHOWN = {Feature.DURABLE, Feature.WHOLE, Feature.ORDER, Feature.GIVEN}
"""Promises about crashes, or about what another server may do but need not: tests/faults is about the former. That
ORDER and GIVEN are kept where they are promised is in the contract."""


def test_every_feature() -> None:
    """Each is looked at in one way."""
    ways = [set(PROBES), {feature for feature, _, _ in CALLS}, NOT_SHOWN]
    assert set(STORAGES_WITH) <= ways[1]
    assert set().union(*ways) == set(Feature)
    assert sum(map(len, ways)) == len(Feature)
