"""`spark.readStream.format("qs")`: each batch is a claim, and the claim is the offset."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from .claims import INITIAL, Claims, Offset
from .connection import QueueConnection
from .options import Options, consumer_of
from .pipelining import greatest_mid
from .reading import ClaimPartition, claim_partitions, read_claim


class QsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream of a queue's messages.

    Ensures, with Spark's checkpoint and a sink that can repeat a batch, exactly-once:
    1. A batch's claim is in the offset log before it is read, and reads the same until it is acknowledged.
    2. It is acknowledged only when the batch is in the commit log.
    3. A claim that was made but not logged, because the driver was killed, is returned to the next driver, which asks
       for the same number. So nothing is blocked or taken twice.

    Assumes that Spark asks for offsets in one process, the driver's. Spark creates readers in several: creating one
    must do nothing, and a task uses only its partition.
    """

    def __init__(self, options: Options) -> None:
        """Checks the options. Raises BadOptionError if the option consumer is missing."""
        self._options = options
        self._consumer = consumer_of(options, "a stream")
        self._connection: QueueConnection | None = (
            None  # connected only in the driver, in the process that asks for offsets
        )
        self._cached_claims: Claims | None = None
        self._upto: int | None = None
        self._claimed = INITIAL  # the last one of this process: the server need not be asked whether it is there
        self._acknowledged = INITIAL

    # -- offsets, in the driver ---------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Returns the offset before the first claim. Spark asks for it without a checkpoint, so a wrong address is
        reported here."""
        if self._claimed != INITIAL:  # Spark asks again when it plans the first batch
            return INITIAL.to_json()
        with QueueConnection(self._options, self._options.at_first) as connection:
            connection.must_have_queue()
            Claims(connection, self._consumer).warn_of_others()
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Returns the option maxMessagesPerTrigger, or else maxBytesPerTrigger. If both are given, both apply."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes the current greatest mid: later messages belong to the next run."""
        connection = self._connected()
        connection.must_have_queue()
        self._upto = connection.ask(lambda client: greatest_mid(client, connection.queue))

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acknowledges the claim in start, which is now in the commit log, and returns the next claim, or start if no
        message is visible. At most 100,000 messages, whatever the limit. Does not wait for messages."""
        done = Offset.from_json(start)
        most, size = self._limits(limit)
        made = self._claims().after(done, most, size, self._upto, acknowledged=done == self._acknowledged)
        self._acknowledged = done
        if made.count == 0:  # an offset that has not changed tells Spark that there is no batch
            return dict(start)
        self._claimed = made
        return made.to_json()

    def commit(self, end: Mapping[str, Any]) -> None:
        """Acknowledges a claim in the commit log. Spark may omit the call; latestOffset makes up for it."""
        done = Offset.from_json(end)
        if done.seq and done != self._acknowledged:
            self._claims().acknowledge(done)
            self._acknowledged = done

    def stop(self) -> None:
        """Closes the connection. Claims stay, because the query may start again."""
        if self._connection is not None:
            self._connection.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Returns the slices of the claim in end. After a restart, first checks that the server still has this
        claim."""
        offset = Offset.from_json(end)
        if start == end or (offset != self._claimed and not self._claims().is_there(offset)):
            return []
        return claim_partitions(self._options, offset)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition, in a task."""
        return read_claim(cast(ClaimPartition, partition))

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows, self._options.max_bytes
        if isinstance(limit, ReadMaxBytes):
            return None, limit.max_bytes
        return None, None

    def _connected(self) -> QueueConnection:
        if self._connection is None:
            self._connection = QueueConnection(self._options, self._options.later)
        return self._connection

    def _claims(self) -> Claims:
        if self._cached_claims is None:
            self._cached_claims = Claims(self._connected(), self._consumer, self._options.fail_on_data_loss)
        return self._cached_claims
