"""The command `qs-pipeline`: runs a job, and reports its progress and its end.

Exit codes: 0; 1 to 11 as in `errors`; 130 interrupted and 143 terminated, after the current batch was finished.
"""

import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Self, TextIO

from qs_client.place import endpoint

from .arguments import parse
from .errors import INSTALL, BadMessageError, DataLossError, PipelineError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .replay_plan import Selection
    from .running import FinishedBatch, Stop
    from .security import QueueServer

_SIGNALLED = 128
"""A shell's exit code of a program that a signal ended is this plus the signal's number."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_SHORTEST = 0.1
"""Seconds between two updates of the line: with more updates, writing to a terminal would slow small batches."""


class ProgressLine:
    """Counts finished batches. Threads may share it.

    stream: gets the line; terminal: update the line in place; verbose: write a line for each batch instead.
    """

    def __init__(
        self, stream: TextIO, *, terminal: bool, verbose: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._terminal = terminal and not verbose
        self._verbose = verbose
        self._clock = clock
        self._started = clock()
        self._written = float("-inf")
        self._lock = threading.Lock()
        self._rows = 0
        self._shown = False

    def __call__(self, step: "FinishedBatch") -> None:
        """Counts a finished batch."""
        with self._lock:
            self._rows += step.rows
            now = self._clock()
            if self._verbose:
                self._stream.write(f"{self._text(step, now)}\n")
                self._stream.flush()
            elif self._terminal and now - self._written >= _SHORTEST:
                self._written = now
                self._write(self._text(step, now))

    def say(self, text: str) -> None:
        """Shows another text until the next batch."""
        with self._lock:
            if self._terminal:
                self._write(text)
            elif self._verbose:
                self._stream.write(f"{text}\n")
                self._stream.flush()

    def clear(self) -> None:
        """Clears the progress line in the terminal, so that other output can take its place."""
        with self._lock:
            if self._shown:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._shown = False

    @property
    def seconds(self) -> float:
        """Returns the seconds since the start."""
        return self._clock() - self._started

    def _write(self, text: str) -> None:
        self._stream.write(f"\r\x1b[K{text}")
        self._stream.flush()
        self._shown = True

    def _text(self, step: "FinishedBatch", now: float) -> str:
        spent = now - self._started
        rate = f", {self._rows / spent:,.0f}/s" if spent > 0 else ""
        return f"{step.queue}: batch {step.batch}, {self._rows:,} messages{rate}"


class _StopOnSignal:
    """Catches SIGINT and SIGTERM inside the block, and asks the job to stop.

    The first signal lets the current batch end, the second interrupts it, and a third raises KeyboardInterrupt: Spark
    may be in a call that notices nothing else.
    """

    def __init__(self, stop: "Stop", say: Callable[[str], None]) -> None:
        self._stop = stop
        self._say = say
        self._before = [signal.getsignal(number) for number in _SIGNALS]
        self.signal = 0

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._stop.at_once:
            raise KeyboardInterrupt
        self._stop.ask()
        self.signal = number
        if not self._stop.at_once:
            self._say("stopping after this batch; a second signal stops at once")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code. argv: the arguments, None for those of the process."""
    arguments = parse(argv)
    if not arguments.verbose:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs errors that are reported anyway
    log = None if arguments.verbose else tempfile.TemporaryFile(prefix="qs-pipeline-")  # noqa: SIM115 - the JVM writes to it too
    try:
        return _run(arguments, log)
    except KeyboardInterrupt:
        return _SIGNALLED + signal.SIGINT
    except Exception as error:
        return _fail(error, arguments, log)
    finally:
        if log is not None:
            log.close()


def _run(arguments: Namespace, log: IO[bytes] | None) -> int:
    terminal = sys.stderr is not None and sys.stderr.isatty()
    line = ProgressLine(sys.stderr, terminal=terminal, verbose=arguments.verbose)
    try:
        return _run_job(arguments, log, line)
    finally:
        line.clear()


def _run_job(arguments: Namespace, log: IO[bytes] | None, line: ProgressLine) -> int:
    line.say("loading Spark")
    try:
        from .running import Stop  # noqa: PLC0415 - so that --help needs no Spark
        from .session import session  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"Spark is not installed ({error}): {INSTALL}") from error
    if not arguments.verbose:
        _silence_spark()
    line.say("checking queues and files")
    _CHECKS.get(arguments.job, lambda _: None)(arguments)  # before Spark starts, which takes seconds
    line.say("starting Spark and its Java, which takes up to 20 s")
    conf = dict(arguments.conf)
    with session(f"qs-pipeline {arguments.job}", master=arguments.master, conf=conf, log=log) as spark:
        line.say("working")
        try:
            with _StopOnSignal(stop := Stop(), lambda text: _complain(text, line)) as signals:
                summary = _JOBS[arguments.job](spark, arguments, stop, line)
        finally:
            line.clear()
        print(f"{summary} ({line.seconds:.1f} s)", flush=True)
    return _SIGNALLED + signals.signal if signals.signal else 0


