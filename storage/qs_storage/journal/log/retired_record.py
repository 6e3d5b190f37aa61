"""The record of messages that were removed because of their age. `records.py` lists all records."""

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple, Self

_RETIRED = struct.Struct("<BI")


class Retired(NamedTuple):
    """Records that messages were removed because of their age. number: their queue's; mids: increasing."""

    number: int
    mids: Sequence[int]

    def body(self) -> bytes:
        """Returns the body of the record."""
        return _RETIRED.pack(19, self.number) + array("Q", self.mids).tobytes()

    @classmethod
    def read(cls, body: memoryview) -> Self:
        """Parses a body. struct.error, ValueError."""
        mids = array("Q")
        mids.frombytes(body[_RETIRED.size :])
        return cls(_RETIRED.unpack_from(body)[1], mids)
