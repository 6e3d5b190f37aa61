"""The records of a journal: each kind is one class, which says how it is written, read, replayed and shown.

A record is the length and checksum of its body (both 32 bits, little endian), and the body, whose first byte is the
kind. The checksum (CRC-32) starts from a number made of the segment's salt and the record's byte in the segment, so
that a record is valid only where it was written. A record states the result of a change, so that replaying it twice
does no harm.

A place is a segment's number and a byte in it, 32 bits each. Reads and writes no files. docs/journal.md has the same
table, which a test compares.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from struct import Struct
from typing import Any, ClassVar, Protocol, Self
from zlib import crc32

from ...engine import Origin
from .attributes import Attributes, attributes_end, read_attributes

HEAD = Struct("<II")
NO_KEY = bytes(16)
"""The key of a PUSH that was sent without one. A text with this digest is too unlikely to consider."""
EMPTY = 0xFFFFFFFF
"""The position in a `Staged` record that announces a part and has no message."""
State = tuple[int, int, bool]
"""The state of a message: receives, time until which it is hidden (0: visible), True if that is a delay."""
_REASONS = ("", "receives", "rejected")
"""The reasons for which messages become dead letters, by the numbers in records. 0 for other messages."""


class BadRecordError(Exception):
    """The bytes are not a valid record. The text says why."""


class ReplayedQueue(Protocol):
    """The methods of a queue that records call when they are replayed. `QueueState` implements them. The interface is
    here because the log must not import queues."""

    def is_newer(self, mid: int, place: int, /) -> bool: ...
    def saw(self, mid: int, /) -> None: ...
    def restore(self, mid: int, place: int, size: int, state: State, attributes: Attributes | None, /) -> None: ...
    def restore_state(self, mid: int, state: State, /) -> None: ...
    def restore_reason(self, mid: int, reason: str, /) -> None: ...
    def restore_deletion(self, mid: int, /) -> None: ...
    def restore_shared(self, record: "Shared", /) -> None: ...
    def restore_owners(self, record: "Transfer", /) -> None: ...
    def restore_transfer(self, place: int, record: "Transfer", /) -> None: ...
    def restore_origin(self, mid: int, origin: Origin, /) -> None: ...
    def restore_key(self, key: bytes, mid: int, at: int, place: int, /) -> None: ...
    def restore_claim(self, place: int, record: "Claim", /) -> None: ...
    def restore_claim_end(self, place: int, record: "Acked | Unclaimed", /) -> None: ...
    def restore_staged(self, place: int, record: "Staged", /) -> None: ...
    def restore_publication(self, place: int, record: "Published", /) -> None: ...
    def restore_token(self, token: int, place: int | None, /) -> None: ...


class ReplayedLog(Protocol):
    """The methods of a whole log that records call when they are replayed. `Replay` implements them."""

    keys_since: int

    def queue(self, number: int, /) -> ReplayedQueue | None: ...
    def add_queue(self, record: "Queue", /) -> None: ...
    def remove_queue(self, number: int, /) -> None: ...


# -- what all kinds have --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Record:
    """A record: one change of one queue.

    Ensures that a record states the result of a change, and not the change: replaying it twice, or after a checkpoint
    that has it already, does no harm.

    number: the queue's, the same in all segments between a server's start and its end. A kind defines its number and
    the struct of its fields; its own methods pack and read what follows the struct."""

    KIND: ClassVar[int]
    FORMAT: ClassVar[Struct]
    LAYOUT: ClassVar[str]
    """The fields with their bytes, as in the table of docs/journal.md."""
    MORE: ClassVar[bool] = False
    """True if other fields may follow the struct."""
    number: int

    @classmethod
    def read(cls, body: memoryview) -> Self:
        """Parses the body of a record of this kind. struct.error, ValueError."""
        return cls(*cls.FORMAT.unpack(body)[1:])

    def write(self) -> bytes:
        """Packs the body, without the payload."""
        # Not `astuple`, which copies each field in depth, in ten times the time.
        return self.FORMAT.pack(self.KIND, *[getattr(self, name) for name in self.__match_args__])

    @staticmethod
    def payload_in(body: memoryview) -> memoryview | None:
        """Returns the payload without parsing other fields, None for a kind without one. struct.error."""
        return None

    def replay(self, log: ReplayedLog, place: int) -> None:
        """Makes the change of the record again, as a start does. place: the place of the record."""
        queue = log.queue(self.number)
        if queue is not None:
            self.apply(queue, place)

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        """Makes the change in the record's queue."""

    def show(self) -> str:
        """Returns the record as a line of text."""
        shown = (f"{each.name} {_shown(getattr(self, each.name))}" for each in fields(self))
        return f"{type(self).__name__.upper()}: {', '.join(shown)}"


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        return f"of {len(value)} bytes"
    if isinstance(value, Attributes | Origin):
        return "(" + ", ".join(f"{name} {_shown(each)}" for name, each in value._asdict().items()) + ")"
    return f"{len(value)} of them" if isinstance(value, array | list | tuple) else repr(value)


