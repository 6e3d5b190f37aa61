"""Packs and parses the records of a journal. Reads and writes no files.

A record is the length and checksum of its body (both 32 bits, little endian), and the body, whose first byte is the
kind. The checksum (CRC-32) starts from a number made of the segment's salt and the record's byte in the segment, so
that a record is valid only where it was written. A record states the result of a change, so that replaying it twice
does no harm.

| kind | fields after it |
|---|---|
| QUEUE | queue number, last id given (-1: none), name in UTF-8: the queue that the number means from here on |
| PUSH | queue number, id, visible from (0: at once), key (16 bytes; zeros: none), time of the push, payload |
| STATE | queue number, id, receives, visible from, 1 if that is a delay |
| DELETE | queue number, id |
| REMOVE | queue number: the queue is gone, with everything before this |
| KEY | queue number, id, key, time of the push: a key whose PUSH is in a segment that is removed |
| CHECKPOINT | number of the oldest segment that is needed |
| MOVED | queue number, id, receives, visible from, 1 if that is a delay, payload: a message from an older segment |
| SHARED | as MOVED, but instead of the payload: place and size of another record's payload, number of its queue |
| CLAIM | queue number, claim, time, bytes of payload, consumer, ids: the messages of the claim |
| ACKED | queue number, claim, consumer, ids: all claims up to this one are over, and these messages of them deleted |
| UNCLAIMED | queue number, claim, consumer, ids: the claim is over, and these messages of it are visible |
| STAGED | queue number, batch, part, attempt, position, producer, payload: a message of a batch not yet published |
| PUBLISHED | queue number, batch, first id, producer, (part, attempt, count)...: staged messages that are visible now |
| TAKEN | queue number, token: the files in the queue's directory whose names have the token are messages now |
| UNLINKED | queue number, token: these files are removed |
| TRANSFER | queue number, id, source queue number and id (gone there), state as in MOVED, origin, payload |
| RETIRED | queue number, ids: these messages were removed because of their age |
| REASON | as STATE, and the text of the message's last reason |
| ABSENT | (first, last, number of the first frame)...: segments removed although older ones are needed |

A place is a segment's number and a byte in it, 32 bits each.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from itertools import repeat
from typing import NamedTuple
from zlib import crc32

from .absent_record import Absent
from .claim_records import Acked, Claim, Published, Staged, Unclaimed
from .retired_record import Retired
from .transfer_record import Transfer

HEAD = struct.Struct("<II")
NO_KEY = bytes(16)


class Kind(IntEnum):
    """The first byte of a body."""

    QUEUE = 1
    PUSH = 2
    STATE = 4
    DELETE = 5
    REMOVE = 6
    KEY = 7
    CHECKPOINT = 8
    MOVED = 9
    SHARED = 10
    CLAIM = 11
    ACKED = 12
    UNCLAIMED = 13
    STAGED = 14
    PUBLISHED = 15
    TAKEN = 16
    UNLINKED = 17
    TRANSFER = 18
    RETIRED = 19
    ABSENT = 20
    REASON = 21


_QUEUE = struct.Struct("<BIq")
_PUSH = struct.Struct("<BIQQ16sQ")
_STATE = struct.Struct("<BIQIQB")
_DELETE = struct.Struct("<BIQ")
_REMOVE = struct.Struct("<BI")
_KEY = struct.Struct("<BIQ16sQ")
_CHECKPOINT = struct.Struct("<BQ")
_MOVED = struct.Struct("<BIQIQB")
_SHARED = struct.Struct("<BIQIQBQII")
_TOKEN = struct.Struct("<BIQ")
PUSH_SIZE = HEAD.size + _PUSH.size
"""Bytes of a PUSH beside its payload."""
MOVED_SIZE = HEAD.size + _MOVED.size
"""Bytes of a MOVED beside its payload."""
STATE_SIZE = HEAD.size + _STATE.size
"""Bytes of a STATE, and of a REASON beside its text."""
KEY_SIZE = HEAD.size + _KEY.size
"""Bytes of a KEY."""
SMALL = HEAD.size + max(_STATE.size, _DELETE.size, _KEY.size, _CHECKPOINT.size, _SHARED.size)
"""Bytes that any record without a payload or a name takes at most."""


class BadRecordError(Exception):
    """The bytes are not a valid record. The text says why."""


class Queue(NamedTuple):
    number: int
    last_mid: int
    qid: str


class Push(NamedTuple):
    """key: None without one; at: the time of the push."""

    number: int
    mid: int
    visible: int
    payload: bytes
    key: bytes | None
    at: int


class State(NamedTuple):
    number: int
    mid: int
    receives: int
    visible: int
    delayed: bool


class Reason(NamedTuple):
    """A STATE that also says why the message was given back."""

    number: int
    mid: int
    receives: int
    visible: int
    delayed: bool
    reason: str


class Delete(NamedTuple):
    number: int
    mid: int


class Remove(NamedTuple):
    number: int


class Key(NamedTuple):
    number: int
    mid: int
    key: bytes
    at: int


class Checkpoint(NamedTuple):
    oldest: int


class Moved(NamedTuple):
    number: int
    mid: int
    receives: int
    visible: int
    delayed: bool
    payload: bytes


class Shared(NamedTuple):
    """place: of the record with the payload; size: of the payload; source: the number of a queue with the message."""

    number: int
    mid: int
    receives: int
    visible: int
    delayed: bool
    place: int
    size: int
    source: int


class Taken(NamedTuple):
    """token: in the names of the files that became messages; see `intake`."""

    number: int
    token: int


class Unlinked(NamedTuple):
    number: int
    token: int


OfClaims = Claim | Acked | Unclaimed | Staged | Published
OfQueue = (
    Queue
    | Push
    | State
    | Reason
    | Delete
    | Remove
    | Key
    | Moved
    | Shared
    | OfClaims
    | Taken
    | Unlinked
    | Transfer
    | Retired
)
Record = OfQueue | Checkpoint | Absent
BROAD = frozenset(
    (
        Kind.REMOVE,
        Kind.SHARED,
        Kind.CLAIM,
        Kind.ACKED,
        Kind.UNCLAIMED,
        Kind.STAGED,
        Kind.PUBLISHED,
        Kind.TAKEN,
        Kind.UNLINKED,
    )
)
"""The kinds that may be about messages in any older segment: see `links`."""


# Each packs the body of a record, without the payload.


def queue(number: int, last_mid: int, qid: str) -> bytes:
    return _QUEUE.pack(Kind.QUEUE, number, last_mid) + qid.encode()


def push(number: int, mid: int, visible: int, key: bytes | None, at: int) -> bytes:
    return _PUSH.pack(2, number, mid, visible, key or NO_KEY, at)


def pushes(number: int, mids: Iterable[int], at: int) -> list[bytes]:
    """Packs PUSH records of messages that are visible at once and have no key."""
    return list(map(_PUSH.pack, repeat(2), repeat(number), mids, repeat(0), repeat(NO_KEY), repeat(at)))


def state(number: int, mid: int, receives: int, visible: int, delayed: bool) -> bytes:
    return _STATE.pack(4, number, mid, receives, visible, delayed)


def reason(number: int, mid: int, receives: int, visible: int, delayed: bool, text: str) -> bytes:  # noqa: PLR0917
    return _STATE.pack(Kind.REASON, number, mid, receives, visible, delayed) + text.encode()


def delete(number: int, mid: int) -> bytes:
    return _DELETE.pack(5, number, mid)


def remove(number: int) -> bytes:
    return _REMOVE.pack(Kind.REMOVE, number)


def key_of(number: int, mid: int, key: bytes, at: int) -> bytes:
    return _KEY.pack(Kind.KEY, number, mid, key, at)


def checkpoint(oldest: int) -> bytes:
    return _CHECKPOINT.pack(Kind.CHECKPOINT, oldest)


def moved(number: int, mid: int, receives: int, visible: int, delayed: bool) -> bytes:
    return _MOVED.pack(Kind.MOVED, number, mid, receives, visible, delayed)


def shared(record: Shared) -> bytes:
    return _SHARED.pack(Kind.SHARED, *record)


def taken(number: int, token: int) -> bytes:
    return _TOKEN.pack(Kind.TAKEN, number, token)


def unlinked(number: int, token: int) -> bytes:
    return _TOKEN.pack(Kind.UNLINKED, number, token)


def payload_of(body: memoryview) -> memoryview | None:
    """Returns the payload in a record's body, None for a kind without one. struct.error if the body is too short."""
    kind = body[0]
    if kind == Kind.PUSH:
        return body[_PUSH.size :]
    if kind == Kind.MOVED:
        return body[_MOVED.size :]
    if kind == Kind.TRANSFER:
        return Transfer.payload_in(body)
    return Staged.payload_in(body) if kind == Kind.STAGED else None


