"""`df.writeStream.format("qs")`: each batch becomes visible once, as a whole, even if tasks and drivers are killed.

A batch is published under the query's id and the batch's number from the checkpoint; the server publishes none twice.
The next publish drops what failed tries have staged.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from .errors import PipelineError
from .options import Options
from .staging import Staged, payloads, publish, sink, stage, task


class QsStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of a task."""
        options, context = self._options, task()
        producer = f"{options.producer}.{_property(context, 'sql.streaming.queryId')}"
        batch = int(_property(context, "streaming.sql.batchId")) + 1  # the server counts from 1
        with sink(options) as server:
            bodies = payloads(iterator, options.queue)
            return stage(server, bodies, producer, batch, context.partitionId(), context.attemptNumber())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publishes the batch."""
        with sink(self._options) as server:
            publish(server, [message for message in messages if isinstance(message, Staged)])

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: what was staged is invisible, and dropped when the batch is published."""


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if not value:
        raise PipelineError(f"Spark does not tell {name} in a stream's task: is this pyspark 4.2 or later?")
    return value
