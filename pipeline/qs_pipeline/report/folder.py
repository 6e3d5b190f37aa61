"""The directory of a report: made beside its place under a hidden name, and put there when it is complete."""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from ..errors import PipelineError, UsageError

MARK = "report.json"
"""The file by which a directory is known as a report of ours."""
KIND = "qs-pipeline report"


def check_target(to: str) -> Path:
    """The place of the report, without symlinks. UsageError when something else is there: nothing but an empty
    directory or an earlier report is replaced."""
    if "://" in to:
        raise UsageError(f"{to} is not a path of this machine: a report is written to a directory here")
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
        raise UsageError(f"{to} is not empty, and no report of an earlier run: name another directory, or remove it")
    return place


def _is_report(place: Path) -> bool:
    try:
        found = json.loads((place / MARK).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


@contextlib.contextmanager
def building(place: Path) -> Iterator[Path]:
    """A hidden directory beside the place, for the length of a with block. When that ends well, it takes the place, and
    what was there is removed; otherwise the place is left as it is. PipelineError when it cannot be written."""
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