def split(data: memoryview, seed: int, start: int) -> Iterator[memoryview]:
    """Yields the bodies of the records in these bytes, each checked. seed: of the segment; start: byte of the segment
    at which `data` begins. BadRecordError."""
    at = 0
    while at < len(data):
        if len(data) - at < HEAD.size:
            raise BadRecordError(f"{len(data) - at} bytes are left over at byte {at}")
        length, checksum = HEAD.unpack_from(data, at)
        body = data[at + HEAD.size : at + HEAD.size + length]
        if not length or len(body) != length:
            raise BadRecordError(f"the record at byte {at} claims to have {length} bytes")
        if crc32(body, seed ^ (start + at)) != checksum:
            raise BadRecordError(f"the checksum of the record at byte {at} is wrong")
        yield body
        at += HEAD.size + length


whose = _DELETE.unpack_from
"""Reads (kind, queue number, id) from the body of a record with a payload; for STAGED the id means nothing.
struct.error."""


def body_in(data: memoryview, at: int) -> memoryview:
    """Returns the body of the record at a byte of a segment, unchecked. data: the whole segment."""
    return data[at + HEAD.size : at + HEAD.size + HEAD.unpack_from(data, at)[0]]


def body_at(data: memoryview, seed: int, at: int) -> memoryview:
    """Returns the body of the record at a byte of a segment, checked. data: the whole segment. BadRecordError."""
    length, checksum = HEAD.unpack_from(data, at)
    body = data[at + HEAD.size : at + HEAD.size + length]
    if crc32(body, seed ^ at) != checksum:
        raise BadRecordError(f"the checksum of the record at byte {at} is wrong")
    return body


