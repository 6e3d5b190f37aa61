"""Reads a damaged segment: the valid frames around the damage, and the single valid records within it.

A record's checksum depends on the segment's salt and the record's place: a valid record is recognized without anything
around it. Any frame's head gives the salt, so a lost header costs no records.
"""

import re
import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from ..log import records
from ..log.frames import (
    BLOCK,
    FRAME_HEAD,
    FRAME_MAGIC,
    DamagedError,
    Frame,
    bodies_of,
    count_of,
    fault_of,
    frame_at,
    is_zero,
    padded,
    seed,
)
from ..log.records import HEAD, KINDS, BadRecordError, Push, Record, parse

_BEGIN = re.compile(rb"(?=[\s\S]{3}[\x00-\x07][\s\S]{4}[\x01-\x%02x])" % max(KINDS))
"""Matches where a record may begin, to judge by the last byte of its length and by its kind."""

_NUMBER, _ID, _TIME = 4, 12, 20
"""Offsets in a body: of the last byte of the queue number, of the message id, and of the time after the id."""


class Piece(NamedTuple):
    """The readable part of a frame. start: the frame's byte in the file; data: the whole file; starts: the byte of each
    valid record in it; lost: the number of other records, None if unknown; synced, oldest: see `Frame`, None if the
    head is lost."""

    sequence: int
    start: int
    data: memoryview
    starts: "array[int]"
    lost: int | None
    synced: int | None
    oldest: int | None

    @property
    def bodies(self) -> Iterator[memoryview]:
        return (self.body(start) for start in self.starts)

    def body(self, start: int) -> memoryview:
        """Returns the body of the record at a byte of the file."""
        return records.body_in(self.data, start)

    @property
    def whole(self) -> bool:
        return self.lost == 0

    @property
    def size(self) -> int:
        """Bytes of the valid records, with their heads."""
        return sum(HEAD.size + len(body) for body in self.bodies)

    def records(self) -> Iterator[Record]:
        return map(parse, self.bodies)

    def placed(self) -> Iterator[tuple[int, Record]]:
        """Yields (byte in the file, record) for the valid records."""
        return ((start, parse(self.body(start))) for start in self.starts)


class Hole(NamedTuple):
    """A range of bytes without a valid frame. first: the number of the first frame expected in the range; next: the
    number of the valid frame after the range, if there is one; pieces: the frames that can be read in part."""

    start: int
    end: int
    why: str
    first: int
    next: int | None
    pieces: list[Piece]


def read_pieces(data: memoryview, salt: bytes, first: int | None) -> Iterator[Piece | Hole]:
    """Reads everything after the header. first: the number of the first frame, None to take the number from the frame's
    head."""
    at, expected = BLOCK, first
    while at + FRAME_HEAD <= len(data):
        frame = frame_at(data, at, salt)
        # The header is lost, and with it the number of the first frame: the first head says it.
        if expected is None:
            expected = 0 if frame is None else frame.sequence
        why = _why_unreadable(data, frame, salt, expected)
        if frame is None or why is not None:
            frame = _next_whole(data, at, salt, expected)
            # A block of zeros is where the log ends: what is behind it was never part of it.
            if frame is None and is_zero(data[: at + BLOCK], at):
                return  # the rest is zeros or, in a recycled segment, frames of an older one
            end = len(data) if frame is None else frame.start
            following = None if frame is None else frame.sequence
            pieces = list(_loose_pieces(data[:end], at, salt, expected, following))
            yield Hole(at, end, why or "", expected, following, pieces)
            if frame is None:
                return
        yield _whole(data, frame)
        at, expected = frame.end, frame.sequence + 1


def _why_unreadable(data: memoryview, frame: Frame | None, salt: bytes, expected: int) -> str | None:
    if frame is None:
        return "no frame begins there"
    if frame.sequence != expected:
        return f"frame {frame.sequence} stands where {expected} should"
    return _fault(data, frame, salt)


def _fault(data: memoryview, frame: Frame, salt: bytes) -> str | None:
    why = fault_of(data, frame, salt)
    if why is None:
        try:
            for body in bodies_of(data, frame, salt):
                parse(body)
        except BadRecordError as error:
            why = f"frame {frame.sequence}: {error}"
    return why


def _whole(data: memoryview, frame: Frame) -> Piece:
    """Returns a frame in which `_fault` has found none."""
    starts = array("Q")
    at, end = frame.start + FRAME_HEAD, frame.start + FRAME_HEAD + frame.length
    while at < end:
        starts.append(at)
        at += HEAD.size + HEAD.unpack_from(data, at)[0]
    return Piece(frame.sequence, frame.start, data, starts, 0, frame.synced, frame.oldest)


def _next_whole(data: memoryview, at: int, salt: bytes, expected: int) -> Frame | None:
    for start in range(at, len(data), BLOCK):
        frame = frame_at(data, start, salt)
        if frame is not None and frame.sequence >= expected and _fault(data, frame, salt) is None:
            return frame
    return None