def _silence_spark() -> None:
    """Keeps Spark's Python part from logging errors of a query, which are reported in one line anyway."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _check_archive(arguments: Namespace) -> None:
    from .documents import check_schema_file  # noqa: PLC0415

    if arguments.xml_schema is not None:
        check_schema_file(arguments.xml_schema, root=arguments.xml_root)
    elif arguments.xml_root is not None:
        raise UsageError("--xml-root names the element that payloads are: give --xml-schema too")
    _require(arguments, *arguments.queues)


def _check_route(arguments: Namespace) -> None:
    from .route import read_query  # noqa: PLC0415

    read_query(arguments.sql)
    _require(arguments, arguments.queue, arguments.to, *([] if arguments.errors is None else [arguments.errors]))


def _check_replay(arguments: Namespace) -> None:
    _require(arguments, arguments.to)


def _check_report(arguments: Namespace) -> None:
    from .report.conditions import ask_bus  # noqa: PLC0415

    if (bus := _bus(arguments)) is not None:
        ask_bus(bus)


def _require(arguments: Namespace, *queues: str) -> None:
    from .running import require_queue  # noqa: PLC0415
    from .security import QueueServer  # noqa: PLC0415

    server = QueueServer(**_server(arguments))
    for name in dict.fromkeys(queues):
        require_queue(server, name)


# Each checks what needs no Spark: a wrong name of a queue is told at once, and not after the start of a JVM.
_CHECKS = {"archive": _check_archive, "replay": _check_replay, "report": _check_report, "route": _check_route}


def _archive(spark: "SparkSession", arguments: Namespace, stop: "Stop", line: ProgressLine) -> str:
    from .archive import archive  # noqa: PLC0415
    from .documents import read_schema  # noqa: PLC0415

    schema = None
    if arguments.xml_schema is not None:
        schema = read_schema(spark, arguments.xml_schema, root=arguments.xml_root)
    every = arguments.every if arguments.continuous else None
    done = archive(
        spark, arguments.queues, arguments.to, **_server(arguments), every=every, batch=arguments.batch, schema=schema,
        body=arguments.body, accept_loss=arguments.accept_loss, stop=stop, progress=line,
    )  # fmt: skip
    batches = sum(done.batches.values())
    queues = "" if len(done.messages) == 1 else f" of {len(done.messages)} queues"
    return (
        f"archived {_count(done.total, 'message')}{queues} in {_count(batches, 'batch', 'batches')} to {arguments.to}"
    )


def _route(spark: "SparkSession", arguments: Namespace, stop: "Stop", line: ProgressLine) -> str:
    from .route import (  # noqa: PLC0415
        default_state,
        read_query,
        route,
    )

    state = arguments.state or default_state(endpoint(*arguments.server), arguments.queue)
    every = arguments.every if arguments.continuous else None
    done = route(
        spark, arguments.queue, read_query(arguments.sql), arguments.to, state=state, errors=arguments.errors,
        **_server(arguments), every=every, batch=arguments.batch, accept_loss=arguments.accept_loss, stop=stop,
        progress=line,
    )  # fmt: skip
    broken = f", {done.broken:,} of them to {arguments.errors}" if arguments.errors else ""
    return f"routed {_count(done.messages, 'message')}{broken} in {_count(done.batches, 'batch', 'batches')}"


def _replay(spark: "SparkSession", arguments: Namespace, stop: "Stop", line: ProgressLine) -> str:
    from .replay import replay  # noqa: PLC0415
    from .replay_plan import Selection  # noqa: PLC0415

    selection = Selection(arguments.where, arguments.begin, arguments.end)
    if arguments.dry_run:
        return _dry_run(spark, arguments, selection, line)
    done = replay(
        spark, arguments.archive, arguments.to, selection, **_server(arguments), rate=arguments.rate,
        again=arguments.again, stop=stop, progress=line,
    )  # fmt: skip
    remaining = done.messages - done.before - done.pushed
    earlier = f", after {done.before:,} of an earlier run" if done.before else ""
    later = f"; {remaining:,} are left: the same command continues" if remaining else ""
    return f"pushed {_count(done.pushed, 'message')} to {arguments.to}{earlier}{later}"


def _dry_run(spark: "SparkSession", arguments: Namespace, selection: "Selection", line: ProgressLine) -> str:
    from .replay import earlier_run, preview  # noqa: PLC0415

    host, port = arguments.server
    before = earlier_run(spark, arguments.archive, arguments.to, selection, host=host, port=port)
    if before is not None and not before.finished:
        remaining = _count(before.messages - before.pushed, "message")
        return f"would push {remaining} to {arguments.to}, after {before.pushed:,} of an earlier run"
    found = preview(spark, arguments.archive, selection)
    line.clear()
    for each in found:
        span = f"{each.first:%Y-%m-%d %H:%M:%SZ} to {each.last:%Y-%m-%d %H:%M:%SZ}"
        print(f"{each.queue}  {_count(each.messages, 'message')}, pushed {span}")
    if before is not None and not arguments.again:
        return (
            f"would push nothing: this replay is finished, with {_count(before.messages, 'message')}; "
            "--again repeats it"
        )
    return f"would push {_count(sum(each.messages for each in found), 'message')} to {arguments.to}"


def _report(spark: "SparkSession", arguments: Namespace, stop: "Stop", line: ProgressLine) -> str:
    from .report import report  # noqa: PLC0415

    for number in _SIGNALS:  # a report has no batches to finish
        signal.signal(number, signal.default_int_handler)
    done = report(spark, arguments.history, arguments.to, top=arguments.top, bus=_bus(arguments), progress=line.say)
    return f"reported on {_count(done.events, 'event')} of {_count(done.queues, 'queue')} in {done.page}"


def _bus(arguments: Namespace) -> "QueueServer | None":
    """Returns the bus that a report asks, None without one."""
    from .security import QueueServer  # noqa: PLC0415

    if arguments.bus is None:
        return None
    host, port = arguments.bus
    return QueueServer(host, port, arguments.security)


def _server(arguments: Namespace) -> dict[str, Any]:
    """Returns the queue server's host, port and security as the arguments of the jobs' functions."""
    host, port = arguments.server
    return {"host": host, "port": port, "security": arguments.security}


_JOBS = {"archive": _archive, "report": _report, "replay": _replay, "route": _route}


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def _complain(text: str, line: ProgressLine | None = None) -> None:
    if line is not None:
        line.clear()
    if sys.stderr is not None:  # it was closed when the process started
        sys.stderr.write(f"qs-pipeline: {' '.join(text.split())}\n")
        sys.stderr.flush()


def _fail(error: Exception, arguments: Namespace, log: IO[bytes] | None) -> int:
    """Reports an error in one line. With -v also a traceback and Spark's log."""
    if arguments.verbose:
        traceback.print_exception(error)
    if not isinstance(error, PipelineError):
        from .translate import translate  # noqa: PLC0415

        error = translate(error)
    error = _with_flags(error, arguments.job)
    more = "" if arguments.verbose or error.exit_code != PipelineError.exit_code else _keep_log(log)
    _complain(f"{error}{more}")
    return error.exit_code


