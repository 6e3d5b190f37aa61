"""Spark's active session: of a thread of the JVM, and of this process.

Whatever runs in a session makes it the active one, and a write looks up its data source there: after work in a session
of our own a source that the user has registered would not be found.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


@contextlib.contextmanager
def keeping_active(spark: SparkSession) -> Iterator[None]:
    """Whichever session is active before the block, in this thread, is active again after it."""
    sessions: Any = SparkSession._get_j_spark_session_class(spark._jvm)
    before, known = sessions.getActiveSession(), SparkSession._activeSession
    try:
        yield
    finally:
        SparkSession._activeSession = known
        with contextlib.suppress(Exception):  # the JVM has ended: the block has said so
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()
