"""Builds of Python have recorded whether they used a profile, and commands and figures say so."""

import platform
import sysconfig
from typing import Any

import pytest

from qs_schemas import interpreter as module
from qs_schemas.command_line import installed_version, version_line
from qs_schemas.interpreter import interpreter, pgo_build, pgo_in
from qs_serving.figures import build

GCC = {"PGO_PROF_GEN_FLAG": "-fprofile-generate", "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction"}
PLAIN = {"CONFIG_ARGS": "'--enable-shared'", "PY_CFLAGS_NODIST": "-std=c11", **GCC}
RECORDED: dict[str, tuple[dict[str, Any], str]] = {
    "--enable-optimizations": ({**PLAIN, "CONFIG_ARGS": "'--enable-optimizations' '--with-lto'"}, "yes"),
    "make profile-opt": ({**PLAIN, "PY_CFLAGS_NODIST": "-std=c11 -fprofile-use -fprofile-correction"}, "yes"),
    "the same with clang": ({**PLAIN, "PY_CFLAGS_NODIST": "-fprofile-instr-use=code.profclangd"}, "yes"),
    "Debian": ({**PLAIN, "PGO_PROF_USE_FLAG": ""}, "yes"),
    "pyenv": (PLAIN, "no"),
    "an unknown compiler": ({**PLAIN, "PGO_PROF_GEN_FLAG": "", "PGO_PROF_USE_FLAG": ""}, "no"),
    "Windows": ({}, "unknown"),
}


@pytest.mark.parametrize("build", RECORDED)
def test_pgo_in_what_a_build_records(build: str) -> None:
    """The arguments of configure tell, or the flags of the compiler; nothing recorded is "unknown"."""
    recorded, expected = RECORDED[build]
    assert pgo_in(recorded) == expected


def test_pgo_build_of_this_interpreter() -> None:
    """The answer is that of the record of sysconfig."""
    assert pgo_build() == pgo_in(sysconfig.get_config_vars())


def test_pgo_build_of_another_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only CPython's record is understood."""
    monkeypatch.setattr(module.platform, "python_implementation", lambda: "PyPy")
    pgo_build.cache_clear()
    assert interpreter() == f"PyPy {platform.python_version()}, PGO build: unknown"
    pgo_build.cache_clear()


def test_version_line_names_the_interpreter() -> None:
    """--version prints the program, the version and the interpreter."""
    assert version_line("qs") == f"qs {installed_version()} ({interpreter()})"
    assert interpreter() == f"CPython {platform.python_version()}, PGO build: {pgo_build()}"


def test_build_info_has_the_label_pgo() -> None:
    """The figure says the same as --version."""
    assert build()["pgo"] == pgo_build()
