"""The stream of a queue's messages for the jobs, in claims of one consumer."""

from pyspark.sql import DataFrame, SparkSession

from .security import QueueServer


def claimed_rows(
    spark: SparkSession,
    server: QueueServer,
    queue: str,
    consumer: str,
    bounds: tuple[int, int],
    *,
    body: str = "binary",
    accept_loss: bool = False,
) -> DataFrame:
    """Returns the stream of a queue. consumer: of this job alone; bounds: messages and bytes
    of a batch, at most; body: `binary` or `string`; accept_loss: continue though claimed messages are gone."""
    messages, size = bounds
    reader = spark.readStream.format("qs").options(**server.options()).options(queue=queue, consumer=consumer)
    reader = reader.options(maxMessagesPerTrigger=messages, maxBytesPerTrigger=size)
    reader = reader.options(bodyType=body, failOnDataLoss=not accept_loss)
    return reader.load()
