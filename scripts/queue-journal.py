#!/usr/bin/env python3
"""The journal of a queue server: queue-journal.py --help. The same command is installed on the PATH."""

import sys

from entry import run

if __name__ == "__main__":
    sys.exit(run(__file__, "qs_server.main.queue_journal"))
