"""The bytes of a segment: what is written is read, and nothing else is taken for a frame or a record."""

from collections.abc import Callable, Iterator
from zlib import crc32

import pytest

from qs_storage.journal.log import records
from qs_storage.journal.log.frames import (
    BLOCK,
    FRAME_HEAD,
    DamagedError,
    Frame,
    Gap,
    Header,
    OtherFormatError,
    bodies_of,
    frame_at,
    new_salt,
    pack_frame_head,
    pack_header,
    padded,
    read_header,
    seed,
)
from qs_storage.journal.log.opening import Scan
from qs_storage.journal.log.records import BadRecordError, Push, Record, parse
from qs_storage.journal.rescue.salvage import Hole, Piece, find_salt, read_pieces

SALT = b"saltsalt"
PAYLOADS = (b"one", b"", b"x" * 9000, b"four")


def frame(sequence: int, *payloads: bytes, salt: bytes = SALT, synced: int | None = None) -> Callable[[int], bytes]:
    """Returns what makes a frame with a PUSH of each payload, given where in its file it is to stand."""

    def made(start: int) -> bytes:
        parts = b""
        for mid, payload in enumerate(payloads):
            body = records.pack(records.Push(1, mid, 0, None, 0, payload))
            place = start + FRAME_HEAD + len(parts)
            parts += records.HEAD.pack(len(body), crc32(body, seed(salt) ^ place)) + body
        head = pack_frame_head(
            seed(salt), sequence, sequence - 1 if synced is None else synced, 1, len(parts), len(payloads)
        )
        return (head + parts).ljust(padded(len(head) + len(parts)), b"\0")

    return made


def segment(*frames: bytes | Callable[[int], bytes], room: int = 4 * BLOCK, first: int = 1) -> bytearray:
    data = b""
    for made in frames:
        data += made if isinstance(made, bytes) else made(BLOCK + len(data))
    data += bytes(room)
    return bytearray(pack_header(Header(1, BLOCK + len(data), first, SALT)) + data)


def header_of(data: bytearray) -> Header:
    return read_header(memoryview(data), len(data))


def scan(data: memoryview, header: Header) -> tuple[list[Frame], Gap]:
    """The whole frames, and where they end."""
    scanned = Scan.__new__(Scan)  # of bytes that are no file
    scanned.path, scanned.data, scanned.header = "", data, header
    starts = [start for start, _ in scanned.frames(BLOCK, header.first, None)]
    frames = [frame_at(data, start - FRAME_HEAD, header.salt) for start in starts]
    return [frame for frame in frames if frame is not None], scanned.gap


def records_of(data: memoryview, frame: Frame, salt: bytes) -> Iterator[Record]:
    return map(parse, bodies_of(data, frame, salt))


def payloads(data: bytearray) -> list[bytes]:
    """Returns the payloads of every whole frame."""
    view = memoryview(data)
    frames, _ = scan(view, header_of(data))
    found = [record for frame in frames for record in records_of(view, frame, SALT)]
    return [record.payload for record in found if isinstance(record, Push)]


def test_what_is_written_is_read() -> None:
    """Frames of any length, and payloads of none, are as they were; zeros follow."""
    data = segment(frame(1, *PAYLOADS), frame(2), frame(3, b"last"))
    assert payloads(data) == [*PAYLOADS, b"last"]
    frames, gap = scan(memoryview(data), header_of(data))
    assert [found.sequence for found in frames] == [1, 2, 3]
    assert (gap.why, gap.later) == (None, None)


def test_a_full_segment() -> None:
    """The last frame may end where the file does; a single one may fill it."""
    for frames in ([frame(1, b"a"), frame(2, b"b")], [frame(1, b"x" * (5 * BLOCK))]):
        data = segment(*frames, room=0)
        found, gap = scan(memoryview(data), header_of(data))
        assert (len(found), gap.start, gap.why) == (len(frames), len(data), None)


def test_a_header_is_checked() -> None:
    """A header that is too short, of another checksum, version or size is refused with that reason."""
    data = segment(frame(1, b"a"))
    for size, said in ((0, "0 bytes"), (55, "55 bytes"), (len(data) - 1, "should have")):
        with pytest.raises(DamagedError, match=said):
            read_header(memoryview(data)[:size], size)
    data[20] ^= 1
    with pytest.raises(DamagedError, match="checksum of its header"):
        header_of(data)
    other = bytearray(pack_header(Header(1, BLOCK, 1, SALT)))
    other[:16] = b"qs-journal 9\n\0\0\0"
    with pytest.raises(DamagedError, match="it does not begin like a segment"):  # the rest is right
        header_of(other)
    other[52:56] = crc32(other[:52]).to_bytes(4, "little")
    with pytest.raises(OtherFormatError, match=r"'qs-journal 9': another version .* this one reads 'qs-journal 3'"):
        header_of(other)


