#!/usr/bin/env python3
"""Benchmarks of the store that is a log: python scripts/bench/log_store.py --help

Each figure is a ratio of two things measured in one run, or seconds and bytes with a target of their own. Load comes
from raw sockets. Redis and beanstalkd are started here when they are on the PATH; without them their figures are left
out. Let nothing else run meanwhile: the load average at the start is shown. All files are removed at the end.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import store_docs
import store_due
import store_million
import store_pushes
import store_upkeep
from machine import machine_line
from store_figures import Figure, summary

MEASUREMENTS: dict[str, Callable[[Path, float, bool], list[Figure]]] = {
    "sustained": store_pushes.sustained,
    "singly": store_pushes.singly,
    "cycle": store_pushes.cycle,
    "starts": store_million.starts,
    "drain": store_million.drain,
    "amplification": store_upkeep.amplification,
    "latency": store_upkeep.latency,
    "stalls": store_due.stalls,
    "slices": store_due.slices,
    "policies": store_due.policies,
}


def main() -> None:
    """Measures what is asked for, one after the other, and prints the figures with their targets."""
    parser = argparse.ArgumentParser(
        description="Measures the journal against its targets. Prints a table; asserts nothing.",
        epilog="; ".join(f"{name}: {measure.__doc__}" for name, measure in MEASUREMENTS.items()),
    )
    parser.add_argument(
        "--only", choices=list(MEASUREMENTS), action="append", metavar="NAME", help="measure only this one"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the messages, short rounds: takes some minutes"
    )
    parser.add_argument(
        "--seconds", type=float, help="seconds of pushes in `sustained` (default: 120; with --quick 15)"
    )
    parser.add_argument("--dir", type=Path, help="folder for temporary files (default: the system's)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--docs", action="store_true", help="also write the figures into docs/performance.md")
    arguments = parser.parse_args()
    seconds = arguments.seconds or (15 if arguments.quick else 120)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="qs-bench-", dir=arguments.dir) as folder:
        load = f"load average {os.getloadavg()[0]:.1f}"
        print(f"{machine_line(Path(folder))}, {load}", flush=True)
        for name in arguments.only or MEASUREMENTS:
            started = time.monotonic()
            own = Path(folder) / name
            own.mkdir()
            figures += MEASUREMENTS[name](own, seconds, arguments.quick)
            print(f"{name}: measured in {time.monotonic() - started:.0f} s", flush=True)
        if arguments.json is not None:
            content = {"machine": machine_line(Path(folder)), "load": load, "quick": arguments.quick}
            content["figures"] = [figure.content() for figure in figures]
            arguments.json.write_text(json.dumps(content, indent=2) + "\n")
        if arguments.docs:
            store_docs.write(figures, f"{time.strftime('%Y-%m-%d')}: {machine_line(Path(folder))}, {load}")
    print(summary(figures))


if __name__ == "__main__":
    main()