class Identity(NamedTuple):
    """The queue number and id of a message's record. mid: None for a STAGED, which has no id yet."""

    number: int
    mid: int | None


def identify(body: memoryview) -> Identity:
    """Returns the queue and the message of a record with a payload. struct.error."""
    _, number, mid = _DELETE.unpack_from(body)
    return Identity(number, None if body[0] == Kind.STAGED else mid)


def plain_push(body: memoryview) -> tuple[int, int, int] | None:
    """Returns (queue number, id, bytes of payload) of a PUSH without delay and key, None for any other record.
    BadRecordError."""
    if body[0] != 2:
        return None
    try:
        _, number, mid, visible, key, _ = _PUSH.unpack_from(body)
    except struct.error as error:
        raise BadRecordError(f"a record of kind 2 cannot be read: {error}") from None
    return None if visible or key != NO_KEY else (number, mid, len(body) - _PUSH.size)


def parse_one(body: memoryview) -> Record:
    """Parses the body of a record. BadRecordError."""
    kind = body[0]
    known = _PARSERS.get(kind)
    if known is None:
        raise BadRecordError(f"kind {kind} is not known: a later version may have written it")
    try:
        return known(body)
    except (struct.error, ValueError) as error:
        raise BadRecordError(f"a record of kind {kind} cannot be read: {error}") from None


