"""Spark over queues: the data source `qs`, and the jobs archive, report, replay and route.

`register(spark)` adds the data source to a session; `acknowledge(...)` removes what a batch read in mode consume has
read. This package can be imported without Spark; using it without raises MissingExtraError.
"""

from typing import TYPE_CHECKING

from .claims import acknowledge
from .errors import INSTALL, MissingExtraError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["acknowledge", "register"]


def register(spark: "SparkSession") -> None:
    """Adds the data source `qs` to a session. Call it once for each session, before `format("qs")`.

    Raises MissingExtraError if pyspark or pyarrow is missing, or pyspark is older than 4.2, which has admission
    control.
    """
    try:
        from .source import QsDataSource  # noqa: PLC0415 - the package can be imported without Spark
    except ImportError as error:
        raise MissingExtraError(
            f"the data source qs needs pyspark 4.2 or later and pyarrow ({error}): {INSTALL}"
        ) from error
    spark.dataSource.register(QsDataSource)
