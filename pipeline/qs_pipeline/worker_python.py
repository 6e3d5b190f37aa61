"""The Python that Spark starts for its workers, when it runs in one process here.

Spark puts archives of its Python part before everything else where a worker looks for modules, and a worker compiles
what it imports from an archive, every time: two seconds for each of the half dozen that even a short job starts. The
installed package is the same and is compiled already, so workers are to take that: half the time of a short job.
"""

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pyspark

from .wrappers import cache_directory, wrapper

_WITHOUT_ARCHIVES = """\
set -f
IFS=:
left=
for place in $PYTHONPATH; do
    case "$place" in
        */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
        *) left="${left:+$left:}$place" ;;
    esac
done
unset IFS
set +f
export PYTHONPATH="$left"
"""


def worker_python(environment: Mapping[str, str] = os.environ) -> str:
    """The path of this interpreter, or of a wrapper around it that leaves the archives out: where PySpark is installed
    with it, so that it is found without them."""
    installed = Path(pyspark.__file__).parent.parent
    if str(installed) not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return sys.executable
    cache = cache_directory(environment)
    if cache is None:
        return sys.executable
    try:
        script = wrapper(cache, Path(sys.executable), _WITHOUT_ARCHIVES)
    except OSError:
        return sys.executable
    return str(script) if os.access(script, os.X_OK) else sys.executable  # not so where nothing may be run
