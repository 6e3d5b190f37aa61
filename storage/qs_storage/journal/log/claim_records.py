"""The records of claims and of staged batches; `records.py` lists all records.

`body` packs a record, without the payload. `read` parses it: struct.error, ValueError.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple, Self

_CLAIM = struct.Struct("<BIQQQHI")
_ACKED = struct.Struct("<BIQH")
_STAGED = struct.Struct("<BIQQQIH")
_PUBLISHED = struct.Struct("<BIQQHI")
EMPTY = 0xFFFFFFFF
"""The position in a `Staged` record that announces a part and has no message."""
_PART = struct.Struct("<QQI")


class Claim(NamedTuple):
    """Records a claim. number: the queue's; seq: the claim's; since: microseconds since the Epoch; size: bytes of
    payload; gone: ids of its messages that were removed since."""

    number: int
    seq: int
    since: int
    size: int
    consumer: str
    mids: Sequence[int]
    gone: Sequence[int] = ()

    def body(self) -> bytes:
        name = self.consumer.encode()
        head = _CLAIM.pack(11, self.number, self.seq, self.since, self.size, len(name), len(self.mids))
        return head + name + array("Q", self.mids).tobytes() + array("Q", self.gone).tobytes()

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, seq, since, size, length, count = _CLAIM.unpack_from(body)
        mids = array("Q")
        mids.frombytes(body[_CLAIM.size + length :])
        name = _name(body, _CLAIM.size, length)
        return cls(number, seq, since, size, name, mids[:count], mids[count:])


class Acked(NamedTuple):
    """Records that a consumer acknowledged its claims up to seq. mids: the messages deleted by that; compaction may
    remove a claim's record and keep its messages."""

    number: int
    seq: int
    consumer: str
    mids: Sequence[int] = ()

    def body(self) -> bytes:
        return _pack_claim_end(12, *self)

    @classmethod
    def read(cls, body: memoryview) -> Self:
        return cls(*_read_claim_end(body))


class Unclaimed(NamedTuple):
    """Records that a claim was released. mids: its messages."""

    number: int
    seq: int
    consumer: str
    mids: Sequence[int] = ()

    def body(self) -> bytes:
        return _pack_claim_end(13, *self)

    @classmethod
    def read(cls, body: memoryview) -> Self:
        return cls(*_read_claim_end(body))


class Staged(NamedTuple):
    """Records a staged message. position: the message's in its part, from 0; EMPTY: the part exists, without a
    message."""

    number: int
    batch: int
    part: int
    attempt: int
    position: int
    producer: str
    payload: bytes

    def body(self) -> bytes:
        name = self.producer.encode()
        return _STAGED.pack(14, self.number, self.batch, self.part, self.attempt, self.position, len(name)) + name

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, batch, part, attempt, position, length = _STAGED.unpack_from(body)
        producer = _name(body, _STAGED.size, length)
        return cls(number, batch, part, attempt, position, producer, bytes(cls.payload_in(body)))

    @staticmethod
    def payload_in(body: memoryview) -> memoryview:
        """Returns the payload without parsing the other fields. struct.error."""
        return body[_STAGED.size + _STAGED.unpack_from(body)[-1] :]


class Published(NamedTuple):
    """Records a published batch. first: id of its first message; parts: (number, attempt, count of messages) in the
    order of the ids."""

    number: int
    batch: int
    first: int
    producer: str
    parts: Sequence[tuple[int, int, int]]

    def body(self) -> bytes:
        name = self.producer.encode()
        head = _PUBLISHED.pack(15, self.number, self.batch, self.first, len(name), len(self.parts))
        return head + name + b"".join(_PART.pack(*part) for part in self.parts)

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, batch, first, length, count = _PUBLISHED.unpack_from(body)
        at = _PUBLISHED.size + length
        parts = [_PART.unpack_from(body, at + index * _PART.size) for index in range(count)]
        return cls(number, batch, first, _name(body, _PUBLISHED.size, length), parts)


def _pack_claim_end(kind: int, number: int, seq: int, consumer: str, mids: Sequence[int]) -> bytes:
    name = consumer.encode()
    return _ACKED.pack(kind, number, seq, len(name)) + name + array("Q", mids).tobytes()


def _read_claim_end(body: memoryview) -> tuple[int, int, str, Sequence[int]]:
    _, number, seq, length = _ACKED.unpack_from(body)
    consumer = _name(body, _ACKED.size, length)
    mids = array("Q")
    mids.frombytes(body[_ACKED.size + length :])
    return number, seq, consumer, mids


def _name(body: memoryview, start: int, length: int) -> str:
    if len(body) < start + length:
        raise ValueError(f"a name of {length} bytes does not fit in")
    return bytes(body[start : start + length]).decode()
