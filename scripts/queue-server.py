#!/usr/bin/env python3
"""The queue server: queue-server.py --help. The same command is installed on the PATH."""

from qs_server.command import main

if __name__ == "__main__":
    raise SystemExit(main())
