"""Spark's active session, of a thread of the JVM and of this process.

Work in a session makes it the active one. A write looks up its data source in the active session, so after work in a
session of our own it would not find a source that the user has registered.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


@contextlib.contextmanager
def restoring_active_session(spark: SparkSession) -> Iterator[None]:
    """Restores the active session of this thread after the block."""
    sessions: Any = SparkSession._get_j_spark_session_class(spark._jvm)
    before, known = sessions.getActiveSession(), SparkSession._activeSession
    try:
        yield
    finally:
        SparkSession._activeSession = known
        with contextlib.suppress(Exception):  # the JVM has ended; the block raises that
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()
