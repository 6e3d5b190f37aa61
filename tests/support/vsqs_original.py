"""Processes of the original package vsqs 0.3, for tests that share a directory with it."""

import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).with_name("original_vsqs.py"))


def original(*arguments: object) -> "subprocess.Popen[str]":
    """Starts one. arguments: see the script."""
    return subprocess.Popen([sys.executable, SCRIPT, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def output(process: "subprocess.Popen[str]") -> list[str]:
    """The lines that it prints, once it has ended well."""
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return text.splitlines()
