"""qs beside other queues. What is measured, and how to read it, stands in docs/performance-method.md.

Runs every peer on loopback with its own data directory, drives each with its usual Python client, and writes
results.json, table.md and plots to a folder. Peers that are not installed are left out, with a line that says what is
missing. Ctrl-C ends it and writes what was measured until then.
"""

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import compare_tables
import peer_beanstalkd
import peer_libraries
import peer_nats
import peer_qs
import peer_rabbitmq
import peer_redis
from compare_cells import FULL, QUICK, ROWS, Bench, Cell, Plan, Progress, chosen, points
from compare_ratios import Ratios
from compare_tables import Results
from machine import machine_line, memory_bytes, room_for
from measuring import Figure, Run
from peer import Peer
from processes import debian_version

_KINDS = (*ROWS, "ratios")


_BUSY = 0.4
_QUICK_NOTE = (
    "A quick run: base points and a short round of the ratios. Left out are other numbers of clients, batches, sizes, "
    "depths, and the ratio of depths."
)


def peers(storage: str, nats_server: str) -> list[Peer]:
    """Returns all peers, in the order in which they are measured and shown."""
    return [
        *peer_qs.peers(storage),
        *peer_beanstalkd.peers(),
        *peer_redis.peers(),
        *peer_rabbitmq.peers(),
        *peer_nats.peers(nats_server),
        *peer_libraries.peers(),
    ]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that only `compare` knows."""
    add = parser.add_argument_group("compare").add_argument
    add("--out", type=Path, default=Path("comparison"), metavar="FOLDER", help="for the results (default: comparison)")
    add("--peers", nargs="+", metavar="PEER", help="measure only these, by their keys: qs, redis, beanstalkd, nats, …")
    add("--rows", nargs="+", choices=_KINDS, metavar="ROW", help=f"measure only these: {', '.join(_KINDS)}")
    add("--qs-storage", choices=("journal", "files"), default="journal", help="qs's storage (default: %(default)s)")
    add("--nats-server", default="nats-server", metavar="PROGRAM", help="NATS program; `sync_interval` needs 2.10")
    add("--again", action="store_true", help="measure nothing: table, plots (and --docs) from results.json in --out")


def versions_of(peer: Peer) -> list[str]:
    """Returns each part with its version: a package of Debian or of PyPI, or the text of a version."""
    found = []
    for name in peer.versions:
        if " " in name:
            found.append(name)
            continue
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} {debian_version(name) or '?'}")
    return found


def lacks(peer: Peer) -> str:
    """Returns the reason why the peer cannot run, "" if it can."""
    if peer.missing or peer.raw or peer.library:
        return peer.missing
    package = {"redis-py": "redis", "qs_client": "qsbus"}.get(peer.client, peer.client)
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"pip install {package}"
    return ""


def _measure(run: Run, known: Sequence[Peer], plan: Plan, results: Results) -> None:
    """Measures the requested cells and ratios, and adds each to the results at once."""
    options = run.options
    unknown = set(options.peers or ()) - {peer.key for peer in known}
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(unknown)}; there are {', '.join(peer.key for peer in known)}")
    wanted = [peer for peer in known if not options.peers or peer.key in options.peers]
    absent = {peer.key: f"{peer.name}: {lacks(peer)}" for peer in known if lacks(peer)}
    for peer in wanted:
        if peer.key in absent:
            results["missing"][peer.name] = lacks(peer)
            print(f"LEFT OUT: {peer.name}: {lacks(peer)}", file=sys.stderr)
    able = [peer for peer in wanted if peer.key not in absent]
    results["peers"] = [
        {
            "key": peer.key, "name": peer.name, "durability": peer.durability, "survives": peer.survives,
            "client": peer.client, "raw": peer.raw, "versions": versions_of(peer),
        }
        for peer in able
    ]  # fmt: skip
    rows = [row for row in options.rows or () if row != "ratios"]
    machine = machine_line(run.folder)
    results["machine"] = f"{machine}, {memory_bytes() / 2**30:.0f} GiB of memory"
    print(results["machine"], file=sys.stderr, flush=True)
    if not options.rows or "ratios" in options.rows:
        own = run.folder / "ratios"
        own.mkdir()
        found: list[Figure] = []
        try:
            Ratios({peer.key: peer for peer in able}, absent, own, plan, found).measure()
        finally:
            results["ratios"] = [asdict(ratio) for ratio in found]
    if not options.rows or rows:
        planned = chosen(points(run.quick), rows)
        progress = Progress(len(planned) * len(able), plan.most)
        cells = run.folder / "cells"
        cells.mkdir()
        bench = Bench(cells, plan, progress, results["cells"])
        for peer in able:  # one that fails as a whole must not cost the others their figures
            try:
                bench.measure(peer, planned)
            except (OSError, RuntimeError) as error:
                print(f"{peer.name}: {error}", file=sys.stderr, flush=True)


def disturbed(cells: Sequence[Cell]) -> list[str]:
    """Returns a warning if other programs ran meanwhile: if more was used than the kernel's own work can explain."""
    others = [cell["figures"]["others"] for cell in cells if cell["figures"]]
    if not others or median(others) < _BUSY:
        return []
    warning = f"**Other programs used {median(others):.1f} cores meanwhile: these figures say little.**"
    print(warning, file=sys.stderr)
    return [warning]


def _report(results: Results, out: Path, docs: bool) -> list[Figure]:
    """Writes the results, the tables and the plots. Returns the ratios."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (out / "table.md").write_text(compare_tables.whole(results), encoding="utf-8")
    try:
        import compare_plots  # noqa: PLC0415 - everything else goes without matplotlib
    except ModuleNotFoundError as error:
        print(f"NO PLOTS: {error}: pip install matplotlib", file=sys.stderr)
        drawn = []
    else:
        drawn = compare_plots.draw(results, out)
    if docs:
        compare_tables.write(results, drawn)
    print(f"written to {out}: results.json, table.md, {len(drawn)} plots")
    return [Figure(**written) for written in results["ratios"]]


def compare(run: Run) -> list[Figure]:
    """Compares qs with other queues, each with its usual Python client: rates, latencies, processor time, memory."""
    options = run.options
    if options.again:
        kept = json.loads((options.out / "results.json").read_text(encoding="utf-8"))
        return _report(kept, options.out, options.docs)
    started = time.monotonic()
    room_for(1000)
    notes = [_QUICK_NOTE] if run.quick else []
    results: Results = {"date": time.strftime("%Y-%m-%d"), "machine": "", "notes": notes, "missing": {}}
    results |= {"peers": [], "cells": [], "ratios": []}
    interrupted = False
    try:
        _measure(run, peers(options.qs_storage, options.nats_server), QUICK if run.quick else FULL, results)
    except KeyboardInterrupt:
        interrupted = True
        notes.append("This run was interrupted: the missing rows were not measured.")
        print("interrupted: writing what was measured", file=sys.stderr)
    results["seconds"] = round(time.monotonic() - started)
    notes += disturbed(results["cells"])
    notes.append(f"The run took {results['seconds'] // 60} min {results['seconds'] % 60} s.")
    figures = _report(results, options.out, options.docs)
    if interrupted:
        raise KeyboardInterrupt
    return figures
