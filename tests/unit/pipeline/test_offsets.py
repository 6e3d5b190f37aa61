"""A claim as a stream's offset, as Spark writes it and reads it again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qs_client import Claim
from qs_pipeline.errors import CheckpointLostError
from qs_pipeline.offsets import INITIAL, Offset


@given(st.integers(1, 10**18), st.integers(1, 10**5), st.integers(0, 10**12), st.text(max_size=20))
def test_round_trip(seq: int, count: int, size: int, checksum: str) -> None:
    """An offset is read as written, and written again as the same text: Spark compares texts."""
    offset = Offset.of(Claim(seq, count, size, 1, 2, checksum))
    text = json.dumps(offset.to_json())
    assert Offset.from_json(json.loads(text)) == offset
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text


def test_the_initial_one() -> None:
    """Before the first claim there are no messages, and so neither ids nor a checksum."""
    assert INITIAL.to_json() == {"seq": 0, "count": 0, "bytes": 0}
    assert Offset.from_json(INITIAL.to_json()) == INITIAL
    assert Offset.from_json({"seq": 1, "count": 1, "lost": 2}).to_json()["lost"] == 2


@pytest.mark.parametrize(
    "values",
    [
        {"logOffset": 5},
        {"seq": "1", "count": 1},
        {"seq": -1, "count": 1},
        {"seq": True, "count": 1},
        {"seq": 0, "count": 1},
        {"seq": 1, "count": 0},
    ],
)
def test_another_sources_offset(values: dict[str, Any]) -> None:
    """A checkpoint of another source is refused, and named."""
    with pytest.raises(CheckpointLostError, match="is no offset of the source qs"):
        Offset.from_json(values)
