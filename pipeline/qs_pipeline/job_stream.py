"""The stream of a queue's messages as the jobs read it: in claims of one consumer."""

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
    """server: its host and port; consumer: whose claims they are, of this job alone; bounds: messages and bytes of a
    batch, at most; body: `binary` or `string`; accept_loss: goes on though claimed messages have gone."""
    host, port = server
    messages, size = bounds
    reader = spark.readStream.format("qs").options(host=host, port=port, queue=queue, consumer=consumer, bodyType=body)
    reader = reader.options(maxMessagesPerTrigger=messages, maxBytesPerTrigger=size, failOnDataLoss=not accept_loss)
    return reader.load()
