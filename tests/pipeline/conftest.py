"""One Spark session and one queue server for all tests of the pipeline that want them."""

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from support.servers.processes import FAST, ServerProcess, serving
from support.spark.queues import SHORT_LIVED_JVM, SparkQueue

from qs_client import QueueClient
from qs_pipeline import register
from qs_pipeline.errors import NoJavaError
from qs_pipeline.session import start_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test waits for Spark's start and its first job: seconds, and a minute beside other tests."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two tasks at a time, each of which is tried up to four times; started once, which takes some 7 s and 1 GB."""
    conf = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark") / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",  # so that a task has staged some rows before it fails
    }
    try:
        session = start_session("tests", master="local[2,4]", conf=conf)
    except NoJavaError as error:
        pytest.skip(f"NOTHING OF THE PIPELINE IS TESTED WITH SPARK: {error}")
    session.sparkContext.setLogLevel("OFF")  # tasks that are meant to fail would fill the output
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def queue_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all of them: each test has its own queues."""
    with serving(tmp_path_factory.mktemp("pipeline") / "root", *FAST) as process:
        yield process


@pytest.fixture
def client(queue_server: ServerProcess) -> Iterator[QueueClient]:
    """A client of that server."""
    with QueueClient(queue_server.host, queue_server.port, timeout=20) as client:
        yield client


@pytest.fixture
def queue(spark: SparkSession, client: QueueClient, request: pytest.FixtureRequest) -> SparkQueue:
    """A queue of the test's own on that server, and Spark's ways to it."""
    name = re.sub(r"\W+", "-", request.node.nodeid.rpartition("/")[2])
    client.new_queue(name)
    return SparkQueue(spark, client, name)
