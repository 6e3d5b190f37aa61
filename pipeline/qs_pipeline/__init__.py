"""Spark over queues: the data source `qs`, and the jobs archive, report, replay and route.

`register(spark)` makes the data source known to a session; `acknowledge(...)` removes what a batch read in mode consume
has read. Importing this package needs no Spark; using it does, and says so.
"""

from typing import TYPE_CHECKING

from .claiming import acknowledge
from .errors import MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["acknowledge", "register"]


def register(spark: "SparkSession") -> None:
    """Makes the data source `qs` known to a session: once for each, before `format("qs")` is used.

    Raises MissingExtraError when pyspark or pyarrow is missing, or older than what a source with admission control
    needs (pyspark 4.2).
    """
    try:
        from .source import QsDataSource  # noqa: PLC0415 - the package can be imported without Spark
    except ImportError as error:
        raise MissingExtraError(
            f"the data source qs needs pyspark 4.2 or later and pyarrow ({error}): pip install 'qsbus[spark]'"
        ) from error
    spark.dataSource.register(QsDataSource)
