"""The layout of a segment: a header of one block, then frames, each the records of one commit.

Header and frames begin at blocks of 4 KiB, as O_DIRECT demands. A segment has its full size from the start: syncs write
no metadata, and a cut file is noticed. After the last frame, a fresh segment has only zeros; a recycled one has a block
of zeros, then bytes of an older segment. Frames are numbered through all segments, without a gap.
"""

import secrets
import struct
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from .records import BadRecordError, split

BLOCK = 4096
"""Bytes. Disks and O_DIRECT write whole blocks: a block that a power loss tears is part of one frame only."""
_MAGIC = b"qs-journal 3\n\0\0\0"
_NAME = b"qs-journal "
FRAME_MAGIC = b"qsF\x01"
_HEADER = struct.Struct("<16sQQQ8sII")
_FRAME = struct.Struct("<4sIQQQII")
FRAME_HEAD = _FRAME.size
_CHECKSUM = struct.Struct("<I")
_CHUNK = 1 << 20
"""Bytes that are compared with zeros at a time."""
_LIFE = 4
"""Bytes of the salt that all segments of one server process share. The others differ, so that a frame of one segment is
not taken for one of another."""


class DamagedError(Exception):
    """The bytes are not those that were written. The text says where, and what is wrong."""


class OtherFormatError(DamagedError):
    """The bytes are a segment of a format that this version does not read. The text names both."""


class Header(NamedTuple):
    """The header of a segment.

    size: the bytes of the whole file, by which a start notices that the file was cut off; first: the number of its
    first frame; salt: part of every checksum, so that no payload passes for a frame; recycled: 1 if the file was an
    older segment's, else 0."""

    number: int
    size: int
    first: int
    salt: bytes
    recycled: int = 0

    @property
    def life(self) -> bytes:
        """The part of the salt that all segments of one server process share; they also share queue numbers."""
        return self.salt[:_LIFE]


class Frame(NamedTuple):
    """The head of a frame. sequence: the frame's number; start: its first byte in the file; length: the bytes of its
    records.

    synced: the last frame that was durable when this one was written. If this frame is whole, and an earlier one up to
    `synced` is not, the earlier one is damaged, and not torn. oldest: the oldest segment that is needed from this frame
    on. So a frame gives a segment up, and a frame is there as a whole or not at all."""

    sequence: int
    synced: int
    oldest: int
    start: int
    length: int

    @property
    def end(self) -> int:
        return padded(self.start + FRAME_HEAD + self.length)


class Gap(NamedTuple):
    """The byte where the frames end. why: the fault of the frame there, None if nothing was written there; later: the
    frame with the greatest `synced` among those after the gap that have a valid head, None without any."""

    start: int
    why: str | None
    later: Frame | None


def new_salt(other: bytes) -> bytes:
    """Returns a random salt. other: the salt of another segment of the same server process, or empty."""
    return other[:_LIFE] + secrets.token_bytes(8 - len(other[:_LIFE]))


