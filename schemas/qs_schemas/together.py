"""Many payloads at a time: joined by a byte that XML has not, so that one call does what else one for each does."""

from collections.abc import Callable, Sequence

BETWEEN = 0
"""The byte: a payload that has it is no text of XML."""
_BETWEEN = bytes((BETWEEN,))
_TOGETHER = 64
_BYTES = 1 << 18
"""Payloads, and bytes of all of them: up to there calls cost more than bytes, and a processor's cache holds them."""


def map_payloads(
    payloads: Sequence[bytes], of_many: Callable[[bytes], bytes | None], of_one: Callable[[bytes], bytes | None]
) -> Sequence[bytes | None]:
    """What `of_one` gives for each. of_many: gives the same for several that are joined, joined in the same way; None
    when it cannot. Neither makes a BETWEEN of anything else."""
    found: list[bytes | None] = []
    for at in range(0, len(payloads), _TOGETHER):
        some = payloads[at : at + _TOGETHER]
        joined = _BETWEEN.join(some) if sum(map(len, some)) <= _BYTES else None
        if joined is None or joined.count(_BETWEEN) != len(some) - 1 or (done := of_many(joined)) is None:
            found += map(of_one, some)
        else:
            found += some if done is joined else done.split(_BETWEEN)
    return found
