"""`spark.read.format("qs")`: looks at a queue (mode peek), or reads a claim of it (mode consume).

A batch read has no end that the source is told of, so it must not remove anything: rows that are read can be asked for
again, by the next action or by a task that is tried again. Hence:
- peek: the visible messages, and nothing changes. Each action looks again, and what others took meanwhile is missing.
- consume: the consumer's claim that is not acknowledged yet, or else a new one. The same rows each time, hidden from
  others, until `qs_pipeline.acknowledge` is called. A job that is killed reads them again.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from .claiming import Claims
from .connecting import Server
from .options import Options, consumer_of
from .peeking import PeekPartition, peek_partitions, read_peeked
from .reading import ClaimPartition, claim_partitions, read_claim


class QsBatchReader(DataSourceReader):
    """One reading. BadOptionError when mode is consume, and the option consumer is missing."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._consumer = consumer_of(options, "mode consume") if options.mode == "consume" else None

    def partitions(self) -> Sequence[InputPartition]:
        """What is read, in order of mid: decided when a DataFrame is first used, and the same for all its actions.

        NoServerError, NoSuchQueueError; ClaimHeldError.
        """
        options = self._options
        with Server(options, options.at_first) as server:
            server.must_have_queue()
            if self._consumer is None:
                return peek_partitions(server, options)
            claims = Claims(server, self._consumer, options.fail_on_data_loss)
            return claim_partitions(options, claims.next(options.max_messages, options.max_bytes))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, in a task."""
        if isinstance(partition, ClaimPartition):
            return read_claim(partition)
        if isinstance(partition, PeekPartition):
            return read_peeked(partition)
        return iter(())  # what Spark plans where there are no partitions