@dataclass(slots=True)
class OfMessage(Record):
    """A record of one message. A checkpoint may contain a newer state of the message: then the replay ignores the
    record, except for its id, which new ids have to exceed."""

    mid: int

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        if queue.is_newer(self.mid, place):
            self.change(queue, place)
        else:
            queue.saw(self.mid)

    def change(self, queue: ReplayedQueue, place: int) -> None:
        """Makes the record's change to the queue. Called only if no checkpoint has a newer state of the message."""


def _name(body: memoryview, start: int, length: int) -> str:
    if len(body) < start + length:
        raise ValueError(f"a name of {length} bytes does not fit in")
    return bytes(body[start : start + length]).decode()


def _numbers(data: memoryview) -> "array[int]":
    numbers = array("Q")
    numbers.frombytes(data)
    return numbers


# -- queues ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Queue(Record):
    """Names the queue of a number, for all records that follow: four bytes in each instead of a name. last_mid: the
    greatest id given so far, -1 without any: it outlives the messages, so that no id is given twice."""

    KIND = 1
    FORMAT = Struct("<BIq")
    LAYOUT = "number (4), last id (8, signed), name in UTF-8"
    MORE = True
    last_mid: int
    qid: str

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, last_mid = cls.FORMAT.unpack_from(body)
        return cls(number, last_mid, bytes(body[cls.FORMAT.size :]).decode())

    def write(self) -> bytes:
        return self.FORMAT.pack(1, self.number, self.last_mid) + self.qid.encode()

    def replay(self, log: ReplayedLog, place: int) -> None:
        log.add_queue(self)


@dataclass(slots=True)
class Remove(Record):
    """Says that the queue is gone, with everything before this record."""

    KIND = 6
    FORMAT = Struct("<BI")
    LAYOUT = "number (4)"

    def replay(self, log: ReplayedLog, place: int) -> None:
        log.remove_queue(self.number)


