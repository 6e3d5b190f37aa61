"""`df.write.format("qs")`: all rows become visible at once, or none.

With the options txnAppId and txnVersion (named as in Delta) a repeated write has no further effect: the server
publishes no version at or below the application's last one. Without them each write is separate.
"""

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from .options import Options
from .staging import Staged, discard, payloads, publish, sink, stage, task


class QsBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: Options) -> None:
        self._options = options
        self._own = options.txn_app is None
        self._producer = options.txn_app or f"{options.producer}.{uuid.uuid4().hex}"
        self._batch = (options.txn_version or 0) + 1  # the server counts from 1

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of a task."""
        context = task()
        with sink(self._options) as server:
            bodies = payloads(iterator, self._options.queue)
            return stage(server, bodies, self._producer, self._batch, context.partitionId(), context.attemptNumber())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publishes what the tasks have staged."""
        with sink(self._options) as server:
            publish(server, [message for message in messages if isinstance(message, Staged)])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drops what was staged, if no other write uses the same producer; otherwise the next write drops it."""
        if self._own:
            with sink(self._options) as server:
                discard(server, self._producer, self._batch)
