#!/usr/bin/env python3
"""Measures the cost of checking rights: python scripts/bench/access_rates.py --help

Two servers, one with an access file, are measured in this very run, alternately, round by round; what is shown is the
median of the rounds' ratios. The clients of that server have authenticated, as a principal with several patterns. All
files are in a temporary folder that is removed at the end.
"""

import argparse
import hashlib
import tempfile
from contextlib import ExitStack
from pathlib import Path

from load import Client, document
from machine import machine_line
from processes import queue_server
from table import Row, print_table
from tls_rates import CONNECTIONS, compare_pushes

_TOKEN = b"qs_benchmark"
_TARGET = 0.97
_PRINCIPALS = 20


def write_access(path: Path) -> None:
    """Writes an access file of several principals. The token is the last one's."""
    lines = []
    for number in range(_PRINCIPALS):
        token = _TOKEN if number == _PRINCIPALS - 1 else b"another %d" % number
        lines += [f"[principals.p{number}]", f'tokens = ["sha256:{hashlib.sha256(token).hexdigest()}"]']
        lines += [f'{right} = ["orders-*", "invoices-??", "q*"]' for right in ("read", "write", "configure")]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)


def measure(folder: Path, rounds: int, seconds: float) -> list[Row]:
    """Pushes to both servers: one at a time, and pipelined."""
    access = folder / "access.toml"
    write_access(access)
    with ExitStack() as stack:
        guarded = stack.enter_context(queue_server(folder / "guarded", "--access", str(access)))
        free = stack.enter_context(queue_server(folder / "free"))
        both = [[stack.enter_context(Client(server.address)) for _ in range(CONNECTIONS)] for server in (guarded, free)]
        for client in both[0]:
            client.lines(document(b"authenticate", b"<token>%b</token>" % _TOKEN))
        return compare_pushes("--access", both, (_TARGET, _TARGET), rounds, seconds)


def main() -> None:
    """Measures, and prints one table."""
    parser = argparse.ArgumentParser(description="Measures the queue server with --access and without.")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: takes a quarter of a minute")
    parser.add_argument("--dir", type=Path, help="folder for temporary files (default: the system's)")
    arguments = parser.parse_args()
    rounds, seconds = (5, 0.5) if arguments.quick else (15, 1.5)
    with tempfile.TemporaryDirectory(prefix="qs-access-", dir=arguments.dir) as made:
        print(machine_line(Path(made)), flush=True)
        print_table(measure(Path(made), rounds, seconds))


if __name__ == "__main__":
    main()
