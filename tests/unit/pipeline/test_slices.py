"""Tests how a claim is cut: nothing is left out, nothing is in two slices, nothing is too large."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qs_pipeline.slices import BYTES, MOST, PARTITIONS, Slice, partitions


def _positions(piece: Slice, count: int) -> range:
    start = count * piece.part // piece.parts
    return range(start, start + piece.size(count))


@given(st.integers(1, 100_000), st.integers(0, 10**10), st.none() | st.integers(1, 3000))
def test_every_position_once_and_in_order(count: int, size: int, wanted: int | None) -> None:
    """The slices of all partitions, one after the other, are the whole claim; each can be asked for."""
    end = 0
    for partition in partitions(count, size, wanted):
        assert partition.size(count) >= 1
        for piece in partition.cut(count, size):
            positions = _positions(piece, count)
            assert positions.start == end
            assert 1 <= len(positions) <= MOST
            end = positions.stop
    assert end == count


@given(st.integers(1, 100_000), st.integers(1, 500), st.data())
def test_halves(count: int, parts: int, data: st.DataObject) -> None:
    """A slice is its two halves, one after the other."""
    piece = Slice(data.draw(st.integers(0, parts - 1)), parts)
    left, right = piece.halves()
    assert [*_positions(left, count), *_positions(right, count)] == list(_positions(piece, count))


@pytest.mark.parametrize(
    ("count", "size", "wanted", "parts"),
    [
        (5, 5, None, 1),
        (5, 5, 3, 3),
        (2, 5, 3, 2),
        (10_000, 10_000, None, 1),
        (10_001, 10_000, None, 2),
        (100_000, 0, None, 10),
        (10, 8 * 8 * BYTES, None, 8),
        (100_000, 10**12, None, PARTITIONS),
        (100_000, 0, 100, 100),
        (0, 0, None, 0),
        (0, 0, 4, 0),
    ],
)
def test_how_many_partitions(count: int, size: int, wanted: int | None, parts: int) -> None:
    """There are as many partitions as asked for, else as many as pay; none is empty."""
    assert len(partitions(count, size, wanted)) == parts


def test_slices_by_bytes() -> None:
    """Large messages are asked for in smaller slices."""
    (partition,) = partitions(100, 20 * BYTES, 1)
    assert len(list(partition.cut(100, 20 * BYTES))) == 20
