"""What a store does at leisure, in any thread while it goes on: removes or recycles segments, makes the next one
ready."""

import logging

from ..disk import Disk
from .intake import Intake
from .log import Log

_logger = logging.getLogger(__name__)


class Upkeep:
    """One piece of work. `run` touches nothing but files and itself."""

    def __init__(self, log: Log, disk: Disk, *, spare: bool = True) -> None:
        """Takes over what there is to do. spare: whether the next segment may be made ready too; if not, everything is
        removed that can be."""
        self._log = log
        self._disk = disk
        self._spare = log.wants_spare if spare else None
        self._garbage = log.take_garbage(all_of_it=not spare or self._spare is not None)
        self._sync = log.background_sync() if self._garbage else None
        self._left: list[str] = []
        self._made = False
        self._recycled = False
        self.error: OSError | None = None
        """Why something could not be done; once it is settled, also why there is no spare segment, not even a small
        one."""
        self._spare_error: OSError | None = None
        self.intake: Intake | None = None
        """Work on the directory of a queue."""

    def __bool__(self) -> bool:
        return bool(self._garbage) or self._spare is not None or self.intake is not None

    def run(self) -> None:
        """Does it. Raises nothing."""
        try:
            if self._sync is not None:
                self._sync()  # else a power loss could take what was copied, and what it was copied from
        except OSError as error:
            self._left, self.error = self._garbage, error
            return
        for path in reversed(self._garbage):
            try:
                self._remove(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._left.append(path)
                self.error = error
        if self.intake is not None:
            self.intake.run()
        try:
            if self._spare is not None and not self._made:
                self._log.supply.make_spare(self._spare)
                self._made = True
        except OSError as error:
            self._spare_error = error

    def _remove(self, path: str) -> None:
        """Removes a segment, or makes it the spare one."""
        if self._spare is None or self._made:
            self._disk.unlink(path)
        else:
            self._made = self._recycled = self._log.supply.recycle(path, self._spare)

    def settle(self) -> None:
        """Tells the log what has been done. To be called where the log is used."""
        self._log.give_back_garbage(self._left)
        if self._spare is None:
            return
        if self._made:
            self._log.supply.has_made(self._spare, recycled=self._recycled)
        elif self._spare_error is not None:
            self._log.supply.could_not_make(self._spare, self._spare_error)
            self.error = self.error or self._log.supply.shortage
