"""Runs a command of the checkout with whatever Python the user has: this one, else the one in .venv, else a line that
says what to do. The file is kept to what Python 2.7 can read too: an old Python gets that line, and no traceback."""

import os
import sys

NEEDED = (3, 11)


def too_old(version):
    """Returns the line for a Python that is too old, None for one that is not. version: as sys.version_info."""
    if tuple(version[:2]) >= NEEDED:
        return None
    needed, found = (".".join(str(part) for part in parts) for parts in (NEEDED, version[:3]))
    advice = "set PYTHON to a newer one, as in PYTHON=python3.12 ./scripts/run"
    return "qs needs Python %s or newer, and this is %s: %s" % (needed, found, advice)


def run(script, module):
    """Runs the function `main` of a module, and returns its exit code. script: the path of the script."""
    if too_old(sys.version_info):
        return _run_elsewhere(script)
    try:
        __import__(module)
    except ModuleNotFoundError:
        return _run_elsewhere(script)
    return sys.modules[module].main()


def _run_elsewhere(script):
    """Continues as the Python in .venv, or returns the reason why there is none."""
    home = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(script))), ".venv")
    python = os.path.join(home, "bin", "python")
    if os.path.exists(python) and os.path.realpath(sys.prefix) != os.path.realpath(home):
        os.execv(python, [python] + sys.argv)
    reason = too_old(sys.version_info) or "not installed yet: run ./scripts/run once, or pip install the project"
    return "%s: %s" % (os.path.basename(script), reason)


if __name__ == "__main__":  # so that shell scripts can ask
    sys.exit(too_old(sys.version_info))
