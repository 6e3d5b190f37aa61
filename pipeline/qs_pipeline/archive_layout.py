"""The layout of an archive, and its state between runs.

    DIR/queue=<name>/date=<YYYY-MM-DD>/<archive id>-<queue hash>-<batch>-<number>.parquet    the table
    DIR/_qs/archive.json                 the archive's id, made once
    DIR/_qs/lock                         held while an archive runs
    DIR/_qs/queues/<queue hash>/queue.json, checkpoint/, batch.json, staging/
    DIR/_qs/replays/                     see `replay`

Readers of Parquet directories ignore names that begin with `_`.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from typing import Any

import pyarrow.parquet
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it

from .checkpoint import OFFSETS, Checkpoint
from .errors import CheckpointLostError, PipelineError, SchemaMismatchError, UsageError
from .files import Files
from .reading import ATTRIBUTE_NAMES

_MICROSECONDS_A_DAY = 86_400_000_000

STATE = "_qs"
LOCK = f"{STATE}/lock"
_ARCHIVE = f"{STATE}/archive.json"
_FORMAT = 1
_LONGEST = 255  # bytes of a name on the usual file systems
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"  # readers take a partition of this name for one without a value
_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
"""Characters that Hive and Spark escape in the names of partitions."""


def count_rows(spark: SparkSession, files: Files, paths: Iterable[str]) -> list[int]:
    """Returns the number of rows of each file, in order; of local files from their footers."""
    found = []
    for path in paths:
        local = files.local(path)
        if local is None:
            found.append(spark.read.parquet(glob_escaped(files.uri(path))).count())
        else:
            found.append(int(pyarrow.parquet.read_metadata(local).num_rows))
    return found


def glob_escaped(path: str) -> str:
    """Escapes a path for `spark.read`, which takes some characters for a pattern."""
    return "".join(f"\\{character}" if character in "{}[]*?\\" else character for character in path)


def date_of(moment: Column) -> Column:
    """Returns the date of a timestamp in UTC, whatever the session's time zone."""
    days = F.floor(F.unix_micros(moment) / F.lit(_MICROSECONDS_A_DAY)).cast("int")
    return F.date_add(F.lit("1970-01-01").cast("date"), days)


def short_hash(*parts: str) -> str:
    """Returns 16 hex digits of a hash, the same for the same texts."""
    # Joined by what no text has, so that ("a", "bc") and ("ab", "c") differ.
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def partition(queue: str) -> str:
    """Returns the directory of a queue's partition, named as Hive and Spark do. Raises UsageError if the name is too
    long, or is the name that stands for missing values."""
    if queue == _HIVE_NULL:
        raise UsageError(
            f"the queue {queue!r} cannot be archived: readers of Parquet would take its partition for missing values"
        )
    name = f"queue={_ESCAPED.sub(lambda found: f'%{ord(found[0]):02X}', queue)}"
    if len(name.encode()) > _LONGEST:
        raise UsageError(f"the name of the queue {queue!r} is too long for a directory name in an archive")
    return name


def archive_id(files: Files, *, create: bool) -> str:
    """Returns the id of the archive in a directory. create: make an id if there is none.

    Raises CheckpointLostError if the directory holds archived files without the state, and UsageError if there is no
    archive and create is False.
    """
    data = files.read(_ARCHIVE)
    if data is not None:
        return str(_object(files, _ARCHIVE, data)["id"])
    # A new id would be a new consumer, and what the old one has claimed would stay hidden.
    if any(name.startswith("queue=") for name in files.names("")):
        raise CheckpointLostError(
            f"{files.uri('')} holds archived messages, but their state ({STATE}) is gone: "
            f"restore {STATE} from a backup, or archive to another directory"
        )
    if not create:
        raise UsageError(f"{files.uri('')} is no archive: name the directory of `qs-pipeline archive --to`")
    made = secrets.token_hex(6)
    files.replace(_ARCHIVE, _json({"format": _FORMAT, "id": made}))
    return made


def _object(files: Files, path: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    # A later version may have changed what a field means: guessing could archive messages twice.
    if not isinstance(value, dict) or value.get("format", _FORMAT) != _FORMAT:
        raise PipelineError(f"{files.uri(path)} is damaged, or of a later version: restore it from a backup")
    return value


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


class QueueState:
    """The state of one queue in an archive, between runs.

    Ensures:
    1. A checkpoint that is older than the archive, or gone, is an error, and so are other columns: continuing would
       archive messages twice, or mix files of different columns in a partition.
    2. What `set_batch` stores is durable when it returns, and replaces what was there at once.

    Creating one reads and writes nothing. The consumer's name contains the archive's id, so that two archives of one
    queue share its messages but not their claims.
    """

    def __init__(self, files: Files, archive: str, queue: str) -> None:
        """archive: the archive's id."""
        self.queue = queue
        self.partition = partition(queue)
        self.consumer = f"archive-{archive}"
        hashed = short_hash(queue)
        self.prefix = f"{archive}-{hashed}"
        self._files = files
        self._path = f"{STATE}/queues/{hashed}"
        self.staging = f"{self._path}/staging"
        self.checkpoint = Checkpoint(files, f"{self._path}/checkpoint")

    def open(self, columns: dict[str, str]) -> None:
        """Checks the state before the first batch of a run. columns: the table's, name -> type.

        Raises CheckpointLostError if the checkpoint is older than the archive, and SchemaMismatchError if batches of
        this queue were written with other columns.
        """
        path = f"{self._path}/queue.json"
        data = self._files.read(path)
        done = self.batch()
        before = None if data is None else _object(self._files, path, data)["columns"]
        if done is not None and before is not None:
            # Files of an earlier version lack these columns, which are null in such rows.
            added = {name: kind for name, kind in columns.items() if name in ATTRIBUTE_NAMES}
            self._compare(added | before, columns)
        if before != columns:  # after a run that wrote nothing, any column may change
            self._files.replace(path, _json({"queue": self.queue, "consumer": self.consumer, "columns": columns}))
        self.checkpoint.mend()  # before its last entry is looked at: a torn one is none
        last = self.checkpoint.last(OFFSETS)
        if done is not None and (last is None or last < done["batch"]):
            raise CheckpointLostError(
                f"the checkpoint of the queue {self.queue!r} in {self.checkpoint.uri} is gone, or older than the files "
                f"of the archive: restore it from a backup, or archive to another directory; what it had claimed "
                f"stays claimed by {self.consumer} until it is released (qs claims {self.queue})"
            )

    def _compare(self, before: dict[str, str], columns: dict[str, str]) -> None:
        if before == columns:
            return
        first = next(name for name in [*columns, *before] if before.get(name) != columns.get(name))
        raise SchemaMismatchError(
            f"the archive of the queue {self.queue!r} was begun with other columns ({first}: "
            f"{before.get(first, 'none')} then, {columns.get(first, 'none')} now): give the same --xml-schema and "
            "--body, or archive to another directory"
        )

    def batch(self) -> dict[str, Any] | None:
        """Returns the last batch: its number `batch`, `rows`, `moves` (pairs of paths) and `done`; None before the
        first."""
        path = f"{self._path}/batch.json"
        data = self._files.read(path)
        return None if data is None else _object(self._files, path, data)

    def set_batch(self, batch: int, rows: int, moves: list[tuple[str, str]], *, done: bool) -> None:
        """Stores the last batch durably."""
        value = {"format": _FORMAT, "batch": batch, "rows": rows, "moves": moves, "done": done}
        self._files.replace(f"{self._path}/batch.json", _json(value))
