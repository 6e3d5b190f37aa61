"""The record of a message that moves from one queue to another. `records.py` lists all records."""

import struct
from typing import NamedTuple, Self, TypeAlias

_TRANSFER = struct.Struct("<BIQIQIQBQIQQBH")
_REASONS = ("", "receives", "rejected")
"""The reasons for moving a message to a dead-letter queue, by their numbers in the record. 0: it is no dead letter."""

Origin: TypeAlias = tuple[str, int, int, int, str, int]
"""The fields of `engine.Origin`."""
_NO_ORIGIN: Origin = ("", 0, 0, 0, "", 0)


class Transfer(NamedTuple):
    """Records that a message came from another queue. number, mid: its queue and id; source, replaced: its old queue
    and id, 0 in a copy by compaction; origin: None unless it is a dead letter."""

    number: int
    mid: int
    source: int
    replaced: int
    receives: int
    visible: int
    delayed: bool
    origin: Origin | None
    payload: bytes

    def body(self) -> bytes:
        """Returns the body of the record, without the payload."""
        qid, mid, receives, at, reason, pushed_at = self.origin or _NO_ORIGIN
        name = qid.encode()
        why = _REASONS.index(reason)
        return _TRANSFER.pack(18, *self[:7], mid, receives, at, pushed_at, why, len(name)) + name

    @classmethod
    def read(cls, body: memoryview) -> Self:
        """Parses a body. struct.error, ValueError."""
        _, number, mid, source, replaced, receives, visible, delayed, *dead, why, length = _TRANSFER.unpack_from(body)
        payload = cls.payload_in(body)
        if why >= len(_REASONS) or len(body) < _TRANSFER.size + length:
            raise ValueError(f"reason {why} is not known, or a name of {length} bytes does not fit in")
        origin = None
        if why:
            name = bytes(body[_TRANSFER.size : _TRANSFER.size + length]).decode()
            origin = (name, dead[0], dead[1], dead[2], _REASONS[why], dead[3])
        return cls(number, mid, source, replaced, receives, visible, bool(delayed), origin, bytes(payload))

    @staticmethod
    def payload_in(body: memoryview) -> memoryview:
        """Returns the payload without parsing the other fields. struct.error."""
        return body[_TRANSFER.size + _TRANSFER.unpack_from(body)[-1] :]
