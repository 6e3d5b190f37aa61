"""What has to hold of a journal from the middle of whose log segments leave."""

from collections import Counter
from collections.abc import Sequence

from qs_storage.directories import JournalEngine
from qs_storage.journal.log.frames import BLOCK
from qs_storage.journal.log.records import BROAD, Delete, Moved, Push, Shared, State, parse_one
from qs_storage.journal.log.retired_record import Retired
from qs_storage.journal.log.scanning import open_segment
from qs_storage.journal.log.transfer_record import Transfer
from qs_storage.journal.queues.keys import KEY_SIZE
from qs_storage.journal.queues.queue import LogQueue
from qs_storage.journal.queues.store import Store, record_size
from qs_storage.journal.upkeep.maintenance import LogStore


def store_of(engine: JournalEngine) -> LogStore:
    store = engine._journal._store
    assert store is not None
    return store


def state_of(engine: JournalEngine, now: int) -> dict[str, object]:
    """All that a queue has to know again after a start."""
    found: dict[str, object] = {}
    for qid in engine._journal.queues:
        queue = engine.queue(qid)
        assert isinstance(queue, LogQueue)
        queue.expire()
        table = queue.table
        found[qid] = [
            (mid, queue.payload_of(mid), table.state_of(mid), table.origins.get(mid))
            for mid in table.index.messages.after(-1, 10_000)
        ]
        found[f"{qid} keys"] = sorted((e.key, e.mid) for e in queue.keys.entries.values() if e.at > now - 300_000_000)
        found[f"{qid} claims"] = queue.claims.all()
        found[f"{qid} staged"] = {
            name: (producer.last, {n: sorted(part) for n, part in producer.staged.items()})
            for name, producer in queue.batches.producers.items()
            if producer.last >= 0 or producer.staged
        }
        found[f"{qid} last"] = queue.last_mid
        found[f"{qid} taken"] = sorted(queue.taken)
    return found


def check_usage(engine: JournalEngine) -> None:
    """What counts as live is what is there."""
    live: Counter[int] = Counter()
    places: dict[int, int] = {}
    for queue in engine._journal.queues.values():
        table = queue.table
        for mid in table.index.messages.after(-1, 10_000):
            places[table.places.get(mid) or 0] = table.index.size(mid)
        for producer in queue.batches.producers.values():
            places.update(place for part in producer.staged.values() for place in part.values())
        for entry in queue.keys.entries.values():
            live[entry.segment] += KEY_SIZE
    for place, size in places.items():
        live[place >> 32] += record_size(size)
    store = store_of(engine)
    assert {segment: size for segment, size in store.usage.live.items() if size} == live
    assert live.keys() <= store.log.segments.sizes.keys()


def check_links(store: Store) -> None:
    """A segment with a record about a message waits for the one with the record before that."""
    log, links = store.log, store.log.segments.links
    known: dict[tuple[int, int], int] = {}
    for number in log.segments.sizes:
        before = links.before(number)
        scan = open_segment(log.directory, number)
        for _, bodies in scan.frames(BLOCK, scan.header.first, log.segments.frame_after(number)):
            for body in bodies:
                assert body[0] not in BROAD or number in links.broad
                record = parse_one(body)
                for message in _messages_of(record):
                    begun = known.get(message, number)
                    assert begun == number or before is None or begun in before, record
                if isinstance(record, (Push, Moved, Shared, Transfer)):
                    known[record.number, record.mid] = number


def _messages_of(record: object) -> Sequence[tuple[int, int]]:
    """Returns the messages that a record changes."""
    if isinstance(record, Transfer):
        return (record.number, record.mid), (record.source, record.replaced)
    if isinstance(record, Retired):
        return [(record.number, mid) for mid in record.mids]
    return [(record.number, record.mid)] if isinstance(record, (State, Delete, Moved)) else []