def _with_flags(error: PipelineError, job: str) -> PipelineError:
    """Replaces options of the data source in an error's text by the flags of the job."""
    # Who typed a command knows its flags, and not the options that the job has made of them.
    text = str(error)
    if job in ("archive", "route") and isinstance(error, DataLossError) and "failOnDataLoss" in text:
        before = re.sub(r"[;,:]? *with failOnDataLoss[^;]*", "", text)
        return type(error)(f"{before}; --accept-loss continues with the other messages")
    if job == "archive" and isinstance(error, BadMessageError) and "bodyType binary" in text:
        return type(error)(f"{text.partition(': read with bodyType binary')[0]}: give --body binary")
    return error


def _keep_log(log: IO[bytes] | None) -> str:
    """Copies the JVM's log, if there is any, to a file, and returns a hint at the file."""
    if log is None or not os.fstat(log.fileno()).st_size:
        return " (-v shows more)"
    # The log itself has no name, so that it never stays behind, and ends with this process.
    handle, path = tempfile.mkstemp(prefix="qs-pipeline-", suffix=".log")
    with os.fdopen(handle, "wb") as kept:
        log.seek(0)
        kept.write(log.read())
    return f" (-v shows more; Spark's log is in {path})"


if __name__ == "__main__":
    sys.exit(main())
