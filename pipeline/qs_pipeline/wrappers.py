"""Short shell programs that call another program differently. They are kept in the user's cache and created when
missing.

Their directories must not be writable by others, as the programs are executed.
"""

import errno
import hashlib
import os
import shlex
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the user's cache directory for this package, None when there is none to write to."""
    given = environment.get("XDG_CACHE_HOME") or (environment.get("HOME") and Path(environment["HOME"], ".cache"))
    if not given:
        return None
    cache = Path(given) / "qs-pipeline"
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        _make_private(cache)
    except OSError:
        return None
    return cache if os.access(cache, os.W_OK) else None


def _make_private(directory: Path) -> None:
    """Creates a directory if it is missing. PermissionError when others may write to it."""
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others may write there", str(directory))


def wrapper(cache: Path, binary: Path, before: str) -> Path:
    """Returns a program that runs the shell lines of `before` and then executes the binary with its own arguments. It
    has the binary's name and stands in a directory `bin` of its own. OSError when it cannot be written."""
    home = cache / f"{binary.name}-{hashlib.sha256(bytes(binary)).hexdigest()[:16]}"
    script = home / "bin" / binary.name
    text = os.fsencode(f'#!/bin/sh\n{before}exec {shlex.quote(str(binary))} "$@"\n')
    for directory in (cache, home, script.parent):
        _make_private(directory)
    try:
        current = script.read_bytes()
    except FileNotFoundError:
        current = b""
    if current != text:
        handle, temporary = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(text)
        os.chmod(temporary, 0o755)  # noqa: S103 - a program
        os.rename(temporary, script)  # another process may be running it
    return script