def test_a_payload_is_not_taken_for_a_frame() -> None:
    """A payload that holds a whole segment, its frames where frames begin, does not count, whatever is torn."""
    forged = segment(frame(2, b"forged", salt=b"saltsal!"), frame(3, b"forged", salt=b"saltsal!"))
    shift = -(FRAME_HEAD + records.PUSH_SIZE) % BLOCK
    data = segment(frame(1, bytes(shift) + bytes(forged)), frame(2, b"end"))
    assert payloads(data)[-1] == b"end"
    data[BLOCK + FRAME_HEAD + 20] ^= 1
    frames, gap = scan(memoryview(data), header_of(data))
    assert frames == []
    assert gap.later is not None
    assert gap.later.sequence == 2
    found = list(read_pieces(memoryview(data), SALT, 1))
    assert [piece.sequence for piece in found if isinstance(piece, Piece)] == [2]


def test_a_copy_of_an_earlier_frame_does_not_count() -> None:
    """A copy of an earlier frame does not count, even one of this segment that was pushed as a payload."""
    first = frame(1, b"once")(BLOCK)
    shift = -(FRAME_HEAD + records.PUSH_SIZE) % BLOCK
    data = segment(first, frame(2, bytes(shift) + first), frame(3, b"end"))
    data[BLOCK + len(first) + FRAME_HEAD] ^= 1
    _, gap = scan(memoryview(data), header_of(data))
    assert gap.later is not None
    assert gap.later.sequence == 3
    found = list(read_pieces(memoryview(data), SALT, 1))
    assert [piece.sequence for piece in found if isinstance(piece, Piece)] == [1, 3]
    assert [len(hole.pieces[0].starts) for hole in found if isinstance(hole, Hole) and hole.pieces] in ([], [0])


@pytest.mark.parametrize("place", ["head", "record", "payload"])
def test_a_frame_that_is_wrong(place: str) -> None:
    """Frames end before it; the gap says what calls it durable."""
    whole = frame(1, b"a")(BLOCK)
    at = BLOCK + len(whole) + {"head": 8, "record": FRAME_HEAD + 2, "payload": FRAME_HEAD + records.PUSH_SIZE}[place]
    data = segment(whole, frame(2, b"b"), frame(3, b"c"), frame(4, b"d", synced=1))
    data[at] ^= 16
    frames, gap = scan(memoryview(data), header_of(data))
    assert [found.sequence for found in frames] == [1]
    assert gap.start == BLOCK + len(whole)
    assert gap.why
    assert gap.later is not None
    assert (gap.later.sequence, gap.later.synced) == (3, 2)


def test_the_frame_that_calls_the_most_durable() -> None:
    """The frame that says that most is durable need not be the next one, nor whole itself."""
    third = frame(3, b"c", synced=0)
    data = segment(bytes(BLOCK), frame(2, b"b", synced=0), third, frame(4, b"d", synced=3), first=1)
    data[-4 * BLOCK - BLOCK + FRAME_HEAD] ^= 1
    _, gap = scan(memoryview(data), header_of(data))
    assert gap.later is not None
    assert gap.later.synced == 3


def test_frames_in_each_others_place() -> None:
    """A number that does not follow ends the frames."""
    data = segment(frame(1, b"a"), frame(3, b"c"), frame(2, b"b"))
    frames, gap = scan(memoryview(data), header_of(data))
    assert [found.sequence for found in frames] == [1]
    assert gap.why == "frame 3 stands where 2 should"


def test_more_or_fewer_records_than_said() -> None:
    """The head gives their number and their bytes."""
    for count in (0, 2):
        head = pack_frame_head(seed(SALT), 1, 0, 1, 0 if not count else 12, count)
        data = segment((head + bytes(BLOCK))[:BLOCK])
        frames, _ = scan(memoryview(data), header_of(data))
        assert len(frames) == (0 if count else 1)


def test_a_record_of_another_place_is_bad() -> None:
    """A record's checksum begins with the salt of its segment and its place, so a moved record is bad."""
    body = records.Delete(1, 2).write()
    data = records.HEAD.pack(len(body), crc32(body, seed(SALT) ^ 700)) + body
    assert [bytes(found) for found in records.split(memoryview(data), seed(SALT), 700)] == [body]
    for begin, place in ((seed(SALT), 701), (seed(b"saltsal!"), 700)):
        with pytest.raises(BadRecordError, match="checksum"):
            list(records.split(memoryview(data), begin, place))


def test_a_salt_is_found_without_the_header() -> None:
    """One that makes every checksum right; without a frame there is none."""
    data = memoryview(segment(frame(5, b"five"), frame(6, b"six"), first=5))
    found = list(read_pieces(data, find_salt(data), None))
    assert [piece.sequence for piece in found if isinstance(piece, Piece) and piece.whole] == [5, 6]
    with pytest.raises(DamagedError):
        find_salt(memoryview(segment()))


def test_salts() -> None:
    """Salts of one start have the first half in common, and no two are the same."""
    first = new_salt(b"")
    salts = {new_salt(first) for _ in range(100)}
    assert len(salts) == 100
    assert {Header(1, 1, 1, salt).life for salt in salts} == {first[:4]}
    assert new_salt(b"")[:4] != new_salt(b"")[:4]
