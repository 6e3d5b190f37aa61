"""A start after a crash: what the journal says is applied to the queues as their directories show them."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from ..engine import StorageError
from ..filequeue import FileQueue
from . import records
from .ledger import Ledger
from .queue import JournalQueue

_logger = logging.getLogger(__name__)


class Replay:
    """Of one journal, record by record in the order in which they were written."""

    def __init__(self, queues: Mapping[str, FileQueue], ledger: Ledger) -> None:
        self._queues = queues
        self._ledger = ledger
        self._names: dict[int, str] = {}
        self._latest: dict[str, int] = {}
        self._orphans: Counter[int] = Counter()
        """Messages of queues that have no directory, by number."""
        self.changes = 0
        """Records that said something of messages."""

    def apply(self, found: Iterable[tuple[int, records.Record]]) -> None:
        """StorageError when a queue's directory is not one of the journal any more."""
        for segment, record in found:
            self._apply(segment, record)
        self._ledger.skip_numbers(max(self._names, default=0))
        for queue in self._queues.values():
            if isinstance(queue, JournalQueue):
                queue.replayed()
        for number, count in self._orphans.items():
            _logger.warning(
                "the journal has %d messages of queue %r, whose directory is gone; they go with it",
                count,
                self._names.get(number, "?"),
            )

    def _apply(self, segment: int, record: records.Record) -> None:
        if isinstance(record, records.Checkpoint):
            return
        if isinstance(record, records.Queue):
            self._names[record.number] = record.qid
            self._latest[record.qid] = max(record.number, self._latest.get(record.qid, 0))
            queue = self._queues.get(record.qid)
            if isinstance(queue, JournalQueue):
                queue.last_mid = max(queue.last_mid, record.last_mid)
            return
        # What named a queue that has been removed may be in a segment that is gone.
        qid = self._names.get(record.number, "")
        queue = self._queues.get(qid)
        if isinstance(record, records.Remove) and self._latest.get(qid, record.number) > record.number:
            return  # there was another queue of the name by then
        if isinstance(queue, JournalQueue):
            self.changes += 1
            _apply_to(queue, segment, record)
        elif isinstance(record, records.Remove):
            self._orphans.pop(record.number, None)
        elif isinstance(record, records.Push):
            if queue is not None:
                raise _not_of_the_journal(queue)
            self._orphans[record.number] += 1


def _apply_to(queue: JournalQueue, segment: int, record: records.Record) -> None:
    match record:
        case records.Push():
            queue.replay_push(record, segment)
        case records.State():
            queue.replay_state(record, segment)
        case records.Delete():
            queue.replay_delete(record, segment)
        case records.Key():
            queue.keys.note(record.key, record.mid, record.at, segment)
        case records.Remove():
            queue.forget_replayed()


def check_unused(found: Iterable[tuple[int, records.Record]], queues: Mapping[str, FileQueue]) -> None:
    """For queues that are none of the journal. StorageError when it has messages of one."""
    names: dict[int, str] = {}
    for _, record in found:
        if isinstance(record, records.Queue):
            names[record.number] = record.qid
        elif isinstance(record, records.Push) and (queue := queues.get(names.get(record.number, ""))) is not None:
            raise _not_of_the_journal(queue)


def _not_of_the_journal(queue: FileQueue) -> StorageError:
    return StorageError(
        f"the journal has messages of queue {queue.qid!r}, whose storage is {queue.options.storage!r} now: say "
        'storage = "journal" in its .queue.toml, start and stop the server, and then change it'
    )
