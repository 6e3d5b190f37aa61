"""What the jobs know of a checkpoint of Spark: which batches it has begun and finished, and what it needs to survive a
loss of power. Spark writes its logs without syncing them.

Order of events in batch N: `offsets/N` is written, the source acknowledges what N-1 ended with, the batch runs,
`commits/N` is written. So what the batch does must not become durable before `offsets/N` is: `sync` comes first.
"""

import contextlib
import json
from typing import Any

from .files import Files

OFFSETS = "offsets"
COMMITS = "commits"

_COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'
"""An entry of the commit log as Spark writes it, of a query without a watermark."""


class Checkpoint:
    """The checkpoint in a directory of the files."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    @property
    def uri(self) -> str:
        """For Spark's `checkpointLocation`."""
        return self._files.uri(self._path)

    def last(self, log: str) -> int | None:
        """The last batch of a log (OFFSETS or COMMITS), None when it has none."""
        found = self._batches(log)
        return found[-1] if found else None

    def sync(self, batch: int) -> None:
        """To be called in a batch, before anything that it does is durable."""
        wanted = ["metadata", f"{OFFSETS}/{batch}", f"{COMMITS}/{batch - 1}", f"{COMMITS}/{batch}"]
        paths = [f"{self._path}/{each}" for each in wanted]
        present = [path for path in paths if self._files.exists(path)]
        checksums = (f"{above}/.{name}.crc" for above, _, name in (path.rpartition("/") for path in present))
        self._files.sync([*present, *(path for path in checksums if self._files.exists(path)), self._path])

    def mend(self) -> None:
        """Removes entries at the end of the logs that a loss of power has left empty or torn. Nothing was done with
        them: see `sync`."""
        for log in (OFFSETS, COMMITS):
            for batch in reversed(self._batches(log)):
                if self._whole(f"{self._path}/{log}/{batch}"):
                    break
                self._files.remove(f"{self._path}/{log}/{batch}")
                self._files.remove(f"{self._path}/{log}/.{batch}.crc")

    def must_have_commit(self, batch: int) -> None:
        """To be called after `mend`, with a batch that the sink's own record says is done. When it is the last that was
        begun, and Spark's note that it is finished is missing, the note is written.

        The next batch's claim acknowledges it, maybe before that note has reached the disk; after a loss of power Spark
        would read the batch again, and its claim is gone.
        """
        noted = self.last(COMMITS)
        if self.last(OFFSETS) == batch and (noted is None or noted < batch):
            self._files.remove(f"{self._path}/{COMMITS}/.{batch}.crc")
            self._files.replace(f"{self._path}/{COMMITS}/{batch}", _COMMIT)

    def end_offset(self, batch: int) -> dict[str, Any] | None:
        """Where the only source of the query ended in that batch, as it wrote it. None when that is not known."""
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
        """Whether an entry is as Spark writes it: a version, then lines of JSON (or `-` for a source without data)."""
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