def parse(bodies: Iterable[memoryview]) -> Iterator[Record]:
    return map(parse_one, bodies)


def pack(record: Record) -> bytes:
    """Packs the body of a record, with its payload."""
    match record:
        case Push(number, mid, visible, payload, key, at):
            return push(number, mid, visible, key, at) + payload
        case Moved(number, mid, receives, visible, delayed, payload):
            return moved(number, mid, receives, visible, delayed) + payload
        case Staged() | Transfer():
            return record.body() + record.payload
        case Claim() | Acked() | Unclaimed() | Published() | Retired() | Absent():
            return record.body()
        case _:
            return _BODIES[type(record)](*record)


_BODIES: dict[type, Callable[..., bytes]] = {
    Queue: queue,
    State: state,
    Reason: reason,
    Delete: delete,
    Remove: remove,
    Key: key_of,
    Checkpoint: checkpoint,
    Shared: lambda *fields: shared(Shared(*fields)),
    Taken: taken,
    Unlinked: unlinked,
}


def _parse_push(body: memoryview) -> Record:
    _, number, mid, visible, key, at = _PUSH.unpack_from(body)
    return Push(number, mid, visible, bytes(body[_PUSH.size :]), None if key == NO_KEY else key, at)


def _parse_state(body: memoryview) -> Record:
    _, number, mid, receives, visible, delayed = _STATE.unpack(body)
    return State(number, mid, receives, visible, bool(delayed))


def _parse_reason(body: memoryview) -> Record:
    _, number, mid, receives, visible, delayed = _STATE.unpack_from(body)
    return Reason(number, mid, receives, visible, bool(delayed), bytes(body[_STATE.size :]).decode())


def _parse_queue(body: memoryview) -> Record:
    _, number, last_mid = _QUEUE.unpack_from(body)
    return Queue(number, last_mid, bytes(body[_QUEUE.size :]).decode())


def _parse_moved(body: memoryview) -> Record:
    _, number, mid, receives, visible, delayed = _MOVED.unpack_from(body)
    return Moved(number, mid, receives, visible, bool(delayed), bytes(body[_MOVED.size :]))


def _parse_shared(body: memoryview) -> Record:
    _, number, mid, receives, visible, delayed, *where = _SHARED.unpack(body)
    return Shared(number, mid, receives, visible, bool(delayed), *where)


def _parse_key(body: memoryview) -> Record:
    _, number, mid, key, at = _KEY.unpack(body)
    return Key(number, mid, key, at)


_PARSERS: dict[int, Callable[[memoryview], Record]] = {
    Kind.PUSH: _parse_push,
    Kind.STATE: _parse_state,
    Kind.DELETE: lambda body: Delete(*_DELETE.unpack(body)[1:]),
    Kind.QUEUE: _parse_queue,
    Kind.REMOVE: lambda body: Remove(*_REMOVE.unpack(body)[1:]),
    Kind.KEY: _parse_key,
    Kind.CHECKPOINT: lambda body: Checkpoint(*_CHECKPOINT.unpack(body)[1:]),
    Kind.MOVED: _parse_moved,
    Kind.SHARED: _parse_shared,
    Kind.CLAIM: Claim.read,
    Kind.ACKED: Acked.read,
    Kind.UNCLAIMED: Unclaimed.read,
    Kind.STAGED: Staged.read,
    Kind.PUBLISHED: Published.read,
    Kind.TAKEN: lambda body: Taken(*_TOKEN.unpack(body)[1:]),
    Kind.UNLINKED: lambda body: Unlinked(*_TOKEN.unpack(body)[1:]),
    Kind.TRANSFER: Transfer.read,
    Kind.RETIRED: Retired.read,
    Kind.ABSENT: Absent.read,
    Kind.REASON: _parse_reason,
}
