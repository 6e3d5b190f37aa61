#!/usr/bin/env python3
"""The queue server: queue-server.py --help. The same command is installed on the PATH."""

import sys

from entry import run

if __name__ == "__main__":
    sys.exit(run(__file__, "qs_server.main.queue_server"))
