"""The Python of Spark's workers: this one, and its modules are those that are installed and compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from qs_pipeline.interpreters import worker_python

SAYS = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"


def test_worker_python_leaves_out_archives(tmp_path: Path) -> None:
    """The program drops the archives of Spark from the path, keeps other modules, and is made once."""
    program = worker_python({"XDG_CACHE_HOME": str(tmp_path / "a b")})
    assert Path(program).is_relative_to(tmp_path)
    places = ["/s/python/lib/pyspark.zip", "/my modules", "/s/python/lib/py4j-0.10.9.9-src.zip", "/*"]
    places.append("/s/jars/spark-core_2.13-4.2.0.jar")
    called = [program, "-c", SAYS, "a b", "*"]
    environment = os.environ | {"PYTHONPATH": ":".join(places)}
    said = subprocess.run(called, capture_output=True, text=True, timeout=30, check=True, env=environment)
    assert said.stdout.strip() == f"{sys.prefix}|/my modules:/*|a b|*"
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path / "a b")}) == program


def test_worker_python_without_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache folder, or with another Spark, workers run this interpreter itself."""
    (tmp_path / "file").write_text("")
    assert worker_python({}) == sys.executable
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path / "file")}) == sys.executable
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path), "SPARK_HOME": "/opt/spark"}) == sys.executable
    monkeypatch.setattr(pyspark, "__file__", "/elsewhere/pyspark/__init__.py")
    assert worker_python({"XDG_CACHE_HOME": str(tmp_path)}) == sys.executable


def test_worker_python_in_writable_cache_is_not_run(tmp_path: Path) -> None:
    """A folder that others can write to is not used, and a program that was changed is written again."""
    given = {"XDG_CACHE_HOME": str(tmp_path)}
    program = Path(worker_python(given))
    assert program.is_relative_to(tmp_path)
    for directory in (program.parent, program.parents[1], program.parents[2]):
        assert directory.stat().st_mode & 0o777 == 0o700
        directory.chmod(0o777)
        assert worker_python(given) == sys.executable
        directory.chmod(0o700)
    program.write_bytes(b"\xff")
    assert worker_python(given) == str(program)
    assert program.read_bytes().startswith(b"#!/bin/sh")


def test_workers_take_the_installed_pyspark(spark: SparkSession) -> None:
    """A worker of Spark has this environment, and imports the pyspark that is installed in it."""

    def where(_: object) -> str:
        import pyspark

        return f"{sys.prefix}|{pyspark.__file__}"

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [f"{sys.prefix}|{pyspark.__file__}"]
