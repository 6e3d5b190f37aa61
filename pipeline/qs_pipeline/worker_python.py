"""The Python for Spark's workers when Spark runs in one process here.

Spark puts archives of its Python part first on a worker's path, and a worker compiles what it imports from an archive:
two seconds for each of half a dozen workers. The installed package is the same and already compiled; using it halves
the time of a short job.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import py4j  # type: ignore[import-untyped]
import pyspark

from .wrappers import cache_directory, wrapper

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


def worker_python(environment: Mapping[str, str] = os.environ) -> str:
    """Returns this interpreter, or a wrapper that removes the archives from the path, if the installed PySpark can be
    found without them and is the Spark that runs."""
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
