"""Tokens: whose one is, in a time that says nothing."""

import statistics
import time

import pytest

from qs_schemas.limits import TOKEN as LONGEST
from qs_serving.access.caller import digest, owner_of

TOKEN = "qs_" + "k" * 43
KNOWN = {digest(f"other-{number}"): f"p{number}" for number in range(50)} | {digest(TOKEN): "own"}


def test_owner_of_known_tokens() -> None:
    """Each token leads to its principal."""
    assert owner_of(TOKEN, KNOWN) == (digest(TOKEN), "own")
    assert owner_of("other-3", KNOWN) == (digest("other-3"), "p3")


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "k", "x" * (LONGEST + 1), "\0", "\ud800", "日本"])
def test_owner_of_wrong_tokens_is_none(token: str) -> None:
    """A token that is not in the file leads to nobody, also if it is nearly right."""
    assert owner_of(token, KNOWN | {digest(""): "nobody"}) is None


def test_owner_of_takes_the_same_time_for_all() -> None:
    """Tokens that differ in the first byte, in the last, or in all take the same time: the medians of interleaved
    rounds differ by less than the rounds of one kind do among themselves."""
    kinds = {"first": "X" + TOKEN[1:], "last": TOKEN[:-1] + "X", "all": "X" * len(TOKEN)}
    times: dict[str, list[int]] = {kind: [] for kind in kinds}
    for _ in range(400):
        for kind, token in kinds.items():
            start = time.perf_counter_ns()
            for _ in range(5):
                owner_of(token, KNOWN)
            times[kind].append(time.perf_counter_ns() - start)
    medians = {kind: statistics.median(found) for kind, found in times.items()}
    spread = statistics.mean(
        quartiles[2] - quartiles[0] for quartiles in (statistics.quantiles(found, n=4) for found in times.values())
    )
    apart = max(medians.values()) - min(medians.values())
    assert apart < max(spread, 0.05 * min(medians.values())), (medians, spread)
