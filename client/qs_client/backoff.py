"""Delays between attempts: exponential backoff with jitter."""

import random
from collections.abc import Callable, Iterator


def delays(
    first: float = 0.1,
    most: float = 2.0,
    factor: float = 2.0,
    uniform: Callable[[float, float], float] = random.uniform,
) -> Iterator[float]:
    """Yields the seconds to wait before each further attempt, without end: exponential growth with full jitter.

    The first delay is between 0 and `first`; that bound grows by `factor` up to `most`. uniform: draws from a range,
    for tests. Start a new iterator after an attempt has succeeded.
    """
    bound = min(first, most)
    while True:
        yield uniform(0.0, bound)
        bound = min(bound * factor, most)
