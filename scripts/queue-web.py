#!/usr/bin/env python3
"""The page: queue-web.py --help. The same command is installed on the PATH."""

import os
import sys
from pathlib import Path

try:
    from qs_web.command import main
except ModuleNotFoundError:
    # Started with another Python than the one in .venv.
    python = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"
    if not python.exists() or Path(sys.prefix) == python.parent.parent:
        sys.exit("queue-web.py: not installed yet: run ./scripts/run once, or pip install the project")
    os.execv(python, [str(python), *sys.argv])

if __name__ == "__main__":
    raise SystemExit(main())
