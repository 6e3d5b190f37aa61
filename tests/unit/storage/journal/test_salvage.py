"""Single records are found around damage, whatever their kind is."""

from zlib import crc32

import pytest

from qs_storage.engine import Origin
from qs_storage.journal.log import records
from qs_storage.journal.log.attributes import Attributes
from qs_storage.journal.log.frames import BLOCK, FRAME_HEAD, pack_frame_head, padded, seed
from qs_storage.journal.log.records import HEAD, KINDS, Record, name_of
from qs_storage.journal.rescue.salvage import Hole, body_at, read_pieces

SALT = b"saltsalt"
ORIGIN = Origin("failed", 3, 4, 5, "rejected", 6)
RECORDS: list[Record] = [
    records.Queue(1, 0, "q"),
    records.Push(1, 2, 3, None, 0, b"payload"),
    records.Changed(1, 2, 3, 4, False),
    records.Delete(1, 2),
    records.Remove(1),
    records.Attributed(1, 2, 3, b"k" * 16, 4, b"payload", Attributes(5, 6, b"u" * 16, 2, "group")),
    records.Key(1, 2, b"k" * 16, 3),
    records.Moved(1, 2, 3, 4, False, b"payload"),
    records.Letter(1, 2, 3, 4, False, ORIGIN, b"payload"),
    records.Shared(1, 2, 3, 4, False, 5, 6, 7),
    records.Claim(1, 2, 3, 4, "claim", (5, 6)),
    records.Acked(1, 2, "claim"),
    records.Unclaimed(1, 2, "claim"),
    records.Staged(1, 2, 3, 4, 5, "batch", b"payload"),
    records.Published(1, 2, 3, "batch", ((4, 5, 6),)),
    records.Taken(1, 2),
    records.Unlinked(1, 2),
    records.Transfer(1, 2, 3, 4, 5, 6, ORIGIN),
    records.Retired(1, (2, 3)),
    records.Reason(1, 2, 3, 4, True, "because"),
]


def damaged(record: Record) -> tuple[memoryview, int]:
    """Returns a segment whose only frame has a damaged record before this one, and where this one begins."""
    parts, place = b"", 0
    for body in (records.pack(records.Delete(1, 9)), records.pack(record)):
        place = BLOCK + FRAME_HEAD + len(parts)
        parts += HEAD.pack(len(body), crc32(body, seed(SALT) ^ place)) + body
    frame = pack_frame_head(seed(SALT), 1, 0, 1, len(parts), 2) + parts
    data = bytearray(bytes(BLOCK) + frame.ljust(padded(len(frame)), b"\0") + bytes(BLOCK))
    data[BLOCK + FRAME_HEAD] ^= 1  # the length of the first record
    return memoryview(data), place


def test_there_is_one_of_every_kind() -> None:
    """A new kind has to be in the list of these tests too."""
    assert {record.KIND for record in RECORDS} == set(KINDS)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: name_of(record.KIND))
def test_every_kind_is_found_behind_damage(record: Record) -> None:
    """A record whose neighbour in the frame is damaged is found, and nothing is found where none begins."""
    data, place = damaged(record)
    (hole,) = read_pieces(data, SALT, 1)
    assert isinstance(hole, Hole)
    assert [bytes(body) for piece in hole.pieces for body in piece.bodies] == [records.pack(record)]
    assert [(piece.lost, piece.oldest) for piece in hole.pieces] == [(1, 1)]
    assert body_at(data, place, SALT) == records.pack(record)
    for nothing in (place - 1, BLOCK + FRAME_HEAD, len(data) - 1, 10 * len(data)):
        assert body_at(data, nothing, SALT) is None
