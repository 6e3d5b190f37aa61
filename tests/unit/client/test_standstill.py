"""Tests the reason for which a queue gives nothing out."""

import pytest

from qs_client import QueueInfo
from qs_client.standstill import why_nothing


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (QueueInfo("q", ready=3, in_flight=1, paused=True), "paused"),
        (QueueInfo("q", ready=0, paused=True), "paused"),
        (QueueInfo("q", ready=3, limited="rate", paused=False), "limited by rate"),
        (QueueInfo("q", ready=3, in_flight=5, limited="max-in-flight"), "limited by max-in-flight"),
        (QueueInfo("q", ready=1, in_flight=5, delayed=7, paused=False), ""),
        (QueueInfo("q", ready=0, in_flight=5, delayed=7), "delayed"),
        (QueueInfo("q", ready=0, in_flight=5, delayed=0), "in flight"),
        (QueueInfo("q", ready=0, in_flight=0, delayed=0, paused=False), "empty"),
        (QueueInfo("q"), ""),
    ],
)
def test_why_nothing_comes_out(queue: QueueInfo, expected: str) -> None:
    """The first reason that holds is named; a message that can be had, or counts that nobody knows, are none."""
    assert why_nothing(queue) == expected
