"""The directory of a report: built beside its place under a hidden name, and moved there when complete."""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from ..errors import PipelineError, UsageError

MARK = "report.json"
"""The file that marks a directory as a report."""
KIND = "qs-pipeline report"


def check_target(to: str) -> Path:
    """Returns the place of the report, without symlinks. UsageError unless it is missing, empty, or an earlier
    report."""
    if "://" in to:
        raise UsageError(f"{to} is not a path of this machine: name a local directory for the report")
    place = Path(to).resolve()
    try:
        names = os.listdir(place)
    except FileNotFoundError:
        return place
    except NotADirectoryError:
        raise UsageError(f"{to} is a file: name a directory for the report") from None
    except OSError as error:
        raise UsageError(f"{to} cannot be read: {error.strerror}") from error
    if names and not _is_report(place):
        raise UsageError(f"{to} is neither empty nor an earlier report: name another directory, or remove it")
    return place


def _is_report(place: Path) -> bool:
    try:
        found = json.loads((place / MARK).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


@contextlib.contextmanager
def building(place: Path) -> Iterator[Path]:
    """Yields a hidden directory beside the place, which replaces the place after the block. If the block raises, the
    place stays unchanged. PipelineError when it cannot be written."""
    token = uuid.uuid4().hex[:8]
    work = place.with_name(f".{place.name}.{token}")
    old = place.with_name(f".{place.name}.{token}.old")
    try:
        work.mkdir(parents=True)
        yield work
        if place.exists():
            place.rename(old)
        work.rename(place)
    except OSError as error:
        if old.exists() and not place.exists():
            old.rename(place)
        raise PipelineError(f"the report cannot be written to {place}: {error.strerror or error}") from error
    finally:
        for left in (work, old):
            shutil.rmtree(left, ignore_errors=True)
