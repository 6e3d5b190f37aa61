"""`spark.read.format("qs")`: peeks at a queue (mode peek), or reads a claim (mode consume).

Spark does not tell a source when a batch read ends, and may read rows again for the next action or a retried task. So a
read removes nothing:
- peek: the visible messages, which stay unchanged. Each action reads anew; messages that others took meanwhile are
  missing.
- consume: the consumer's oldest unacknowledged claim, or else a new one. It gives the same rows each time, hidden from
  others, until `qs_pipeline.acknowledge` is called. A job that was killed reads them again.
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
    """One batch read. BadOptionError when mode is consume and the option consumer is missing."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._consumer = consumer_of(options, "mode consume") if options.mode == "consume" else None

    def partitions(self) -> Sequence[InputPartition]:
        """Returns the partitions, in order of mid. Spark asks once for a DataFrame and all its actions.

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
        """Yields the rows of a partition, in a task."""
        if isinstance(partition, ClaimPartition):
            return read_claim(partition)
        if isinstance(partition, PeekPartition):
            return read_peeked(partition)
        return iter(())  # Spark's plan for no partitions
