#!/usr/bin/env python3
"""The measurements of qs: python scripts/bench/run.py --help

Nothing is asserted: the table shows what was measured, with a target where there is one. Most figures with a target are
ratios of two things that were measured in this very run, alternately, round by round; what is shown is the median of
the rounds' ratios. So they say the same on a fast machine and on a slow one. Most load comes from raw blocking sockets
with bytes made beforehand, so that the server is measured and not a client. All files are in a temporary folder that is
removed at the end.

On ext4, do not run the same twice within some minutes. For up to five minutes the inode of a deleted file is not given
to a new one, and each creation has to pass over all of them: after 200,000 deletions a push costs several times as
much. `roundtrips` shows what creating a file costs without a server, so that this can be seen. Or name a tmpfs with
--dir; but there, syncing costs nothing.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from compare import add_flags
from machine import machine_line
from measuring import Figure, Run, text_table, write_rows
from processes import PROJECT

GROUPS: dict[str, dict[str, str]] = {
    "server": {
        "roundtrips": "server_rates:roundtrips",
        "durable": "server_rates:durable",
        "depth": "server_rates:depth",
        "starts": "server_rates:starts",
        "order": "order_rates:order",
        "longest-waits": "longest_waits:longest_waits",
        "server-cpu": "server_cpu:server_cpu",
        "scrapes": "scrapes:scrapes",
        "hostile": "hostile:hostile",
    },
    "bus": {
        "fanout": "bus_rates:fanout",
        "latency": "bus_rates:latency",
        "idle": "bus_rates:idle",
        "fan-out-peers": "fan_out_peers:fan_out_peers",
    },
    "xml": {"schema": "xml_rates:schema", "conditions": "xml_rates:conditions"},
    "security": {
        "strangers": "strangers:strangers",
        "tls": "security_rates:tls",
        "tls-memory": "security_rates:tls_memory",
        "access": "security_rates:access",
    },
    "journal": {
        "sustained": "journal_pushes:sustained",
        "singly": "journal_pushes:singly",
        "cycle": "journal_pushes:cycle",
        "restarts": "journal_cold:restarts",
        "drain": "journal_cold:drain",
        "amplification": "journal_cold:amplification",
        "upkeep-latency": "journal_cold:upkeep_latency",
        "stalls": "journal_due:stalls",
        "slices": "journal_due:slices",
        "policies": "journal_due:policies",
    },
    "postgres": {
        "postgres-push": "postgres_rates:postgres_push",
        "postgres-cycle": "postgres_rates:postgres_cycle",
        "postgres-depth": "postgres_rates:postgres_depth",
        "postgres-age": "postgres_rates:postgres_age",
        "postgres-servers": "postgres_rates:postgres_servers",
        "postgres-layouts": "postgres_layouts:postgres_layouts",
    },
    "documents": {
        "document-costs": "documents:document_costs",
        "second-paths": "documents:second_paths",
        "hostile-documents": "documents:hostile_documents",
    },
    "testing": {"testing": "testing_rates:testing"},
    "libraries": {"dirq": "dirq_rates:dirq"},
    "pipeline": {
        "archive": "archive_rates:archive_rates",
        "archive-xml": "archive_rates:archive_xml",
        "report": "report_rates:report_rates",
        "report-start": "report_start:report_start",
    },
    "peers": {
        "compare": "compare:compare",
        "client-costs": "client_rates:client_costs",
        "worker": "worker_rates:worker_rates",
    },
}
"""The measurements by group and name: module and function. A module is imported when it is asked for, because those of
the pipeline need Spark and DuckDB."""

MEASUREMENTS = {name: where for group in GROUPS.values() for name, where in group.items()}

DEFAULT = ("server", "bus")
"""The groups that are measured if none is named: they take some minutes, and need no further packages."""

PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "journal": ("performance-method.md", tuple(GROUPS["journal"])),
    "postgres": ("performance-method.md", tuple(GROUPS["postgres"])),
    "xml": ("performance-method.md", tuple(GROUPS["xml"])),
    "fan-out-peers": ("bus.md", ("fan-out-peers",)),
}
"""The pages of docs that --docs writes, by the name after --only: the page, and the measurements in its table."""


def function_of(name: str) -> Callable[[Run], list[Figure]]:
    """Returns the measurement of that name. Raises ImportError if a package that it needs is missing."""
    module, _, function = MEASUREMENTS[name].partition(":")
    found: Callable[[Run], list[Figure]] = getattr(importlib.import_module(module), function)
    return found


def descriptions() -> Iterator[str]:
    """Yields a line for each measurement: its docstring, or what is missing."""
    for group, names in GROUPS.items():
        yield f"{group}:"
        for name in names:
            try:
                said = function_of(name).__doc__
            except ImportError as error:
                said = f"cannot run here: {error}"
            yield f"  {name:<18} {said}"


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    parser = argparse.ArgumentParser(
        description="Measures qs, beside what the machine can do, or beside other systems."
    )
    add = parser.add_argument
    add("--list", action="store_true", help="say what each measurement is, and measure nothing")
    add(
        "--only",
        choices=[*GROUPS, *MEASUREMENTS],
        action="append",
        metavar="NAME",
        help=f"measure only this one, or this group: see --list (default: {', '.join(DEFAULT)})",
    )
    add("--quick", action="store_true", help="fewer and shorter rounds: shows whether it works, and little more")
    add("--dir", type=Path, help="folder for temporary files, on the disk to measure (default: the system's)")
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    add(
        "--docs",
        action="store_true",
        help="also write the figures of journal, postgres, fan-out-peers and compare into the pages of docs",
    )
    few = parser.add_argument_group("some measurements only")
    few.add_argument("--seconds", type=float, help="sustained, postgres-layouts: of load (default: 120, 12)")
    few.add_argument("--before", type=Path, metavar="DIR", help="server-cpu: another checkout, to compare with")
    few.add_argument("--pgmq-sql", type=Path, metavar="FILE", help="postgres-cycle: pgmq's SQL, to compare with it")
    few.add_argument("--cycles", type=int, metavar="N", help="postgres-age: cycles until the database is old")
    few.add_argument("--held", type=float, metavar="SECONDS", help="postgres-age: how long a snapshot is held")
    few.add_argument("--messages", type=int, metavar="N", help="archive, archive-xml, report: messages, or events")
    few.add_argument(
        "--memory", default="1g", metavar="SIZE", help="pipeline: of Spark's JVM (default: 1g, as Spark's)"
    )
    add_flags(parser)
    return parser


def write_pages(figures: Mapping[str, Sequence[Figure]], machine: str) -> None:
    """Writes what was measured into the tables of `PAGES`."""
    for only, (page, names) in PAGES.items():
        rows = [figure for name in names for figure in figures.get(name, ())]
        if rows:
            mark = f"<!-- made by scripts/bench/run.py --only {only} --docs: do not edit from here -->"
            write_rows(PROJECT / "docs" / page, mark, rows, f"{time.strftime('%Y-%m-%d')}: {machine}")


def main() -> int:
    """Measures what is asked for, one after the other, and prints one table. Returns 130 if it was interrupted."""
    options = make_parser().parse_args()
    if options.list:
        print("\n".join(descriptions()))
        return 0
    asked = options.only or DEFAULT
    names = [name for each in asked for name in GROUPS.get(each, (each,))]
    figures: dict[str, list[Figure]] = {}
    interrupted = False
    with tempfile.TemporaryDirectory(prefix="qs-bench-", dir=options.dir) as folder:
        machine = f"{machine_line(Path(folder))}, load average {os.getloadavg()[0]:.1f}"
        print(machine, flush=True)
        try:
            for name in dict.fromkeys(names):
                started = time.monotonic()
                own = Path(folder) / name
                own.mkdir()
                try:
                    measure = function_of(name)
                except ImportError as error:
                    print(f"{name}: left out: {error}", file=sys.stderr, flush=True)
                    continue
                figures[name] = measure(Run(own, options.quick, options))
                print(f"{name}: measured in {time.monotonic() - started:.0f} s", flush=True)
        except KeyboardInterrupt:
            interrupted = True
        # Before the folder is removed, which takes long if there are many files.
        print(text_table([figure for found in figures.values() for figure in found]), flush=True)
    if options.json is not None:
        content = {name: [figure.content() for figure in found] for name, found in figures.items()}
        whole = {"machine": machine, "quick": options.quick, "figures": content}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")
    if options.docs:
        write_pages(figures, machine)
    return 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
