"""The costs of a queue in a test: the fixtures of the plugin for pytest, and a server of a test's own."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

from measuring import Figure, Run, in_turn

from qs_testing import serving

_TESTS = 200
_WITH = "(qs_server, qs_client, qs_queue)"


def testing(run: Run) -> list[Figure]:
    """Measures what a test with a shared server costs on top of its own work, and the start and end of a server."""
    rounds, tests = (3, _TESTS // 4) if run.quick else (7, _TESTS)
    found = in_turn(
        {
            "with": partial(_seconds, run.folder, tests, _WITH),
            "without": partial(_seconds, run.folder, tests, "()"),
            "start and end": _start_and_end,
        },
        rounds,
    )
    # The start of the shared server is one test's, and not a part of each.
    once = partial(_seconds, run.folder, 1, _WITH)
    start = median(once() - _seconds(run.folder, 1, "()") for _ in range(rounds))
    each = [
        (over - under - start) / (tests - 1) * 1000 for over, under in zip(found["with"], found["without"], strict=True)
    ]
    starts = [value for value, _ in _times]
    ends = [value for _, value in _times]
    return [
        Figure("a test with a shared server, on top of its own work", median(each), 20, "at most", " ms"),
        Figure("a server with faults: until it listens", median(starts), 0.6, "at most", " s", digits=3),
        Figure("a server with faults: until it has ended", median(ends), 0.2, "at most", " s", digits=3),
    ]


_times: list[tuple[float, float]] = []


def _start_and_end() -> float:
    began = time.perf_counter()
    with serving(faults=True):
        running = time.perf_counter()
    ended = time.perf_counter()
    _times.append((running - began, ended - running))
    return ended - began


def _seconds(folder: Path, tests: int, fixtures: str) -> float:
    """Returns how long pytest takes for so many tests that do nothing but ask for fixtures."""
    text = "".join(f"def test_{number}{fixtures}:\n    pass\n" for number in range(tests))
    (folder / "test_fixtures.py").write_text(text)
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fixtures.py"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - began
