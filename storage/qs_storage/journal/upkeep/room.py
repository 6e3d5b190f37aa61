"""Secures room for the batches of a log: begins segments, and on a full disk compacts.

This module alone decides which requests may use the last files on a full disk. See `log.pool` for the files that are
kept, and their purpose.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import perf_counter

from ...disk import has_no_room
from ...engine import LEFT, NoRoomError
from ..log import records
from ..log.frames import BLOCK, padded
from ..log.log import Log, Transaction
from ..log.pool import Pool, PoolFile
from ..queues.queue import LogQueue
from ..queues.store import PayloadStore
from .compaction import Compaction

_logger = logging.getLogger(__name__)
_AT_ONCE = 8 << 20
"""Bytes of payload that are copied at a time, unless too little is left to copy them later: some 50 ms."""
_HUGE = 1 << 30
"""Bytes of a request from which on its segment gets no more room, as it must have less than 2^32 bytes."""
_PART = 8
"""A batch begins in a new segment if less than such a part of the old one is left, and less than it asks for."""


class Room:
    """The room of one log. Call it between batches, when the transaction has nothing but notes.

    Ensures:
    1. Pushes leave a whole pool: two files as large as the largest segment. If the disk is too full for another file,
       pushes are refused until compaction has made the pool whole again.
    2. Deletes, releases and the like get room even then, first from the pool. Before the pool is used up, the oldest
       segments are compacted, each of which frees at least as much as its copies take. Compaction is so fast that it
       goes once through the whole log while deletes and releases use a quarter of a segment. After that, all the room
       that they have used is free again, because their records are not needed any more.
    3. A start has as much room as the server before had left, also after a kill: without a file for a segment, a start
       goes on in the last segment. So a server that is killed again and again on a full disk does not use up the pool.

    Assumes that nobody else takes files from the pool or begins segments. Never changes what a queue holds."""

    def __init__(self, store: PayloadStore, pool: Pool, compaction: Compaction, queues: Mapping[str, LogQueue]) -> None:
        """queues: all queues of the log, by name."""
        self._store = store
        self._log: Log = store.log
        self._transaction: Transaction = store.transaction
        self._pool = pool
        self._compaction = compaction
        self._queues = queues
        self._needed = 0  # bytes that compaction appends next
        self._free: int | None = None  # bytes that were left when room was secured last: see `free`
        self._owed = 0  # bytes of payload that have to be copied for what was taken since

    @property
    def is_short(self) -> bool:
        """True if the pool is not whole, and the disk was too full for a wanted file."""
        return self._pool.is_tight and not self._pool.is_whole(self._log.segments.largest)

    def secure(self, size: int = 0) -> None:
        """Secures room for `size` bytes of records, and for the requests that were refused since it was called last. On
        a full disk, pushes get none. Does nothing for a log that has failed, as that refuses every record; a receive
        needs none. OSError."""
        log, transaction = self._log, self._transaction
        if log.failed is not None:
            return
        size, push = max(size, transaction.asked), transaction.asked_by_push
        # The usual case: there is room, and nobody was refused.
        if size <= transaction.left and not push and self._pool.is_whole(log.segments.largest):
            transaction.forget_asked()
            return  # and notes wait
        if transaction.pending:
            self.commit()
        transaction.forget_asked()
        transaction.allow(max(size, push))
        if not self._pool.is_whole(log.segments.largest):
            self._reclaim(size, push=push > 0)
            transaction.allow(max(size, push))
        if push and push > transaction.left_to_pushes:
            self._begin(push, push=True)
            transaction.allow(max(size, push))
            if push > transaction.left_to_pushes and self._give_up_dead():
                self._begin(push, push=True)
                transaction.allow(max(size, push))
        if size > transaction.left:
            self._begin(size, push=False)
            transaction.allow(max(size, push))
        self._free = self.free

    @property
    def free(self) -> int:
        """The bytes that batches may still use: those of the last segment, and of the pool."""
        return self._log.room + self._pool.bytes

    def usual(self, size: int) -> int:
        """Returns the room with which a batch should begin: `size` bytes, or less in a small segment."""
        return size if self._log.writer is None else min(size, self._log.writer.header.size // _PART)

    def commit(self) -> None:
        """Commits the records and notes of the transaction. OSError: they are taken back."""
        try:
            self.forget(self._transaction.commit(notes=True))
        except OSError:
            self.restart()
            raise

    def forget(self, gone: Iterable[int]) -> None:
        """Forgets segments that a commit has given up."""
        if gone:
            self._store.forget(gone)
            oldest = self._log.segments.oldest or 0
            for queue in self._queues.values():
                queue.batches.forget_publications(oldest - 1)

    # -- segments -------------------------------------------------------------------------------------------------

    def _begin(self, size: int, *, push: bool) -> None:
        """Begins a segment with room for `size` bytes of records, if there is a file for it. push: True to begin one
        only if the pool stays whole. OSError, except for a full disk."""
        log, pool, transaction = self._log, self._pool, self._transaction
        # On a full disk there is none for any batch: so the records of many queues are packed when there is one.
        first = len(self._queues) * records.QUEUE_HEAD + len("".join(self._queues).encode())
        needed = log.segment_size(first, size)
        file = pool.take(needed, max(log.segments.largest, needed))
        if file is None:
            # For a large request, with room for the batch after it: else that begins a segment, which the next such
            # request leaves empty.
            is_large = LEFT < size < _HUGE
            file = self._make(needed, padded(min(LEFT, needed // (_PART - 1))) if is_large else 0)
        if file is None and self._reopen(size):
            # Before the pool is used: the last file of the pool may have become this segment just before a kill, to
            # get the copies of the oldest one.
            return
        if file is None and not push:
            file = pool.take(needed, None)
        if file is not None:
            try:
                # Each segment begins with the names of all queues: a record names its queue by a number only.
                log.begin_segment(file, [queue.record() for queue in self._queues.values()])
            except OSError as error:
                if log.failed is None:
                    pool.add(file._replace(recycled=True))  # it may have a frame
                if not has_no_room(error):
                    raise
            else:
                # Only if it was begun: a refused one says nothing about how large the log is.
                pool.began(file.size)
        transaction.hold_back_pushes(not pool.is_whole(log.segments.largest))

    def _reopen(self, size: int) -> bool:
        """Goes on in the segment that was the last one before the start, if that segment has room for `size` bytes of
        records."""
        log = self._log
        if log.writer is not None:
            return False
        if size == LEFT and log.number:
            # What a batch begins with is not more in a small segment, see `usual`: else each kill would take a file.
            size = min(size, log.segments.sizes[log.number] // _PART)
        unnamed = [queue.record() for queue in self._queues.values() if queue.number > self._store.last_named]
        if not log.can_reopen(sum(records.HEAD.size + len(body) for body in unnamed), size):
            return False
        try:
            log.reopen_segment(unnamed)
        except OSError as error:
            # All frames that were found are durable, and a new segment says with which frame it begins: so a file of
            # the pool does as well.
            _logger.warning("%s: the last segment cannot be gone on in: %s", log.directory, error)
            return False
        self._transaction.hold_back_pushes(not self._pool.is_whole(log.segments.largest))
        return True

    def _make(self, needed: int, more: int) -> PoolFile | None:
        """Makes a file of at least `needed` bytes and `more` for a segment, and then the files that the pool lacks.
        Returns None if the disk has no space for both. OSError, except for a full disk."""
        pool, largest = self._pool, self._log.segments.largest
        try:
            size = pool.size_for(needed + more, largest)
            pool.add(pool.make(size))
            # As many as the pool needs to stay whole without this one.
            while (file := pool.take(needed, max(largest, needed))) is None:
                pool.add(pool.make(max(largest, size)))
        except OSError as error:
            if not has_no_room(error):
                raise
            pool.note_disk(is_full=True)
            return None
        pool.note_disk(is_full=False)
        return file

    # -- compaction -----------------------------------------------------------------------------------------------

    def compact(self, until: float, most: int) -> None:
        """Copies a slice of the oldest segment, or gives it up, as changes of the transaction. until: the end of the
        slice, by `perf_counter`; most: the most bytes of payload. OSError if the copies have no room."""
        # By bytes too, and not by time alone: what is copied is written with the commit, which all of the batch wait
        # for.
        enough = self._compaction.total + most
        self._ensure(self._needed)
        while (needed := self._compaction.step()) is not None:
            self._needed = needed
            self._ensure(needed)
            if perf_counter() >= until or self._compaction.total >= enough:
                return
        self._needed = 0

    def restart(self) -> None:
        """Makes compaction begin its segment anew after the copies were taken back."""
        self._compaction.restart()
        self._needed = 0

    def _ensure(self, size: int) -> None:
        """Makes room for copies of `size` bytes in the transaction: commits it, and begins a segment. OSError."""
        transaction = self._transaction
        if size <= transaction.left or (size == 0 and self._log.writer is not None and self._log.room >= BLOCK):
            return  # a block is kept for a frame that only gives up a segment: nobody begins a segment for that
        self.commit()
        transaction.allow(size)
        if size > transaction.left:
            self._begin(size, push=False)
            transaction.allow(size)
        if size > transaction.left:
            raise NoRoomError(size) if self._log.failed is None else self._log.failure()

    def _reclaim(self, size: int, *, push: bool) -> None:
        """Makes the pool whole again if upkeep does not: compacts the oldest segments while little room is left, or if
        a push waits and that gains a segment. size: the bytes that are about to be used, beside those that were used
        since room was secured last."""
        log, pool, compaction, live = self._log, self._pool, self._compaction, self._store.usage.total
        largest, free = log.segments.largest, self.free
        # Half a segment more than what compaction needs to copy one: from here on it has to keep pace with requests.
        is_little = free < largest + largest // 2 or pool.bytes < largest
        gains = push and log.segments.size - log.room - live > largest + live // 8
        most = 0
        if is_little:
            # A start does not know what was taken before: it copies for all that is not there.
            before = 2 * largest if self._free is None else self._free
            self._owed += (size + max(before - free, 0)) * (1 + live * 4 // max(largest, 1))
            most = min(self._owed, _AT_ONCE)
        if gains:
            most = _AT_ONCE
        elif not is_little:
            return
        if log.segments.has_garbage:  # a commit has just left it
            with suppress(OSError):  # upkeep tries again, and says why
                self.recycle()
        # Counted in bytes of payload: what requests have taken of the room has to be made good by as much copying.
        began = compaction.total
        last = log.number
        while (oldest := compaction.oldest) is not None and oldest <= last:
            if pool.bytes >= largest and (compaction.total - began >= most or pool.is_whole(largest)):
                break
            if not self._give_up(oldest):
                return
        self._owed = 0 if pool.is_whole(largest) else max(self._owed - (compaction.total - began), 0)
        self._transaction.hold_back_pushes(not pool.is_whole(log.segments.largest))

    def _give_up_dead(self) -> bool:
        """Gives up the oldest segments without live bytes that upkeep has not given up yet. Returns False if there are
        none."""
        found = False
        while (oldest := self._compaction.oldest) is not None and not self._store.usage.live.get(oldest):
            if not self._give_up(oldest):
                break
            found = True
        return found

    def _give_up(self, oldest: int) -> bool:
        """Compacts the oldest segment, and adds its file to the pool. Returns False if its copies have no room.
        OSError, except for a full disk."""
        try:
            while self._compaction.oldest == oldest:
                self.compact(float("inf"), most=1 << 62)
                self.commit()
        except OSError as error:
            self.restart()
            self._transaction.take_back()
            if not has_no_room(error):
                raise
            return False
        self.recycle()
        return True

    def recycle(self) -> None:
        """Adds the files of obsolete segments to the pool at once. OSError, except for a full disk."""
        log, pool = self._log, self._pool
        garbage = log.segments.take_garbage()
        try:
            if garbage and (sync := log.background_sync()) is not None:
                sync()  # the copies have to be durable first
            while garbage:
                with suppress(FileNotFoundError):
                    file = pool.recycle(garbage[0])
                    if file is not None:
                        pool.add(file)
                garbage.pop(0)
        except OSError as error:
            log.segments.give_back_garbage(garbage)
            if not has_no_room(error):
                raise
