"""The publisher's side of a queue's directory: messages are written, then made visible together."""

import errno
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from .attributes import Attributes
from .batch_files import note_of
from .capacity import require_room
from .directory import READ, Shared
from .engine import Draft, Durability, Options, OtherMessageError, QueueFullError, Stats, UnsupportedError
from .names import MAX_MID, message_name
from .recording import RecordingDirectory
from .settings import write_options
from .staging import Staged, Staging

_logger = logging.getLogger(__name__)
_OPEN = 500
"""Messages of a batch whose files are open together."""


class PublishingDirectory(RecordingDirectory):
    """Takes pushes, request by request, each all or nothing."""

    def __init__(self, path: str, qid: str, options: Options, shared: Shared) -> None:
        """As MessageDirectory; it is listed at once. OSError when it cannot be read."""
        super().__init__(path, qid, options, shared)
        self._staging = Staging(path, shared.disk, sync=shared.durability is Durability.ALWAYS)
        self.counts = Stats()
        self._pushers: dict[int, str] = {}  # whose pushes are staged, by first id, if there is a record
        try:
            self.rescan()
            self._free_orphans()
        except BaseException:
            self.unwatch()
            raise

    def _free_orphans(self) -> None:
        """Makes visible what a process held that has been killed."""
        if self._holders is None:
            return
        for mid in self._index.hidden.after(-1, len(self._index.hidden)):
            expiry = self._index.expiry(mid) or 0
            name, *ends = self._attributes.holder(self.name_path(mid, expiry), mid).split() or [""]
            if str(expiry) in ends and not self._holders.alive(name) and self.load(mid):
                self.rename(mid, expiry, 0)
                self._index.show(mid)
                self.arrived()
                self.note("released", mid, peer="")

    def is_staged(self, name: str) -> bool:
        return self._staging.holds(name)

    def close(self) -> list[int]:
        """Takes back what is not visible, and stops watching. The first ids of the requests that came to nothing."""
        requests = self._staging.take()
        for request in requests:
            self._discard(request)
        self.unwatch()
        self._activity.forget(self.qid)
        return [request[0].mid for request in requests if request]

    def push(self, drafts: Sequence[Draft]) -> list[int]:
        """Writes messages, all or none, invisible until `flush`. Their ids. UnsupportedError for one with a key."""
        if any(draft.key is not None for draft in drafts):
            raise UnsupportedError("the storage 'files' keeps no keys: 'key' is for queues of the storage 'journal'")
        self._must_have_room(len(drafts))
        request: list[Staged] = []
        try:
            for draft in drafts:
                request.append(self._stage(draft))  # noqa: PERF401 - what was written before an error is discarded
        except BaseException:
            self._discard(request)
            raise
        self._staging.add(request)
        if self._shared.lifecycle is not None and request:
            self._pushers[request[0].mid] = self._shared.lifecycle.peer
        return [staged.mid for staged in request]

    def _must_have_room(self, count: int) -> None:
        """QueueFullError when so many more messages are too many."""
        require_room(
            self.qid, self.options.capacity, lambda: len(self) + len(self._staging), count, self._watch.refresh
        )

    def _stage(self, draft: Draft) -> Staged:
        while True:
            now = self._clock()
            mid = max(self.number(now), self.last_mid + 1)
            if mid > MAX_MID:
                raise QueueFullError(f"queue {self.qid!r} has seen the message {self.last_mid}: no greater id is left")
            expiry = self.number(now + draft.delay) if draft.delay else 0
            try:
                staged = self._staging.write(mid, expiry, draft.payload)
            except FileExistsError:
                self.last_mid = mid
                continue
            # Our `.new` keeps others from taking the id from here on. Whoever had it before has been reported by now.
            self._watch.refresh()
            if self._index.expiry(mid) is None:
                break
            self._discard([staged])
        self.last_mid = max(mid, self.last_mid)
        if expiry:
            self._note_delay(staged)
        return staged

    def _note_delay(self, staged: Staged) -> None:
        path = self._staging.new_path(staged.mid)
        try:
            self._attributes.write(path, staged.mid, Attributes(delayed=staged.expiry), or_fail=True)
        except BaseException:
            self._discard([staged])
            raise

    def _discard(self, request: list[Staged]) -> None:
        self._staging.discard(request)
        for staged in request:
            if staged.expiry:
                self.forget_attributes(staged.mid)

    def copy_in(self, mid: int, path: str, size: int) -> bool:
        """Stores the message of another queue, whose file is at path. Invisible until `flush`. False: it is here.
        OtherMessageError; FileNotFoundError when that file or this directory is gone."""
        if self._holds(mid, path):
            return False
        self._must_be_new(mid)
        self._must_have_room(1)
        staged = self._staging.link(mid, path, size) if self._may_link() else self._staging.copy(mid, path)
        self._saw(mid)
        self._watch.refresh()  # as when it is pushed: whoever was faster has been reported by now
        try:
            held = self._holds(mid, path)
        except BaseException:
            self._discard([staged])
            raise
        if held:
            self._discard([staged])
            return False
        self.touch(mid)  # whoever wrote it need not have synced it
        self._staging.add([staged])
        return True

    def take_in(self, mid: int, payload: bytes) -> bool:
        """As `copy_in`, of a message that has no file."""
        if self._index.expiry(mid) is not None:
            if self._content_of(self.name_path(mid, self._index.expiry(mid) or 0)) != payload:
                raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
            return False
        self._must_be_new(mid)
        self._must_have_room(1)
        self._staging.add([self._staging.write(mid, 0, payload)])
        self._saw(mid)
        return True

    def _must_be_new(self, mid: int) -> None:
        """OtherMessageError when there was a message of that id, and somebody still has something to do with it."""

    def _holds(self, mid: int, path: str) -> bool:
        """Whether it is here already, that is: the same file, or the same bytes. OtherMessageError if neither."""
        while (expiry := self._index.expiry(mid)) is not None:
            if not self.load(mid):
                continue
            try:
                own = self._disk.lstat(self.name_path(mid, expiry))
                if not self._is_same(own, self.name_path(mid, expiry), path):
                    raise OtherMessageError(f"queue {self.qid!r} holds another message of the id {mid}")
            except FileNotFoundError:
                self._disk.lstat(path)  # or it is that one that is gone, which the caller has to know
                self.lost(mid, expiry)
                continue
            return True
        return False

    def _is_same(self, own: os.stat_result, own_path: str, path: str) -> bool:
        other = self._disk.lstat(path)
        if os.path.samestat(own, other):
            return True
        return own.st_size == other.st_size and self._content_of(own_path) == self._content_of(path)

    def _content_of(self, path: str) -> bytes:
        fd = self._disk.open(path, READ)
        try:
            return self.read(fd, self._disk.fstat(fd).st_size)
        finally:
            self._disk.close(fd)

    def _may_link(self) -> bool:
        """Whether files may be shared, which is settled when the first one comes to a queue that has nothing else."""
        if not self.options.links and not len(self) and not len(self._staging):
            options = replace(self.options, links=True)
            write_options(self.path, options, self._disk, sync=self._durability is Durability.ALWAYS)
            self.options = options
            self._attributes = self._store()
        return self.options.links

    def flush(self) -> dict[int, OSError]:
        """Makes every pushed message visible, request by request. Those that came to nothing, by first id, and why."""
        failures = self._staging.sync()
        for request in self._staging.take():
            try:
                self._publish(request)
            except OSError as error:
                self._discard(request)
                failures[request[0].mid] = error
        self._pushers.clear()
        return failures

    def publish_batch(
        self,
        payloads: list[bytes],
        producer: str,
        batch: int,
        begin: Callable[[int, int], None],
        done: Callable[[], None],
    ) -> None:
        """See Publisher."""
        self._must_have_room(len(payloads))
        request: list[Staged] = []
        try:
            for payload in payloads:
                request.append(self._stage(Draft(payload)))
                if len(request) % _OPEN == 0:
                    self._staging.close_files(request[-_OPEN:])
            self._staging.close_files(request[-_OPEN:])
            begin(request[0].mid, len(request))
            self._staging.note_batch(request, note_of(producer, batch))
            if self._durability is Durability.INTERVAL:
                self._disk.sync_file_system(self.path)
            done()
        except BaseException:
            self._discard(request)
            raise
        try:
            for staged in request:
                self._show(staged)
            self._staging.finish(request)
        except OSError:
            self._staging.leave(request)  # it is published; `finish_batch`, or the next start, shows the rest
            raise
        self.counts.pushed += len(request)
        self.touch()
        self._note_pushed(request)

    def undo_batch(self, first: int, payloads: list[bytes] | None, count: int) -> None:
        """See Publisher. Nothing of it was ever visible."""

    def finish_batch(self, first: int) -> None:
        """See Publisher."""
        if self._staging.is_noted(first):
            self.rescan()
        if self._staging.is_noted(first):
            raise BlockingIOError(errno.EAGAIN, f"another server is just at a batch of queue {self.qid!r}; ask again")

    def _publish(self, request: list[Staged]) -> None:
        done: list[Staged] = []
        try:
            for staged in request:
                self._show(staged)
                done.append(staged)
            self._staging.finish(request)
        except OSError:
            for staged in done:
                self._take_back(staged)
            raise
        self.counts.pushed += len(request)
        self.touch()
        self._note_pushed(request)

    def _note_pushed(self, request: list[Staged]) -> None:
        lifecycle = self._shared.lifecycle
        if lifecycle is not None and request:
            peer = self._pushers.get(request[0].mid)  # else it is made visible by whoever stored it
            for staged in request:
                lifecycle.note("pushed", self.qid, staged.mid, staged.size, 0, peer=peer)

    def _take_back(self, staged: Staged) -> None:
        try:
            self.unlink(staged.mid, staged.expiry)
        except OSError as error:
            _logger.error("message %s of a list that failed stays in %s: %s", staged.mid, self.path, error)

    def _show(self, staged: Staged) -> None:
        mid, expiry = staged.mid, staged.expiry
        self._disk.rename(self._staging.new_path(mid), self.name_path(mid, expiry))
        self._watch.expect_arrival(self._watched, message_name(mid, expiry))
        self._index.add(mid, expiry, staged.size)
        if expiry:
            self.hidden(expiry)
        else:
            self.arrived()
