"""The names of the queues in which the bus keeps what durable names are to get."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qs_bus.names import counts_queue_of, is_of_bus, name_in, queue_of

NAMES = ["a", "orders", "a:b", "%", "%3A", "%253A", ":", "::", "a%", "bus:", "bus:a:b", "\N{GRINNING FACE}", "a b"]


def test_there_and_back() -> None:
    """The queue of a name tells which queue and which name, whatever characters they have."""
    for qid, name in itertools.product(NAMES, NAMES):
        kept = queue_of(qid, name)
        assert name_in(kept) == (qid, name)
        assert is_of_bus(kept)


@given(st.text(min_size=1), st.text(min_size=1), st.text(min_size=1), st.text(min_size=1))
def test_no_two_have_the_same(qid: str, name: str, other_qid: str, other_name: str) -> None:
    """Two names, or one name of two queues, never have the same queue."""
    assert name_in(queue_of(qid, name)) == (qid, name)
    same = queue_of(qid, name) == queue_of(other_qid, other_name)
    assert same == ((qid, name) == (other_qid, other_name))


@pytest.mark.parametrize(
    "qid", ["orders", "bus", "bus:", "bus:a", "bus::", "bus:a:", "bus::b", "bus:a:b:c", "Bus:a:b", " bus:a:b"]
)
def test_other_queues(qid: str) -> None:
    """A queue of another form is the queue of no name."""
    assert name_in(qid) is None


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 9878), ("::1", 1), ("a", 65535), ("", 0)])
def test_the_queue_of_the_counts_is_of_no_name(host: str, port: int) -> None:
    """The queue in which the bus counts its subscribers is the bus's own, and no name's."""
    assert is_of_bus(counts_queue_of(host, port))
    assert name_in(counts_queue_of(host, port)) is None
