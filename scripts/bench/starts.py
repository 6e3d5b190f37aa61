"""Measures the command `qs` from its start to its end, beside an interpreter that does nothing."""

import os
import resource
import subprocess
import sys
from pathlib import Path

from processes import queue_server
from table import Row

_QS = Path(sys.executable).parent / "qs"


def _cost(command: list[str], environment: dict[str, str]) -> float:
    """Returns the seconds of processor time that a command takes: other programs on the machine change these least."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _row(name: str, cost: list[float], bare: list[float], most: float) -> Row:
    """Compares the fastest runs: whatever else the machine does only adds to a start."""
    figures = f"{min(cost) * 1000:.0f} ms to {min(bare) * 1000:.0f} ms"
    return Row(f"{name} / python -c pass", f"{min(cost) / min(bare):.1f}", f"<= {most:g}", figures)


def measure(folder: Path, quick: bool) -> list[Row]:
    """`qs --help` and `qs push` against `python -c pass`, in processor time"""
    # Compiled modules: where they are not kept, each start compiles all of them.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    bare: list[float] = []
    shown: list[float] = []
    pushed: list[float] = []
    with queue_server(folder / "root", "--durability", "none") as server:
        environment = {**kept, "QS_SERVER": f"{server.address[0]}:{server.address[1]}"}
        subprocess.run([_QS, "new", "orders"], check=True, env=environment)
        commands = (
            ([sys.executable, "-c", "pass"], bare),
            ([str(_QS), "--help"], shown),
            ([str(_QS), "push", "orders", "two apples"], pushed),
        )
        for measured in range(8 if quick else 25):
            for command, figures in commands:
                cost = _cost(command, environment)
                if measured:  # the first round compiles
                    figures.append(cost)
    return [_row("qs --help", shown, bare, 4), _row("qs push", pushed, bare, 7.5)]
