"""The job `route`: a queue through a SQL query to a queue, and what the query cannot handle to another, exactly once.

A batch is a claim, so it has the same messages when it is done again. Each target gets its part as the batch of a
producer, which the server publishes once. The claim is acknowledged after both.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own pages have it
from pyspark.storagelevel import StorageLevel

from . import register
from .archive_layout import short_hash
from .checkpoint import OFFSETS, Checkpoint
from .errors import BadQueryError, CheckpointLostError, PipelineError, UsageError
from .files import Files, file_errors, open_files
from .finishing import acknowledge_finished, require_queue
from .query import Query
from .running import Progress, Stop, Turn, begin, translated, wait

BATCH = 10_000
"""Messages of a batch, at most, where nothing else is said."""

_STATE = "route.json"


@dataclass(frozen=True, slots=True)
class Routed:
    """What a run did: messages that were read, batches, and of the messages those that went to the queue of errors."""

    messages: int
    batches: int
    broken: int


def default_state(
    server: str, queue: str, to: str, errors: str | None, environment: Mapping[str, str] = os.environ
) -> str:
    """Where a route keeps its state when nothing is said: the same for the same server and queues."""
    home = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "qs-pipeline", f"route-{short_hash(server, queue, to, errors or '')}")


def route(
    spark: SparkSession,
    queue: str,
    sql: str,
    to: str,
    *,
    state: str,
    errors: str | None = None,
    host: str = "127.0.0.1",
    port: int = 9876,
    every: float | None = None,
    batch: int = BATCH,
    stop: Stop | None = None,
    progress: Progress | None = None,
) -> Routed:
    """Pushes what the query `sql` makes of the messages of `queue` to the queue `to`.

    sql: over the view `messages`, giving a column `body` or `value` (see `query`); errors: the queue that gets the
    payload of messages whose body comes out NULL; state: a directory, or a URI that Hadoop knows, of this route alone;
    host, port: of the queue server; every: seconds from one batch to the next of a run that goes on until it is
    stopped, None for what is in the queue now; batch: messages, at most; stop, progress: as for `archive`.

    The query is applied to each batch by itself. Raises BadQueryError before anything is claimed, or when the query
    fails on a message; NoServerError, NoSuchQueueError, CheckpointLostError, DataLossError; UsageError when the state
    is in use.
    """
    register(spark)
    stop = stop or Stop()
    if errors == to:
        raise UsageError(f"{to!r} is the queue for the results and the one for errors: they have to be two")
    for name in (queue, to, errors):
        if name is not None:
            require_queue(host, port, name)
    query = Query(spark, sql, with_errors=errors is not None)
    files = open_files(spark, state)
    with file_errors(), files.lock("lock", "a route"):
        kept = _State(files, queue)
        work = _Work(kept, query, {"host": host, "port": str(port)}, to, errors)
        turn = Turn(queue, work, progress)
        with translated():
            reader = spark.readStream.format("qs").options(host=host, port=port, queue=queue, consumer=kept.name)
            rows = reader.option("maxMessagesPerTrigger", batch).load()
            running = begin(rows.writeStream, turn, kept.checkpoint, every=every)
        wait([running], stop)
        acknowledge_finished(kept.checkpoint, host, port, queue, kept.name)
    return Routed(turn.rows, turn.batches, work.broken)


class _State:
    """What a route knows of itself: its name, made once, and the last batch that was begun."""

    def __init__(self, files: Files, queue: str) -> None:
        self._files = files
        self.checkpoint = Checkpoint(files, "checkpoint")
        data = files.read(_STATE)
        if data is None:
            if self.checkpoint.last(OFFSETS) is not None:
                raise CheckpointLostError(f"{files.uri(_STATE)} is gone: put it back from a backup")
            self._known: dict[str, Any] = {"name": f"route-{secrets.token_hex(6)}", "queue": queue, "batch": None}
            self._write()
        else:
            self._known = self._parse(data)
        self.name = str(self._known["name"])
        if self._known["queue"] != queue:
            raise UsageError(
                f"{files.uri('')} is the state of a route from {self._known['queue']!r}: give another --state"
            )
        self.checkpoint.mend()
        self._compare()

    def begin(self, batch: int) -> None:
        """To be called before anything of a batch is pushed."""
        self.checkpoint.sync(batch)
        if self._known["batch"] != batch:
            self._known["batch"] = batch
            self._write()

    def _compare(self) -> None:
        begun, last = self._known["batch"], self.checkpoint.last(OFFSETS)
        if begun is not None and (last is None or last < begun):
            raise CheckpointLostError(
                f"the checkpoint {self.checkpoint.uri} is gone, or older than what was pushed: put it back from a "
                f"backup, or give another --state; what it had claimed stays claimed by {self.name} until it is "
                f"released (qs claims {self._known['queue']})"
            )

    def _write(self) -> None:
        self._files.replace(_STATE, json.dumps(self._known, ensure_ascii=False).encode() + b"\n")

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            known = json.loads(data)
            return {"name": known["name"], "queue": known["queue"], "batch": known["batch"]}
        except (ValueError, KeyError, TypeError):
            raise PipelineError(f"{self._files.uri(_STATE)} is damaged: put it back from a backup") from None


class _Work:
    """Does a batch. broken: how many messages went to the queue of errors."""

    def __init__(self, state: _State, query: Query, server: Mapping[str, str], to: str, errors: str | None) -> None:
        self._state = state
        self._query = query
        self._server = server
        self._to = to
        self._errors = errors
        self.broken = 0

    def __call__(self, rows: DataFrame, batch: int) -> int:
        self._state.begin(batch)
        if self._errors is None:
            self._push(self._query.apply(_as_text(rows)), self._to, batch)
        else:
            rows.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                self._split(rows, batch, self._errors)
            finally:
                rows.unpersist()
        offset = self._state.checkpoint.end_offset(batch) or {}
        return int(offset.get("count", 0))

    def _split(self, rows: DataFrame, batch: int, errors: str) -> None:
        result = self._query.apply(_as_text(rows)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            doomed = result.where("body IS NULL").select("mid").distinct()
            count = doomed.count()
            if count:
                broken = rows.join(doomed, "mid", "left_semi").orderBy("mid")
                if broken.count() != count:
                    raise BadQueryError("the query gives a NULL body with a mid that no message of the batch has")
                self._push(broken.select("body"), errors, batch)
            self._push(result.where("body IS NOT NULL").select("body"), self._to, batch)
        finally:
            result.unpersist()
        self.broken += count

    def _push(self, rows: DataFrame, queue: str, batch: int) -> None:
        writer = rows.write.format("qs").mode("append").options(**self._server)
        writer.option("queue", queue).option("txnAppId", self._state.name).option("txnVersion", batch).save()


def _as_text(rows: DataFrame) -> DataFrame:
    return rows.withColumn("body", F.col("body").cast("string"))
