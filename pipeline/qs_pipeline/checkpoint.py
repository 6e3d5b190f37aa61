"""Reads and repairs a checkpoint of Spark: which batches have begun and finished. Also syncs it, as Spark does not."""

import contextlib
import json
from typing import Any

from .files import Files

OFFSETS = "offsets"
COMMITS = "commits"

_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
"""An entry of the commit log as Spark writes it for a query without a watermark."""


class Checkpoint:
    """The checkpoint of one streaming query.

    Ensures, after `sync(N)`, that a power loss cannot undo the begin of batch N: Spark renames its files without a
    sync. After `mend`, the last entry of each log is whole.

    Assumes the order of events in batch N: `offsets/N` is written, the source acknowledges the end of N-1, the batch
    runs, `commits/N` is written. So nothing that the batch does may become durable before `offsets/N`: call `sync`
    first.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    @property
    def uri(self) -> str:
        """Returns the URI for Spark's `checkpointLocation`."""
        return self._files.uri(self._path)

    def last(self, log: str) -> int | None:
        """Returns the last batch in a log (OFFSETS or COMMITS), None when it is empty."""
        found = self._batches(log)
        return found[-1] if found else None

    def sync(self, batch: int) -> None:
        """Syncs the entries of a batch. Call it before any effect of the batch is durable."""
        wanted = ["metadata", f"{OFFSETS}/{batch}", f"{COMMITS}/{batch - 1}", f"{COMMITS}/{batch}"]
        paths = [f"{self._path}/{each}" for each in wanted]
        present = [path for path in paths if self._files.exists(path)]
        checksums = (f"{above}/.{name}.crc" for above, _, name in (path.rpartition("/") for path in present))
        self._files.sync([*present, *(path for path in checksums if self._files.exists(path)), self._path])

    def mend(self) -> None:
        """Removes entries at the end of the logs that a power loss has left empty or torn. No batch has acted on such
        an entry, see `sync`."""
        for log in (OFFSETS, COMMITS):
            for batch in reversed(self._batches(log)):  # only those at the end can be torn: earlier ones were synced
                if self._whole(f"{self._path}/{log}/{batch}"):
                    break
                self._files.remove(f"{self._path}/{log}/{batch}")
                self._files.remove(f"{self._path}/{log}/.{batch}.crc")

    def must_have_commit(self, batch: int) -> None:
        """Writes Spark's missing commit of a batch that the sink knows to be done, if it is the last that was begun.
        Call it after `mend`.

        The next batch's claim acknowledges this one, maybe before Spark's commit is on the disk. After a power loss,
        Spark would then read the batch again, whose claim is gone.
        """
        noted = self.last(COMMITS)
        if self.last(OFFSETS) == batch and (noted is None or noted < batch):
            # A checksum that Spark has written for another content would make it refuse this one.
            self._files.remove(f"{self._path}/{COMMITS}/.{batch}.crc")
            self._files.replace(f"{self._path}/{COMMITS}/{batch}", _COMMIT)

    def end_offset(self, batch: int) -> dict[str, Any] | None:
        """Returns the end offset of the query's only source in that batch, None for an unknown one."""
        data = self._files.read(f"{self._path}/{OFFSETS}/{batch}")
        if data is None:
            return None
        with contextlib.suppress(ValueError):
            offset = json.loads(data.decode().splitlines()[-1])
            if isinstance(offset, dict):
                return offset
        return None

    def _batches(self, log: str) -> list[int]:
        return sorted(int(name) for name in self._files.names(f"{self._path}/{log}") if name.isdigit())

    def _whole(self, path: str) -> bool:
        """Tells whether an entry is complete: a version, then lines of JSON (or `-` for a source without data)."""
        data = self._files.read(path) or b""
        version, *lines = data.decode(errors="replace").splitlines() or [""]
        if not version.startswith("v") or not lines:
            return False
        try:
            for line in lines:
                if line != "-":
                    json.loads(line)
        except ValueError:
            return False
        return True
