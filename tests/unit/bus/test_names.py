"""The names of the queues in which the bus keeps what durable names are to get."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qs_bus.feeds import DurableName
from qs_bus.queue_names import (
    NamePattern,
    counts_queue_of,
    is_of_bus,
    name_in,
    pattern_in,
    queue_of,
    queue_of_pattern,
)

NAMES = ["a", "orders", "a:b", "%", "%3A", "%253A", ":", "::", "a%", "bus:", "bus:a:b", "\N{GRINNING FACE}", "a b"]


def test_there_and_back() -> None:
    """The queue of a name tells which queue, which name and which owner, whatever characters they have."""
    for qid, name, owner in itertools.product(NAMES, NAMES, [None, *NAMES]):
        kept = queue_of(DurableName(qid, name, owner))
        assert name_in(kept) == (qid, name, owner)
        assert is_of_bus(kept)


def test_a_name_without_owner() -> None:
    """The queue of a name without owner is called as it was before names had owners."""
    assert queue_of(DurableName("orders", "billing")) == "bus:orders:billing"
    assert queue_of(DurableName("orders", "billing", "ops")) == "bus:orders:ops:billing"


SOME = st.builds(DurableName, st.text(min_size=1), st.text(min_size=1), st.none() | st.text(min_size=1))


@given(SOME, SOME)
def test_no_two_have_the_same(one: DurableName, other: DurableName) -> None:
    """Two names, one name of two queues, or one of two owners never have the same queue."""
    assert name_in(queue_of(one)) == one
    assert (queue_of(one) == queue_of(other)) == (one == other)


def test_patterns_there_and_back() -> None:
    """The queue of a pattern tells which pattern, name and owner. It is the queue of no durable name and of no
    counts."""
    for pattern, name, owner in itertools.product(["*", "a-?", *NAMES], NAMES, [None, *NAMES]):
        kept = queue_of_pattern(NamePattern(pattern, name, owner))
        assert pattern_in(kept) == (pattern, name, owner)
        assert name_in(kept) is None
        assert is_of_bus(kept)
    for qid in (
        "orders",
        "bus:a:b",
        "bus::match:a",
        "bus::match::a",
        "bus::match:a:b:c:d",
        counts_queue_of("match", 1),
    ):
        assert pattern_in(qid) is None


@pytest.mark.parametrize(
    "qid",
    ["orders", "bus", "bus:", "bus:a", "bus::", "bus:a:", "bus::b", "bus:a::c", "bus:a:b:c:d", "Bus:a:b", " bus:a"],
)
def test_other_queues(qid: str) -> None:
    """A queue of another form is the queue of no name."""
    assert name_in(qid) is None


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 9878), ("::1", 1), ("a", 65535), ("", 0)])
def test_the_queue_of_the_counts_is_of_no_name(host: str, port: int) -> None:
    """The queue in which the bus counts its subscribers is the bus's own, and no name's."""
    assert is_of_bus(counts_queue_of(host, port))
    assert name_in(counts_queue_of(host, port)) is None
