#!/usr/bin/env python3
"""Benchmarks of the queue server and the bus: python scripts/bench/run.py --help

Every figure with a target is a ratio of two things measured in this very run, alternately, round by round; what is
shown is the median of the rounds' ratios. So it says the same on a fast machine and on a slow one. The load comes from
raw blocking sockets with bytes made beforehand, so that the server is measured and not a client. Nothing is asserted:
the table shows the target beside what was measured. All files are in a temporary folder that is removed at the end.
`rivals` is different: it uses clients, also qs's own, and compares systems by what a Python program gets from them.

On ext4, do not run it twice within some minutes. For up to five minutes the inode of a deleted file is not given to a
new one, and each creation has to pass over all of them: after 200,000 deletions a push costs several times as much.
`roundtrips` shows what creating a file costs without a server, so that this can be seen. Or name a tmpfs with --dir.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import depth
import durable
import fanout
import hostile
import idle
import latency
import longest_waits
import rivals
import roundtrips
import scrapes
import starts
from machine import machine_line
from table import Row, print_table

BENCHMARKS: dict[str, Callable[[Path, bool], list[Row]]] = {
    "roundtrips": roundtrips.measure,
    "starts": starts.measure,
    "depth": depth.measure,
    "durable": durable.measure,
    "fanout": fanout.measure,
    "latency": latency.measure,
    "idle": idle.measure,
    "hostile": hostile.measure,
    "longest-waits": longest_waits.measure,
    "scrapes": scrapes.measure,
    "rivals": rivals.measure,
}


def main() -> None:
    """Runs what is asked for, one benchmark after the other, and prints one table."""
    parser = argparse.ArgumentParser(
        description="Measures the queue server and the bus beside what the machine can do. Prints a table.",
        epilog="; ".join(f"{name}: {run.__doc__}" for name, run in BENCHMARKS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: takes a few minutes")
    parser.add_argument(
        "--only", choices=list(BENCHMARKS), action="append", metavar="NAME", help="measure only this one"
    )
    parser.add_argument("--dir", type=Path, help="folder for temporary files (default: the system's)")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="qs-bench-", dir=arguments.dir) as folder:
        print(machine_line(Path(folder)), flush=True)
        for name in arguments.only or BENCHMARKS:
            started = time.monotonic()
            own = Path(folder) / name
            own.mkdir()
            rows += BENCHMARKS[name](own, arguments.quick)
            print(f"{name}: measured in {time.monotonic() - started:.0f} s", flush=True)
        # What was made is removed only now, because that makes creating files slow.
    print_table(rows)


if __name__ == "__main__":
    main()
