"""Programs of a few lines that call another one differently: kept in the user's cache, made when they are missing."""

import hashlib
import os
import shlex
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
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return cache if os.access(cache, os.W_OK) else None


def wrapper(cache: Path, binary: Path, before: str) -> Path:
    """A program of the binary's name that runs the lines of shell, and then becomes the binary, with the arguments it
    was given. It is in the directory bin of one that is the binary's own. OSError when it cannot be written."""
    home = cache / f"{binary.name}-{hashlib.sha256(bytes(binary)).hexdigest()[:16]}"
    script = home / "bin" / binary.name
    text = f'#!/bin/sh\n{before}exec {shlex.quote(str(binary))} "$@"\n'
    try:
        current = script.read_text()
    except OSError:
        current = ""
    if current != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)  # noqa: S103 - as a program is
        os.rename(temporary, script)  # another process may be running it
    return script