def _loose_pieces(data: memoryview, at: int, salt: bytes, sequence: int, limit: int | None) -> Iterator[Piece]:
    """Finds single records in bytes without valid frames. sequence, limit: the range of frame numbers, without the
    limit."""
    while at + FRAME_HEAD < len(data) and (limit is None or sequence < limit):
        frame = frame_at(data, at, salt)
        # A head that is whole says where its frame ends, and how many records there should be.
        if frame is not None and sequence <= frame.sequence and (limit is None or frame.sequence < limit):
            end = min(at + FRAME_HEAD + frame.length, len(data))
            kept = _loose_starts(data[:end], at + FRAME_HEAD, salt)
            lost = count_of(data, frame) - len(kept)
            yield Piece(frame.sequence, at, data, kept, lost, frame.synced, frame.oldest)
            at, sequence = frame.end, frame.sequence + 1
            continue
        end = _next_head(data, at + BLOCK, salt)
        kept = _loose_starts(data[:end], at + FRAME_HEAD, salt)
        if kept:
            piece = Piece(sequence, at, data, kept, None, None, None)
            yield piece
            last = kept[-1]
            at, sequence = padded(last + HEAD.size + len(piece.body(last))), sequence + 1
        else:
            at = end


def _next_head(data: memoryview, at: int, salt: bytes) -> int:
    heads = (start for start in range(at, len(data), BLOCK) if frame_at(data, start, salt) is not None)
    return next(heads, len(data))


def _loose_starts(data: memoryview, at: int, salt: bytes) -> "array[int]":
    return array("Q", [start for start, _ in _loose_bodies(data, at, salt)])


def _loose_bodies(data: memoryview, at: int, salt: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yields (byte of the record, body) for each valid record."""
    begin = seed(salt)
    while at + HEAD.size < len(data):
        body = _body_at(data, at, begin)
        if body is None:
            # A search in C for what may be the head of a record: to compute a checksum at each byte would take hours.
            found = _BEGIN.search(data, at + 1)
            if found is None:
                return
            at = found.start()
            continue
        yield at, body
        at += HEAD.size + len(body)


def body_at(data: memoryview, at: int, salt: bytes) -> memoryview | None:
    """Returns the body of the record at a byte of a segment, None if no valid record begins there."""
    return _body_at(data, at, seed(salt)) if at + HEAD.size < len(data) else None


def _body_at(data: memoryview, at: int, begin: int) -> memoryview | None:
    length, checksum = HEAD.unpack_from(data, at)
    body = data[at + HEAD.size : at + HEAD.size + length]
    # In this order: the checksum, which costs most, is computed last.
    if len(body) != length or not _is_plausible(body) or crc32(body, begin ^ at) != checksum:
        return None
    try:
        parse(body)
    except BadRecordError:
        return None
    return body


def _is_plausible(body: memoryview) -> bool:
    """Tells whether a body may be a record. Most others are recognized by this, without computing their checksums."""
    kind = KINDS.get(body[0]) if body else None
    if kind is None or len(body) < (least := kind.FORMAT.size) or (len(body) > least and not kind.MORE):
        return False
    if kind is Push:  # ids and times have at most 18 digits
        return not body[_NUMBER] and body[_ID] < 14 and body[_TIME] < 14 and not body[least - 1]
    return not body[_NUMBER]  # queue numbers are small


# -- a segment whose header is lost ---------------------------------------------------------------------------------


def find_salt(data: memoryview) -> bytes:
    """Computes the salt from the checksum of a frame's head. DamagedError if no frame can be read."""
    for at in range(0, len(data) - FRAME_HEAD, BLOCK):
        if data[at : at + 4] != FRAME_MAGIC:
            continue
        fields, checksum = data[at : at + FRAME_HEAD - 4], struct.unpack_from("<I", data, at + FRAME_HEAD - 4)[0]
        # A CRC can be computed backwards. So the salt, on which the checksum depends, follows from any head that is
        # whole.
        salt = _bytes_with_crc(_crc_seed(fields, checksum))
        frame = frame_at(data, at, salt)
        # By construction the salt fits the head. It is proven if it fits the checksum of a record too.
        if frame is not None and count_of(data, frame):
            bodies = _loose_bodies(data[: frame.end], frame.start + FRAME_HEAD, salt)
            if next(bodies, None) is not None:
                return salt
    raise DamagedError("no frame in it can be read")


def _tables() -> tuple[list[int], dict[int, int]]:
    table = []
    for index in range(256):
        value = index
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        table.append(value)
    return table, {value >> 24: index for index, value in enumerate(table)}


_TABLE, _BY_TOP = _tables()


def _crc_before(state: int, byte: int) -> int:
    """Returns the CRC-32 register before a byte was added. register: the register after the byte."""
    index = _BY_TOP[state >> 24]
    return (((state ^ _TABLE[index]) << 8) & 0xFFFFFFFF) | (index ^ byte)


def _crc_seed(data: memoryview, checksum: int) -> int:
    """Returns the seed with which the CRC-32 of the data is this checksum."""
    state = checksum ^ 0xFFFFFFFF
    for byte in reversed(data):
        state = _crc_before(state, byte)
    return state ^ 0xFFFFFFFF


def _bytes_with_crc(checksum: int) -> bytes:
    """Returns the four bytes that have this CRC-32."""
    state = checksum ^ 0xFFFFFFFF
    for _ in range(4):
        state = _crc_before(state, 0)
    return (state ^ 0xFFFFFFFF).to_bytes(4, "little")
