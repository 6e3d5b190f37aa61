"""Programs of a few lines that call another one differently: kept in the user's cache, made when they are missing.

What is there is run, so it has to be in directories that nobody else may write to.
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
    """Of the user, for this package. None when there is none to write to."""
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
    """Makes it, if it is missing. PermissionError when somebody else could put something there."""
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others may write there", str(directory))


def wrapper(cache: Path, binary: Path, before: str) -> Path:
    """A program of the binary's name that runs the lines of shell, and then becomes the binary, with the arguments it
    was given. It is in the directory bin of one that is the binary's own. OSError when it cannot be written."""
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
        os.chmod(temporary, 0o755)  # noqa: S103 - as a program is
        os.rename(temporary, script)  # another process may be running it
    return script
