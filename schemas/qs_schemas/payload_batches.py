"""Converts many payloads with one call: joined by a byte that XML text cannot have, converted, and split again."""

from collections.abc import Callable, Sequence

BETWEEN = 0
"""The byte that joins payloads. A payload that has it is not text of XML."""
_BETWEEN = bytes((BETWEEN,))
_MOST = 64
_BYTES = 1 << 18
"""Payloads, and bytes of all of them, that are joined at a time. Up to these bounds calls cost more than bytes, and the
joined bytes stay in a processor's cache."""


def map_payloads(
    payloads: Sequence[bytes],
    convert_joined: Callable[[bytes], bytes | None],
    convert: Callable[[bytes], bytes | None],
) -> Sequence[bytes | None]:
    """Converts each payload, and returns the results in the same order.

    convert_joined: converts several payloads that are joined by BETWEEN, and returns the results joined in the same
    way, or None when it cannot; convert: converts one payload. Neither makes a BETWEEN of any other byte.
    """
    found: list[bytes | None] = []
    for at in range(0, len(payloads), _MOST):
        some = payloads[at : at + _MOST]
        joined = _BETWEEN.join(some) if sum(map(len, some)) <= _BYTES else None
        if joined is None or joined.count(_BETWEEN) != len(some) - 1 or (done := convert_joined(joined)) is None:
            found += map(convert, some)
        else:
            found += some if done is joined else done.split(_BETWEEN)
    return found