def padded(length: int) -> int:
    """Rounds a number of bytes up to whole blocks."""
    return -(-length // BLOCK) * BLOCK


def pack_header(header: Header) -> bytes:
    """Packs a header, filled up with zeros to a block."""
    fields = _HEADER.pack(_MAGIC, *header, 0)[:-4]
    return (fields + struct.pack("<I", crc32(fields))).ljust(BLOCK, b"\0")


def read_header(data: memoryview, size: int | None) -> Header:
    """Reads the header at the start of these bytes. size: the file's size, None to trust the header. OtherFormatError,
    DamagedError."""
    if len(data) < _HEADER.size:
        raise DamagedError(f"it has {len(data)} bytes, and no header")
    magic, *fields, checksum = _HEADER.unpack_from(data)
    # A wrong bit in the magic must not look like another version of qs: the checksum over the right magic tells which
    # it is.
    is_ours = crc32(data[len(_MAGIC) : _HEADER.size - 4], crc32(_MAGIC)) == checksum  # also if the magic is damaged
    if magic != _MAGIC and magic.startswith(_NAME) and not is_ours:
        known, found = (text.split(b"\n")[0].decode(errors="replace") for text in (_MAGIC, magic))
        raise OtherFormatError(
            f"it has the format {found!r}: another version of qs has written it, this one reads {known!r}"
        )
    if magic != _MAGIC:
        raise DamagedError("it does not begin like a segment")
    if not is_ours:
        raise DamagedError("the checksum of its header is wrong")
    header = Header(*fields)
    if size not in (None, header.size):
        raise DamagedError(f"it has {size} bytes and should have {header.size}")
    return header


def seed(salt: bytes) -> int:
    """Returns the initial value of a segment's checksums, which is combined (XOR) with the place of a record for that
    record's checksum."""
    return crc32(salt)


def pack_frame_head(  # noqa: PLR0917 - the fields of a head, in its order
    begin: int, sequence: int, synced: int, oldest: int, length: int, count: int
) -> bytes:
    """Packs the head of a frame: see `Frame`. begin: the `seed` of the segment; length, count: the bytes and the number
    of its records."""
    fields = _FRAME.pack(FRAME_MAGIC, length, sequence, synced, oldest, count, 0)[:-4]
    return fields + _CHECKSUM.pack(crc32(fields, begin))


def frame_at(data: memoryview, start: int, salt: bytes) -> Frame | None:
    """Reads the head of the frame at a byte, None if no frame begins there. Does not check the records."""
    if data[start : start + 4] != FRAME_MAGIC or start + FRAME_HEAD > len(data):
        return None
    _, length, sequence, synced, oldest, _, checksum = _FRAME.unpack_from(data, start)
    if crc32(data[start : start + FRAME_HEAD - 4], seed(salt)) != checksum:
        return None
    return Frame(sequence, synced, oldest, start, length)


def count_of(data: memoryview, frame: Frame) -> int:
    """Returns the number of records that the head of a frame names."""
    return int(_FRAME.unpack_from(data, frame.start)[5])


def fault_of(data: memoryview, frame: Frame, salt: bytes) -> str | None:
    """Returns the fault in the records of a frame, None if there is none."""
    if frame.start + FRAME_HEAD + frame.length > len(data):
        return f"frame {frame.sequence} claims to reach beyond the end"
    try:
        read_records(data, frame, salt)
    except BadRecordError as error:
        return f"frame {frame.sequence}: {error}"
    return None


def read_records(data: memoryview, frame: Frame, salt: bytes) -> list[memoryview]:
    """Returns the bodies of all records of a frame, each checked. BadRecordError."""
    bodies = list(bodies_of(data, frame, salt))
    if len(bodies) != (count := count_of(data, frame)):
        raise BadRecordError(f"it holds {len(bodies)} records and should hold {count}")
    return bodies


def bodies_of(data: memoryview, frame: Frame, salt: bytes) -> Iterator[memoryview]:
    """Yields the bodies of a frame's records, each checked. BadRecordError."""
    start = frame.start + FRAME_HEAD
    return split(data[start : start + frame.length], seed(salt), start)


def is_end(data: memoryview, start: int, header: Header) -> bool:
    """Tells whether no frame was ever written from this byte on."""
    # In a recycled segment old bytes follow the end, so its writer puts a block of zeros behind each frame. A fresh
    # segment has zeros to its end.
    if header.recycled:
        return data[start : start + BLOCK] == bytes(len(data[start : start + BLOCK]))
    return is_zero(data, start)


def gap_at(data: memoryview, header: Header, start: int, why: str, expected: int) -> Gap:
    """Describes the gap at a byte where frame `expected` should be. why: the fault of the frame that was written there,
    None if none was."""
    if is_end(data, start, header):
        return Gap(start, None, None)
    # Frames begin at blocks, so all that can follow are found by looking at each block.
    behind = (frame_at(data, at, header.salt) for at in range(start, len(data), BLOCK))
    later = (frame for frame in behind if frame is not None and frame.sequence > expected)
    return Gap(start, why, max(later, key=lambda frame: frame.synced, default=None))


def is_zero(data: memoryview, start: int) -> bool:
    """Tells whether there are only zeros from this byte on."""
    # In chunks: to compare all of a segment with as many zeros would take its size of memory again.
    zeros = bytes(_CHUNK)
    return all(bytes(data[at : at + _CHUNK]) == zeros[: len(data) - at] for at in range(start, len(data), _CHUNK))
