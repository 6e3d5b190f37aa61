"""Single records are found around damage, whatever their kind is."""

from zlib import crc32

import pytest

from qs_storage.journal.log import records
from qs_storage.journal.log.absent_record import Absent, Run
from qs_storage.journal.log.claim_records import Acked, Claim, Published, Staged, Unclaimed
from qs_storage.journal.log.frames import BLOCK, FRAME_HEAD, pack_frame_head, padded, seed
from qs_storage.journal.log.records import HEAD, Kind, Record
from qs_storage.journal.log.retired_record import Retired
from qs_storage.journal.log.transfer_record import Transfer
from qs_storage.journal.rescue.salvage import Hole, read_pieces

SALT = b"saltsalt"
RECORDS: dict[Kind, Record] = {
    Kind.QUEUE: records.Queue(1, 0, "q"),
    Kind.PUSH: records.Push(1, 2, 3, b"payload", None, 0),
    Kind.STATE: records.State(1, 2, 3, 4, False),
    Kind.DELETE: records.Delete(1, 2),
    Kind.REMOVE: records.Remove(1),
    Kind.KEY: records.Key(1, 2, b"k" * 16, 3),
    Kind.CHECKPOINT: records.Checkpoint(1),
    Kind.MOVED: records.Moved(1, 2, 3, 4, False, b"payload"),
    Kind.SHARED: records.Shared(1, 2, 3, 4, False, 5, 6, 7),
    Kind.CLAIM: Claim(1, 2, 3, 4, "claim", (5, 6)),
    Kind.ACKED: Acked(1, 2, "claim"),
    Kind.UNCLAIMED: Unclaimed(1, 2, "claim"),
    Kind.STAGED: Staged(1, 2, 3, 4, 5, "batch", b"payload"),
    Kind.PUBLISHED: Published(1, 2, 3, "batch", ((4, 5, 6),)),
    Kind.TAKEN: records.Taken(1, 2),
    Kind.UNLINKED: records.Unlinked(1, 2),
    Kind.TRANSFER: Transfer(1, 2, 3, 4, 5, 6, False, None, b"payload"),
    Kind.RETIRED: Retired(1, (2, 3)),
    Kind.REASON: records.Reason(1, 2, 3, 4, True, "because"),
    Kind.ABSENT: Absent((Run(2, 3, 4), Run(6, 6, 9))),
}


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_every_kind_is_found_behind_damage(kind: Kind) -> None:
    """A record whose neighbour in the frame is damaged is found."""
    parts, start = b"", BLOCK
    bodies = [records.pack(records.Delete(1, 9)), records.pack(RECORDS[kind])]
    for body in bodies:
        place = start + FRAME_HEAD + len(parts)
        parts += HEAD.pack(len(body), crc32(body, seed(SALT) ^ place)) + body
    frame = pack_frame_head(seed(SALT), 1, 0, len(parts), len(bodies)) + parts
    data = bytearray(bytes(BLOCK) + frame.ljust(padded(len(frame)), b"\0") + bytes(BLOCK))
    data[BLOCK + FRAME_HEAD] ^= 1  # the length of the first record
    (hole,) = read_pieces(memoryview(data), SALT, 1)
    assert isinstance(hole, Hole)
    assert [bytes(body) for piece in hole.pieces for body in piece.bodies] == [bodies[1]]
