"""The offset of the data source in Spark's offset log: a claim.

A claim never changes, and the server returns it by its number. So some 120 bytes say exactly which messages a batch
has, however many they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qs_client import Claim

from .errors import CheckpointLostError


@dataclass(frozen=True, slots=True)
class Offset:
    """A claim. seq: its number, 0 before the first; count: messages; bytes: of their payloads; first, last: least and
    greatest mid; checksum: of the messages, from the server; lost: how often the query went on with other claims than
    the checkpoint says (failOnDataLoss false), as a number may then stand for other messages."""

    seq: int = 0
    count: int = 0
    bytes: int = 0
    first: int | None = None
    last: int | None = None
    checksum: str | None = None
    lost: int = 0

    @classmethod
    def of(cls, claim: Claim) -> "Offset":
        """Returns the offset of a claim."""
        return cls(claim.seq, claim.count, claim.bytes, claim.first, claim.last, claim.checksum)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Offset":
        """Reads an offset from Spark's log. CheckpointLostError when another source has written it."""
        wrong = CheckpointLostError(
            f"the checkpoint holds {dict(values)!r}, which is no offset of the source qs: it belongs to another query, "
            "or is damaged; start with a new checkpoint"
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
        """Returns the offset as Spark writes it to its log, without fields that are None."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in values.items() if value is not None and (name != "lost" or value)}


INITIAL = Offset()
"""The start of a query without a checkpoint: nothing is claimed."""
