"""The Spark session of the jobs: the active one, or a new quiet one.

Under spark-submit, the master, Java and log of the submission stay unchanged. Under plain Python a JVM is started as a
child that ends with this process.
"""

import contextlib
import locale
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from socketserver import BaseServer
from typing import IO, Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from .errors import PipelineError
from .interpreters import find_java, worker_python

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python program that it starts."""

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",  # times of a table and of --from are the same on each machine
    "spark.ui.enabled": "false",  # opens no port
    "spark.ui.showConsoleProgress": "false",
}

_LOCAL = {
    "spark.driver.host": "127.0.0.1",  # the default, this machine's name, may not resolve
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",  # the default suits a cluster
    # The default is a directory for tables, unused here, in the current directory.
    "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), f"qs-pipeline-{os.getuid()}"),
}

_FEW_BYTES = 4096  # of the log of a JVM that did not start: its reason is at the beginning
_SHORT = 200  # characters of a reason that fits into the one line of an error

_NO_REASON = ("Error: Could not create the Java Virtual Machine", "Error: A fatal exception has occurred")
"""The end of the message of every JVM that does not start; the reason comes before it."""


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


def start_session(
    app_name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> SparkSession:
    """Returns the active session, or that of spark-submit, or a new one.

    app_name: shown by Spark; master: in Spark's form (`local[4]`, `spark://…`), None for the one of spark-submit or
    spark-defaults.conf, or else all cores of this machine; conf: settings of Spark, which override the jobs' defaults;
    log: gets the stderr of a new JVM, None for this process's stderr. An active session is returned unchanged.

    Raises NoJavaError without a Java for a new JVM, PipelineError when the JVM does not start.
    """
    active = SparkSession.getActiveSession()
    if active is not None:  # its owner has chosen its settings, and stops it
        return active
    # spark-submit has started the JVM, with the master, the settings and the log that its user has chosen.
    if _SUBMITTED in os.environ:
        builder = SparkSession.builder.appName(app_name).config("spark.sql.session.timeZone", "UTC")
        return builder.config(map=dict(conf or {})).getOrCreate()
    settings = SparkConf().setAppName(app_name)
    if master is not None:
        settings.setMaster(master)
    local = _is_local(settings)
    for name, value in (_DEFAULTS | (_LOCAL if local else {})).items():
        settings.setIfMissing(name, value)
    for name, value in (conf or {}).items():
        settings.set(name, value)
    with _environment(local=local), _same_interrupts():
        return _launch(settings, log)


@contextlib.contextmanager
def session(
    app_name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> Iterator[SparkSession]:
    """Yields the session of `start_session`. Stops the session after the block if it was started for the block."""
    before = SparkSession.getActiveSession()
    spark = start_session(app_name, master=master, conf=conf, log=log)
    try:
        yield spark
    finally:
        if before is None:
            with contextlib.suppress(Exception):  # its JVM has ended, and its user has got the error
                spark.stop()


def _is_local(settings: SparkConf) -> bool:
    """Tells whether Spark will run in one process here. The settings of an installation are unknown before Spark
    runs."""
    master = settings.get("spark.master")
    if master is not None:
        return master.startswith("local")
    return not any(name in os.environ for name in ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"))


def _launch(settings: SparkConf, log: IO[bytes] | None) -> SparkSession:
    # A separate process group: Ctrl-C at a terminal goes to this process only, which stops the workers in order.
    options: dict[str, Any] = {"start_new_session": True}
    if log is not None:
        options["stderr"] = log
    try:
        gateway = launch_gateway(settings, options)  # type: ignore[no-untyped-call]
        context = SparkContext(conf=settings, gateway=gateway)
    except PySparkRuntimeError as error:
        raise PipelineError(f"Spark did not start: {error}{_last_words(log)}") from error
    # Who gave a file wants one line for an error; the whole log is for who asked for it.
    if log is not None:
        context.setLogLevel("ERROR")
        silence(context._accumulatorServer)
    return SparkSession.builder.getOrCreate()


def silence(server: BaseServer) -> None:
    """Keeps a server of Spark's Python part from printing a traceback when its connection ends: at the end of a
    successful run, the JVM may close the connection before that part learns of the stop."""
    vars(server)["handle_error"] = lambda request, address: None


def _last_words(log: IO[bytes] | None) -> str:
    """Returns the reason of a JVM that ended at once, if it is short."""
    if log is None or not os.fstat(log.fileno()).st_size:
        return ""
    log.seek(0)
    lines = log.read(_FEW_BYTES).decode(errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip() and not line.startswith(_NO_REASON)]
    return f" {said[-1]}" if said and len(said[-1]) <= _SHORT else ""


@contextlib.contextmanager
def _environment(*, local: bool) -> Iterator[None]:
    """Sets the environment of a new JVM and of the Python workers that it starts."""
    java = find_java()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    changed: dict[str, str] = {}
    if local and "PYSPARK_PYTHON" not in os.environ:
        changed["PYSPARK_PYTHON"] = worker_python()  # the default is python3 of PATH
    if locale.getencoding().lower().replace("-", "") != "utf8":
        changed["LC_ALL"] = "C.UTF-8"  # or a JVM could not open files with non-ASCII names
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _same_interrupts() -> Iterator[None]:
    """Restores the SIGINT handler that SparkContext replaces: Spark's handler cancels every job before it raises
    KeyboardInterrupt."""
    # Python lets only the main thread set handlers, and SparkContext sets none elsewhere.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
