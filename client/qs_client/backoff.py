"""How long to wait before the next attempt: longer each time, and never at the same moment as everybody else."""

import random
from collections.abc import Callable, Iterator


def delays(
    first: float = 0.1,
    most: float = 2.0,
    factor: float = 2.0,
    uniform: Callable[[float, float], float] = random.uniform,
) -> Iterator[float]:
    """Seconds to wait before each further attempt, without end: exponential growth with full jitter.

    The first is anything from 0 to `first`, and that bound grows by `factor` up to `most`. uniform: draws from a range;
    for tests. Start a new one when an attempt has succeeded.
    """
    bound = min(first, most)
    while True:
        yield uniform(0.0, bound)
        bound = min(bound * factor, most)