# -- messages -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Push(OfMessage):
    """A pushed message. visible: when the message becomes visible, 0 for at once; key: None without one; at: the time
    of the push."""

    KIND = 2
    FORMAT = Struct("<BIQQ16sQ")
    LAYOUT = "number (4), id (8), visible (8), key (16), time (8), payload"
    MORE = True
    visible: int
    key: bytes | None
    at: int
    payload: bytes

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, mid, visible, key, at = cls.FORMAT.unpack_from(body)
        return cls(number, mid, visible, None if key == NO_KEY else key, at, bytes(body[cls.FORMAT.size :]))

    def write(self) -> bytes:
        return self.FORMAT.pack(2, self.number, self.mid, self.visible, self.key or NO_KEY, self.at)

    @staticmethod
    def payload_in(body: memoryview) -> memoryview:
        return body[Push.FORMAT.size :]

    def replay(self, log: ReplayedLog, place: int) -> None:
        _replay_push(self, log, place)

    def change(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore(self.mid, place, len(self.payload), (0, self.visible, bool(self.visible)), None)


@dataclass(slots=True)
class Attributed(OfMessage):
    """A PUSH of a message with attributes. payload: the content, which begins with the headers."""

    KIND = 22
    FORMAT = Push.FORMAT
    LAYOUT = "number (4), id (8), visible (8), key (16), time (8), attributes, headers, payload"
    MORE = True
    visible: int
    key: bytes | None
    at: int
    payload: bytes
    attributes: Attributes

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, mid, visible, key, at = cls.FORMAT.unpack_from(body)
        attributes, end = read_attributes(body, cls.FORMAT.size)
        return cls(number, mid, visible, None if key == NO_KEY else key, at, bytes(body[end:]), attributes)

    def write(self) -> bytes:
        head = self.FORMAT.pack(22, self.number, self.mid, self.visible, self.key or NO_KEY, self.at)
        return head + self.attributes.pack()

    @staticmethod
    def payload_in(body: memoryview) -> memoryview:
        return body[attributes_end(body, Push.FORMAT.size) :]

    def replay(self, log: ReplayedLog, place: int) -> None:
        _replay_push(self, log, place)

    def change(self, queue: ReplayedQueue, place: int) -> None:
        state = 0, self.visible, bool(self.visible)
        queue.restore(self.mid, place, len(self.payload), state, self.attributes)


def _replay_push(record: Push | Attributed, log: ReplayedLog, place: int) -> None:
    """Stores a pushed message again, and remembers its key while that counts."""
    queue = log.queue(record.number)
    if queue is None:
        return
    if record.key is not None and record.at > log.keys_since:
        queue.restore_key(record.key, record.mid, record.at, place)
    record.apply(queue, place)


@dataclass(slots=True)
class Changed(OfMessage):
    """The state of a message: how often it was received, and until when it is hidden. (Kind STATE.)"""

    KIND = 4
    FORMAT = Struct("<BIQIQB")
    LAYOUT = "number (4), id (8), receives (4), visible (8), delayed (1)"
    receives: int
    visible: int
    delayed: bool

    @property
    def state(self) -> State:
        return self.receives, self.visible, bool(self.delayed)

    def change(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_state(self.mid, self.state)


@dataclass(slots=True)
class Reason(OfMessage):
    """A state, and why the message was given back."""

    KIND = 21
    FORMAT = Changed.FORMAT
    LAYOUT = f"{Changed.LAYOUT}, reason in UTF-8"
    MORE = True
    receives: int
    visible: int
    delayed: bool
    reason: str

    @classmethod
    def read(cls, body: memoryview) -> Self:
        return cls(*(*cls.FORMAT.unpack_from(body)[1:], bytes(body[cls.FORMAT.size :]).decode()))

    def write(self) -> bytes:
        state = self.receives, self.visible, self.delayed
        return self.FORMAT.pack(21, self.number, self.mid, *state) + self.reason.encode()

    def change(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_state(self.mid, (self.receives, self.visible, bool(self.delayed)))
        queue.restore_reason(self.mid, self.reason)


@dataclass(slots=True)
class Delete(OfMessage):
    """Says that the message is gone (a tombstone)."""

    KIND = 5
    FORMAT = Struct("<BIQ")
    LAYOUT = "number (4), id (8)"

    def change(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_deletion(self.mid)


@dataclass(slots=True)
class Retired(Record):
    """Says that messages are gone because they were older than the retention. One record names many, as thousands get
    too old at the same moment. mids: increasing."""

    KIND = 19
    FORMAT = Struct("<BI")
    LAYOUT = "number (4), ids (8 each)"
    MORE = True
    mids: Sequence[int]

    @classmethod
    def read(cls, body: memoryview) -> Self:
        return cls(cls.FORMAT.unpack_from(body)[1], _numbers(body[cls.FORMAT.size :]))

    def write(self) -> bytes:
        return self.FORMAT.pack(19, self.number) + array("Q", self.mids).tobytes()

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        for mid in self.mids:
            if queue.is_newer(mid, place):
                queue.restore_deletion(mid)
            else:
                queue.saw(mid)


@dataclass(slots=True)
class Key(Record):
    """Repeats a key whose PUSH is in a segment that is given up: the server has to remember the key for the rest of its
    time."""

    KIND = 7
    FORMAT = Struct("<BIQ16sQ")
    LAYOUT = "number (4), id (8), key (16), time (8)"
    mid: int
    key: bytes
    at: int

    def replay(self, log: ReplayedLog, place: int) -> None:
        queue = log.queue(self.number)
        if queue is not None and self.at > log.keys_since:
            queue.restore_key(self.key, self.mid, self.at, place)


_FLAGS_AT = 25
"""The byte of the flags in MOVED, LETTER and SHARED."""
_DELAYED, _WITH_ATTRIBUTES = 1, 2
_FLAGGED = "number (4), id (8), receives (4), visible (8), flags (1)"


def flags_of(delayed: bool, attributes: Attributes | None) -> int:
    """Returns the flags of a MOVED, LETTER or SHARED."""
    return int(delayed) if attributes is None else int(delayed) | _WITH_ATTRIBUTES


def _packed(attributes: Attributes | None) -> bytes:
    return b"" if attributes is None else attributes.pack()


def _read_flagged(body: memoryview, start: int) -> tuple[Attributes | None, int]:
    """Reads the attributes that the flags announce. start: the byte where they would begin. Returns the byte after
    them too."""
    return read_attributes(body, start) if body[_FLAGS_AT] & _WITH_ATTRIBUTES else (None, start)


def _after_attributes(body: memoryview, start: int) -> int:
    return attributes_end(body, start) if body[_FLAGS_AT] & _WITH_ATTRIBUTES else start


@dataclass(slots=True)
class Moved(OfMessage):
    """A message that was copied from an older segment, with its state, so that the records which led to that state are
    not needed any more. payload: the content."""

    KIND = 9
    FORMAT = Struct("<BIQIQB")
    LAYOUT = f"{_FLAGGED}, attributes, headers, payload"
    MORE = True
    receives: int
    visible: int
    delayed: bool
    payload: bytes
    attributes: Attributes | None = None

    @classmethod
    def read(cls, body: memoryview) -> Self:
        *state, flags = cls.FORMAT.unpack_from(body)[1:]
        attributes, end = _read_flagged(body, cls.FORMAT.size)
        return cls(*(*state, bool(flags & _DELAYED), bytes(body[end:]), attributes))

    def write(self) -> bytes:
        flags = flags_of(self.delayed, self.attributes)
        head = self.FORMAT.pack(9, self.number, self.mid, self.receives, self.visible, flags)
        return head + _packed(self.attributes)

    @staticmethod
    def payload_in(body: memoryview) -> memoryview:
        return body[_after_attributes(body, Moved.FORMAT.size) :]

    def change(self, queue: ReplayedQueue, place: int) -> None:
        state = self.receives, self.visible, bool(self.delayed)
        queue.restore(self.mid, place, len(self.payload), state, self.attributes)


_ORIGIN = Struct("<QIQQBH")
_ORIGIN_LAYOUT = "dead id (8), dead receives (4), dead at (8), pushed at (8), reason (1), length (2), dead from"


def _pack_origin(origin: Origin | None) -> bytes:
    qid, mid, receives, at, reason, pushed_at = origin or ("", 0, 0, 0, "", 0)
    name = qid.encode()
    return _ORIGIN.pack(mid, receives, at, pushed_at, _REASONS.index(reason), len(name)) + name


def _read_origin(body: memoryview, start: int) -> tuple[Origin | None, int]:
    """Returns an origin and the byte after it."""
    mid, receives, at, pushed_at, why, length = _ORIGIN.unpack_from(body, start)
    if why >= len(_REASONS):
        raise ValueError(f"reason {why} is not known")
    name = _name(body, start + _ORIGIN.size, length)
    return Origin(name, mid, receives, at, _REASONS[why], pushed_at) if why else None, start + _ORIGIN.size + length


@dataclass(slots=True)
class Letter(OfMessage):
    """A dead letter that was copied from an older segment. payload: the content."""

    KIND = 8
    FORMAT = Struct("<BIQIQB")
    LAYOUT = f"{_FLAGGED}, {_ORIGIN_LAYOUT}, attributes, headers, payload"
    MORE = True
    receives: int
    visible: int
    delayed: bool
    origin: Origin | None
    payload: bytes
    attributes: Attributes | None = None

    @classmethod
    def read(cls, body: memoryview) -> Self:
        *state, flags = cls.FORMAT.unpack_from(body)[1:]
        origin, end = _read_origin(body, cls.FORMAT.size)
        attributes, end = _read_flagged(body, end)
        return cls(*(*state, bool(flags & _DELAYED), origin, bytes(body[end:]), attributes))

    def write(self) -> bytes:
        state = self.receives, self.visible, flags_of(self.delayed, self.attributes)
        return self.FORMAT.pack(8, self.number, self.mid, *state) + _pack_origin(self.origin) + _packed(self.attributes)

    @staticmethod
    def payload_in(body: memoryview) -> memoryview:
        return body[_after_attributes(body, _read_origin(body, Letter.FORMAT.size)[1]) :]

    def change(self, queue: ReplayedQueue, place: int) -> None:
        state = self.receives, self.visible, bool(self.delayed)
        queue.restore(self.mid, place, len(self.payload), state, self.attributes)
        if self.origin is not None:
            queue.restore_origin(self.mid, self.origin)


@dataclass(slots=True)
class Shared(OfMessage):
    """A message that has the payload of another record, so that a copy to thousands of queues writes the payload once.
    place: the other record's; size: the bytes of the payload; source: the number of a queue with the message."""

    KIND = 10
    FORMAT = Struct("<BIQIQBQII")
    LAYOUT = f"{_FLAGGED}, place (8), size (4), source (4), attributes"
    MORE = True
    receives: int
    visible: int
    delayed: bool
    place: int
    size: int
    source: int
    attributes: Attributes | None = None

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, mid, receives, visible, flags, place, size, source = cls.FORMAT.unpack_from(body)
        attributes = _read_flagged(body, cls.FORMAT.size)[0]
        return cls(number, mid, receives, visible, bool(flags & _DELAYED), place, size, source, attributes)

    def write(self) -> bytes:
        state = self.receives, self.visible, flags_of(self.delayed, self.attributes)
        where = self.place, self.size, self.source
        return self.FORMAT.pack(10, self.number, self.mid, *state, *where) + _packed(self.attributes)

    @property
    def state(self) -> State:
        return self.receives, self.visible, bool(self.delayed)

    def change(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_shared(self)


@dataclass(slots=True)
class Transfer(OfMessage):
    """A message that has come from another queue, visible and never received. The payload stays in another record.
    source, replaced: the former queue and id, which are gone; place, size: the place of the payload and its bytes;
    origin: for a dead letter."""

    KIND = 18
    FORMAT = Struct("<BIQIQQI")
    LAYOUT = f"number (4), id (8), source (4), replaced (8), place (8), size (4), {_ORIGIN_LAYOUT}, attributes"
    MORE = True
    source: int
    replaced: int
    place: int
    size: int
    origin: Origin | None
    attributes: Attributes | None = None

    @classmethod
    def read(cls, body: memoryview) -> Self:
        origin, end = _read_origin(body, cls.FORMAT.size)
        attributes = read_attributes(body, end)[0] if end < len(body) else None
        return cls(*(*cls.FORMAT.unpack_from(body)[1:], origin, attributes))

    def write(self) -> bytes:
        where = self.source, self.replaced, self.place, self.size
        body = self.FORMAT.pack(18, self.number, self.mid, *where) + _pack_origin(self.origin)
        return body if self.attributes is None else body + self.attributes.pack()

    def replay(self, log: ReplayedLog, place: int) -> None:
        """Removes the former message and adds the new one. A checkpoint may contain only one of the two changes."""
        source, queue = log.queue(self.source), log.queue(self.number)
        if queue is not None:
            queue.restore_owners(self)  # first: a checkpoint may also contain both messages, with one payload
        if source is not None:
            Delete(self.source, self.replaced).apply(source, place)
        if queue is not None:
            self.apply(queue, place)

    def change(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_transfer(place, self)


# -- claims and batches ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Claim(Record):
    """A claim. since: microseconds since the Epoch; size: the bytes of payload; gone: the ids of its messages that were
    removed since."""

    KIND = 11
    FORMAT = Struct("<BIQQQHI")
    LAYOUT = "number (4), claim (8), time (8), bytes (8), length (2), count (4), consumer, ids (8 each)"
    MORE = True
    seq: int
    since: int
    size: int
    consumer: str
    mids: Sequence[int]
    gone: Sequence[int] = ()

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, seq, since, size, length, count = cls.FORMAT.unpack_from(body)
        mids = _numbers(body[cls.FORMAT.size + length :])
        return cls(number, seq, since, size, _name(body, cls.FORMAT.size, length), mids[:count], mids[count:])

    def write(self) -> bytes:
        name = self.consumer.encode()
        head = self.FORMAT.pack(11, self.number, self.seq, self.since, self.size, len(name), len(self.mids))
        return head + name + array("Q", self.mids).tobytes() + array("Q", self.gone).tobytes()

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_claim(place, self)


@dataclass(slots=True)
class Acked(Record):
    """Says that a consumer has acknowledged its claims up to seq. mids: the messages deleted by the acknowledgement.
    They are named because compaction may have removed a claim's record, and kept its messages."""

    KIND = 12
    FORMAT = Struct("<BIQH")
    LAYOUT = "number (4), claim (8), length (2), consumer, ids (8 each)"
    MORE = True
    seq: int
    consumer: str
    mids: Sequence[int] = ()

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, seq, length = cls.FORMAT.unpack_from(body)
        name = _name(body, cls.FORMAT.size, length)
        return cls(number, seq, name, _numbers(body[cls.FORMAT.size + length :]))

    def write(self) -> bytes:
        name = self.consumer.encode()
        head = self.FORMAT.pack(self.KIND, self.number, self.seq, len(name))
        return head + name + array("Q", self.mids).tobytes()

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_claim_end(place, self)


@dataclass(slots=True)
class Unclaimed(Acked):
    """Says that a claim was released. mids: its messages, which are visible."""

    KIND = 13


@dataclass(slots=True)
class Staged(Record):
    """A staged message, not visible yet. position: the index of the message in its part, from 0; EMPTY for a part
    without messages; payload: the content."""

    KIND = 14
    FORMAT = Struct("<BIQQQIHB")
    LAYOUT = (
        "number (4), batch (8), part (8), attempt (8), position (4), length (2), flag (1), producer, attributes, "
        "headers, payload"
    )
    MORE = True
    batch: int
    part: int
    attempt: int
    position: int
    producer: str
    payload: bytes
    attributes: Attributes | None = None

    @classmethod
    def read(cls, body: memoryview) -> Self:
        *found, length, has_attributes = cls.FORMAT.unpack_from(body)
        producer, end = _name(body, cls.FORMAT.size, length), cls.FORMAT.size + length
        attributes = None
        if has_attributes:
            attributes, end = read_attributes(body, end)
        return cls(*(*found[1:], producer, bytes(body[end:]), attributes))

    def write(self) -> bytes:
        name = self.producer.encode()
        where = self.batch, self.part, self.attempt, self.position
        head = self.FORMAT.pack(14, self.number, *where, len(name), self.attributes is not None)
        return head + name + _packed(self.attributes)

    @staticmethod
    def payload_in(body: memoryview) -> memoryview:
        *_, length, has_attributes = Staged.FORMAT.unpack_from(body)
        end = Staged.FORMAT.size + length
        return body[attributes_end(body, end) if has_attributes else end :]

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_staged(place, self)


_PART = Struct("<QQI")


@dataclass(slots=True)
class Published(Record):
    """Says that parts of a batch are messages now. first: the id of the first message; parts: (number, attempt, count
    of messages) in the order of the ids."""

    KIND = 15
    FORMAT = Struct("<BIQQHI")
    LAYOUT = "number (4), batch (8), first id (8), length (2), count (4), producer, parts"
    MORE = True
    batch: int
    first: int
    producer: str
    parts: Sequence[tuple[int, int, int]]

    @classmethod
    def read(cls, body: memoryview) -> Self:
        _, number, batch, first, length, count = cls.FORMAT.unpack_from(body)
        at = cls.FORMAT.size + length
        parts = [_PART.unpack_from(body, at + index * _PART.size) for index in range(count)]
        return cls(number, batch, first, _name(body, cls.FORMAT.size, length), parts)

    def write(self) -> bytes:
        name = self.producer.encode()
        head = self.FORMAT.pack(15, self.number, self.batch, self.first, len(name), len(self.parts))
        return head + name + b"".join(_PART.pack(*part) for part in self.parts)

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_publication(place, self)


# -- files in a queue's directory -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Taken(Record):
    """Says that the files whose names have the token, in the queue's directory, are messages now. The record is in the
    frame of these messages, so a crash leaves each file either a file or a message."""

    KIND = 16
    FORMAT = Struct("<BIQ")
    LAYOUT = "number (4), token (8)"
    token: int

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_token(self.token, place)


@dataclass(slots=True)
class Unlinked(Record):
    """Says that the files with the token no longer exist, so the token need not be remembered."""

    KIND = 17
    FORMAT = Struct("<BIQ")
    LAYOUT = "number (4), token (8)"
    token: int

    def apply(self, queue: ReplayedQueue, place: int) -> None:
        queue.restore_token(self.token, None)


# -- all kinds ------------------------------------------------------------------------------------------------------

KINDS: dict[int, type[Record]] = {
    kind.KIND: kind
    for kind in (
        *(Queue, Remove, Push, Attributed, Changed, Reason, Delete, Retired, Key, Moved, Letter, Shared, Transfer),
        *(Claim, Acked, Unclaimed, Staged, Published, Taken, Unlinked),
    )
}
"""The kinds of records by their numbers."""
WITH_PAYLOAD = frozenset((Push.KIND, Attributed.KIND, Moved.KIND, Letter.KIND, Staged.KIND))
"""The kinds that compaction looks at in a segment. What others say is not needed once their segment is the oldest, or
is in memory, from where the queue carries it."""
PUSH_SIZE = HEAD.size + Push.FORMAT.size
"""Bytes of a PUSH beside its payload."""
MOVED_SIZE = HEAD.size + Moved.FORMAT.size
"""Bytes of a MOVED beside its payload."""
STATE_SIZE = HEAD.size + Changed.FORMAT.size
"""Bytes of a STATE, and of a REASON beside its text."""
KEY_SIZE = HEAD.size + Key.FORMAT.size
"""Bytes of a KEY."""
SMALL = HEAD.size + max(each.FORMAT.size for each in KINDS.values() if not each.MORE)
"""The most bytes of a record that consists of its struct only."""
QUEUE_HEAD = HEAD.size + Queue.FORMAT.size
"""Bytes of a QUEUE without its name."""
QUEUE_SIZE = QUEUE_HEAD + 255
"""Bytes that a QUEUE takes at most: a name has 255 bytes at most."""
TRANSFER_SIZE = HEAD.size + Transfer.FORMAT.size + _ORIGIN.size + 255
"""Bytes that a TRANSFER takes at most, without attributes."""
SHARED_SIZE = HEAD.size + Shared.FORMAT.size
"""Bytes of a SHARED without attributes."""


def record_size(size: int) -> int:
    """Returns the approximate bytes of a message's record. size: the bytes of the message's payload."""
    return size + PUSH_SIZE


def reason_size(reason: str) -> int:
    """Returns the bytes of the REASON record that is copied along with its message."""
    return STATE_SIZE + len(reason.encode())


def name_of(kind: int) -> str:
    """Returns the name of a kind, as in the documentation."""
    return "STATE" if kind == Changed.KIND else KINDS[kind].__name__.upper()


whose = Delete.FORMAT.unpack_from
"""Reads (kind, queue number, id) from the body of a record with a payload; for STAGED the id means nothing.
struct.error."""
_plain = Push.FORMAT.unpack_from  # as a global name, without two look-ups for each record of a start


def payload_of(body: memoryview) -> memoryview | None:
    """Returns the payload in a record's body, None for a kind without one. struct.error if the body is too short."""
    kind = KINDS.get(body[0])
    return None if kind is None else kind.payload_in(body)


def plain_push(body: memoryview) -> tuple[int, int, int] | None:
    """Returns (queue number, id, bytes of payload) of a PUSH without delay and key, None for any other record.
    BadRecordError."""
    # A start reads millions of pushes: those without delay and key are taken from the struct, without a record made
    # of each.
    if body[0] != 2:
        return None
    try:
        _, number, mid, visible, key, _ = _plain(body)
    except struct.error as error:
        raise BadRecordError(f"a record of kind 2 cannot be read: {error}") from None
    return None if visible or key != NO_KEY else (number, mid, len(body) - Push.FORMAT.size)


def parse(body: memoryview) -> Record:
    """Parses the body of a record. BadRecordError."""
    kind = KINDS.get(body[0])
    if kind is None:
        raise BadRecordError(f"kind {body[0]} is not known: a later version may have written it")
    try:
        return kind.read(body)
    except (struct.error, ValueError, TypeError) as error:
        raise BadRecordError(f"a record of kind {body[0]} cannot be read: {error}") from None


def pack(record: Any) -> bytes:
    """Packs the body of a record, with its content."""
    # `write` leaves the payload out, so that a commit need not copy it.
    return record.write() + getattr(record, "payload", b"")  # type: ignore[no-any-return]


def split(data: memoryview, seed: int, start: int) -> Iterator[memoryview]:
    """Yields the bodies of the records in these bytes, each checked. seed: the segment's; start: the byte of the
    segment at which `data` begins. BadRecordError."""
    at = 0
    while at < len(data):
        if len(data) - at < HEAD.size:
            raise BadRecordError(f"{len(data) - at} bytes are left over at byte {at}")
        length, checksum = HEAD.unpack_from(data, at)
        body = data[at + HEAD.size : at + HEAD.size + length]
        # No record is empty, so a head of zeros is none.
        if not length or len(body) != length:
            raise BadRecordError(f"the record at byte {at} claims to have {length} bytes")
        if crc32(body, seed ^ (start + at)) != checksum:
            raise BadRecordError(f"the checksum of the record at byte {at} is wrong")
        yield body
        at += HEAD.size + length


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
