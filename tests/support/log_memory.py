"""What a journal's engine has in memory of its log, to compare: before a batch and after it was taken back, or before
the end of a process and after the next start."""

from pathlib import Path
from typing import Any

from qs_storage.engine import Durability, Options
from qs_storage.journal.log.log import Transaction
from qs_storage.journal.queues.queue import LogQueue
from qs_storage.journal.queues.store import PayloadStore
from qs_storage.journal.upkeep.compaction import Compaction
from support.engines import FaultyDisk, JournalEngine, ManualClock, compact


class LogSession:
    """An engine over a root, whose log is looked into, and which can end as a process does that is killed."""

    def __init__(self, root: Path, durability: Durability = Durability.ALWAYS) -> None:
        self.root = root
        self.durability = durability
        self.clock = ManualClock()
        self.start()

    def start(self) -> None:
        self.disk = FaultyDisk()
        self.engine = JournalEngine(
            str(self.root), clock=self.clock, durability=self.durability, disk=self.disk, cache=0
        )

    def kill(self) -> None:
        """Ends as it is, and starts anew from the segments and the checkpoint that is there, if any."""
        self.leave()
        self.start()

    def restart(self) -> None:
        """Ends cleanly, with a checkpoint, and starts anew from that."""
        self.engine.close()
        self.start()

    def leave(self) -> None:
        self.disk.crash()
        self.engine._watch.close()

    def create(self, qid: str, **options: Any) -> LogQueue:
        self.engine.create(qid, Options("journal", **options))
        self.engine.commit()
        return self.queue(qid)

    def queue(self, qid: str) -> LogQueue:
        return self.engine._journal.queues[qid]

    @property
    def store(self) -> PayloadStore:
        store = self.engine._journal.store
        assert store is not None
        return store

    @property
    def transaction(self) -> Transaction:
        return self.store.transaction

    @property
    def compaction(self) -> Compaction:
        maintenance = self.engine._journal.maintenance
        assert maintenance is not None
        return maintenance.compaction

    def compact(self, upto: int | None = None) -> None:
        """Gives up all segments up to this one, None for all but the last."""
        compact(self.engine, upto)

    def memory(self) -> dict[str, Any]:
        """Returns all that is known of the messages, with their payloads, and the live bytes of each segment."""
        usage = self.store.usage
        queues = {qid: _memory_of(queue) for qid, queue in self.engine._journal.queues.items()}
        return {**queues, "live": {segment: usage.live[segment] for segment in usage.segments()}, "all": usage.total}


def _memory_of(queue: LogQueue) -> dict[str, Any]:
    index = queue.index
    mids = index.messages.after(-1, 1 << 20)
    return {
        "messages": {
            mid: {
                "payload": queue.payload_of(mid),
                "place": queue.places.get(mid),
                "state": (queue.receives.get(mid, 0), index.expiry(mid), index.is_delayed(mid)),
                "sets": (mid in index.ready, mid in index.new, mid in queue.held),
                "past": (queue.reasons.get(mid), queue.origins.get(mid)),
            }
            for mid in mids
        },
        "bytes": index.bytes,
        "pasts": (sorted(queue.reasons), sorted(queue.origins), sorted(mid for mid in queue.receives)),
        "keys": {key: entry[1:] for key, entry in queue.keys.entries.items()},
        "claims": {
            consumer: (state.acked, {seq: sorted(claim.remaining()) for seq, claim in state.claims.items()})
            for consumer, state in queue.claims.consumers.items()
            if state.acked or state.claims
        },
        "batches": {
            producer: (state.last, {name: dict(part) for name, part in state.staged.items()})
            for producer, state in queue.batches.producers.items()
            if state.last >= 0 or state.staged
        },
        "taken": sorted(queue.taken),
    }
