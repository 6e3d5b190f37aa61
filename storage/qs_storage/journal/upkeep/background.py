"""Background work on the log's files, for any thread: removes or recycles segments, makes the spare and the reserve."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from ...disk import Disk
from ..log.segment_list import SegmentList
from ..log.supply import Supply
from .intake import Intake

_logger = logging.getLogger(__name__)


class Checkpoint(Protocol):
    """A checkpoint that is written, but not durable yet."""

    def publish(self) -> None: ...


class SegmentFiles(Protocol):
    """The part of a log that upkeep uses."""

    supply: Supply
    segments: SegmentList

    @property
    def wants_spare(self) -> int | None: ...
    @property
    def wants_reserve(self) -> int | None: ...
    def background_sync(self) -> Callable[[], None] | None: ...


class Upkeep:
    """One piece of background work. `run` uses only files and the object itself."""

    def __init__(self, log: SegmentFiles, disk: Disk, *, spare: bool = True) -> None:
        """Takes over the log's pending work. spare: True to make the spare and the reserve too, False to remove all
        obsolete segments."""
        self._log = log
        self._disk = disk
        self._spare = log.wants_spare if spare else None
        self._reserve = log.wants_reserve if spare else None
        self._garbage = log.segments.take_garbage(all_of_it=not spare or self._spare is not None)
        self._sync = log.background_sync() if self._garbage else None
        self._running = threading.Lock()
        self._done = False
        self.is_settled = False
        self._not_removed: list[str] = []
        self._spare_made = False
        self._recycled = False
        self.error: OSError | None = None
        """The error of work that failed; after `settle`, also the one for which not even a small spare can be made."""
        self._spare_error: OSError | None = None
        self.intake: Intake | None = None
        """Work on the directory of a queue, None if there is none."""
        self.checkpoint: Checkpoint | None = None
        """A checkpoint to publish, None if there is none."""

    def __bool__(self) -> bool:
        has_files = self._garbage or self._spare is not None or self._reserve is not None
        return bool(has_files or self.intake is not None or self.checkpoint is not None)

    def run(self) -> None:
        """Does the work once; waits if another thread is doing it. Raises nothing."""
        with self._running:
            if not self._done:
                self._done = True
                self._run()

    def _run(self) -> None:
        if self._sync_log():
            self._remove_garbage()
            if self.intake is not None:
                self.intake.run()
            self._make_reserve()
            self._make_spare()
        self._publish_checkpoint()

    def _sync_log(self) -> bool:
        """Makes the copies of obsolete segments' messages durable before these are removed. Returns False if that
        failed."""
        try:
            if self._sync is not None:
                self._sync()
        except OSError as error:
            self._not_removed, self.error = self._garbage, error
            return False
        return True

    def _remove_garbage(self) -> None:
        for path in reversed(self._garbage):
            try:
                self._remove(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._not_removed.append(path)
                self.error = error

    def _make_reserve(self) -> None:
        try:
            if self._reserve is not None:
                self._log.supply.make_reserve(self._reserve)
        except OSError as error:
            self._reserve, self.error = None, error

    def _make_spare(self) -> None:
        try:
            if self._spare is not None and not self._spare_made:
                self._log.supply.make_spare(self._spare)
                self._spare_made = True
        except OSError as error:
            self._spare_error = error

    def _publish_checkpoint(self) -> None:
        checkpoint, self.checkpoint = self.checkpoint, None
        try:
            if checkpoint is not None:
                checkpoint.publish()
        except OSError as error:
            self.error = error

    def _remove(self, path: str) -> None:
        if self._spare is None or self._spare_made:
            self._disk.unlink(path)
        else:
            self._spare_made = self._recycled = self._log.supply.recycle(path, self._spare)

    def settle(self) -> None:
        """Reports the results to the log, once. Call it in the log's thread."""
        if self.is_settled:
            return
        self.is_settled = True
        self._log.segments.give_back_garbage(self._not_removed)
        try:
            if self._reserve is not None:
                self._log.supply.take_reserve(self._reserve)
        except OSError as error:
            self.error = error
        if self._spare is None:
            return
        if self._spare_made:
            self._log.supply.has_made(self._spare, recycled=self._recycled)
        elif self._spare_error is not None:
            self._log.supply.could_not_make(self._spare, self._spare_error)
            self.error = self.error or self._log.supply.shortage
