"""The report of few events, beside a bare start of Spark with one job: each in a process of its own, in turn.

Both pay for the start of Python and of the JVM. What is more than that is the work of the report.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measuring import Figure, Run, in_turn, ratio
from report_events import write_history

_EVENTS = 5000
_BARE = (
    "from qs_pipeline.session import start_session\n"
    "spark = start_session('bare')\n"
    "assert spark.range(1000).count() == 1000\n"
    "spark.stop()"
)
_COMMAND = str(Path(sys.executable).parent / "qs-pipeline")


def report_start(run: Run) -> list[Figure]:
    """Compares the command that reports 5,000 events with a bare start of Spark and one job."""
    history = run.folder / "history"
    history.mkdir()
    write_history(history, _EVENTS)
    made = 0

    def report() -> float:
        nonlocal made
        made += 1
        to = str(run.folder / f"report-{made}")
        return _milliseconds(run, [_COMMAND, "report", str(history), "--to", to])

    sides: dict[str, Callable[[], float]] = {
        "report": report,
        "bare": lambda: _milliseconds(run, [sys.executable, "-c", _BARE]),
    }
    found = in_turn(sides, 1 if run.quick else 3)
    title = f"report of {_EVENTS:,} events / a bare start of Spark and one job"
    return [ratio(title, found["report"], found["bare"], 2.5, "at most", " ms")]


def _milliseconds(run: Run, command: list[str]) -> float:
    """Returns the time of a command by the clock. Its output goes to a file of the folder."""
    with (run.folder / "log").open("ab") as log:
        started = time.perf_counter()
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=run.folder)
        return (time.perf_counter() - started) * 1000
