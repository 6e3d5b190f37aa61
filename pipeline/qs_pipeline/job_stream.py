"""The stream of a queue's messages for the jobs, in claims of one consumer."""

from pyspark.sql import DataFrame, SparkSession


def claimed_rows(
    spark: SparkSession,
    server: tuple[str, int],
    queue: str,
    consumer: str,
    bounds: tuple[int, int],
    *,
    body: str = "binary",
    accept_loss: bool = False,
) -> DataFrame:
    """Returns the stream of a queue. server: its host and port; consumer: of this job alone; bounds: messages and bytes
    of a batch, at most; body: `binary` or `string`; accept_loss: continue though claimed messages are gone."""
    host, port = server
    messages, size = bounds
    reader = spark.readStream.format("qs").options(host=host, port=port, queue=queue, consumer=consumer, bodyType=body)
    reader = reader.options(maxMessagesPerTrigger=messages, maxBytesPerTrigger=size, failOnDataLoss=not accept_loss)
    return reader.load()
