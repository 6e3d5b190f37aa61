"""A Spark program that uses a queue server with TLS and a token, and prints all that Spark says of it.

Usage: python -m support.spark.secrets FOLDER PORT CA TOKEN_FILE WRONG_TOKEN_FILE. The variable QS_TOKEN has the token
of reads without a tokenFile. The event log and the checkpoint are in FOLDER.
"""

import contextlib
import json
import sys
import traceback
import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession

from qs_pipeline import acknowledge, register
from qs_pipeline.security import Security
from qs_pipeline.session import start_session
from support.spark.queues import SHORT_LIVED_JVM


def main() -> None:
    folder, port, ca, token_file, wrong = sys.argv[1:]
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"{folder}/events",
        "spark.eventLog.compress": "false",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    Path(folder, "events").mkdir()
    spark = start_session("secrets", master="local[2]", conf=conf)
    spark.sparkContext.setLogLevel("DEBUG")
    register(spark)
    server = {"host": "localhost", "port": port, "ca": ca, "queue": "orders"}
    secure = {**server, "tokenFile": token_file}
    _use(spark, folder, server, secure)
    acknowledge(queue="orders", consumer="c", host="localhost", port=int(port), security=Security(ca=ca))
    for given in ({**server, "tokenFile": wrong}, {**server, "ca": wrong}, {**secure, "queue": "others"}):
        with contextlib.suppress(SystemExit):
            try:
                spark.read.format("qs").options(**given).load().show()
            except Exception:
                print("failed as it should", flush=True)
                traceback.print_exc()
    _tell_ui(spark)
    _tell_processes()
    spark.stop()


def _use(spark: SparkSession, folder: str, server: dict[str, str], secure: dict[str, str]) -> None:
    frame = spark.read.format("qs").options(**secure).load()
    frame.explain(True)
    print(repr(frame), frame.count(), spark.read.format("qs").options(**server).load().count())
    frame.select("body").write.format("qs").mode("append").options(**secure).save()
    stream = spark.readStream.format("qs").options(**secure, consumer="c").load()
    query = stream.select("body").writeStream.format("qs").options(**secure, checkpointLocation=f"{folder}/checkpoint")
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    running.explain(True)
    print(running.lastProgress)


def _tell_ui(spark: SparkSession) -> None:
    """Prints what the UI shows of the settings and of the queries."""
    base = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
    host = base.replace(base.split("/")[2].rpartition(":")[0], "127.0.0.1")
    for page in ("environment", "sql?details=true&planDescription=true", "jobs", "stages"):
        with urllib.request.urlopen(f"{host}/{page}", timeout=20) as answer:
            print("UI", page, json.loads(answer.read()))


def _tell_processes() -> None:
    """Prints the command lines of all processes."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            print("process", each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))


if __name__ == "__main__":
    main()
