"""How far a stream has read: the claim that it read last. That is what stands in the checkpoint's offset log.

A claim never changes, and the server gives it again by its number, so it says exactly which messages a batch consists
of, in some 120 bytes, however many there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qs_client import Claim

from .errors import CheckpointLostError


@dataclass(frozen=True, slots=True)
class Offset:
    """A claim. seq: its number, 0 before the first; count: messages; bytes: of their payloads; first, last: their least
    and greatest mid; checksum: the server's, of which messages they are; lost: how often the query has gone on although
    the server's numbers were others (failOnDataLoss false): the same messages under the same number are news then."""

    seq: int = 0
    count: int = 0
    bytes: int = 0
    first: int | None = None
    last: int | None = None
    checksum: str | None = None
    lost: int = 0

    @classmethod
    def of(cls, claim: Claim) -> "Offset":
        """Of a claim as the server has answered it."""
        return cls(claim.seq, claim.count, claim.bytes, claim.first, claim.last, claim.checksum)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Offset":
        """From what Spark read in the offset log. CheckpointLostError when that was written by another source."""
        wrong = CheckpointLostError(
            f"the checkpoint holds {dict(values)!r}, which is no offset of the source qs: it is another query's, "
            "or damaged; start with a new checkpoint"
        )
        if set(values) - set(cls.__slots__):
            raise wrong
        offset = cls(**values)
        numbers = (offset.seq, offset.count, offset.bytes, offset.lost)
        if not all(type(number) is int and number >= 0 for number in numbers) or (offset.seq == 0) != (
            offset.count == 0
        ):
            raise wrong
        return offset

    def to_json(self) -> dict[str, Any]:
        """As Spark writes it to the offset log; what there is not is left out."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None and (name != "lost" or value)}


INITIAL = Offset()
"""Where a query without a checkpoint begins: nothing has been claimed."""
