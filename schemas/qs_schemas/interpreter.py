"""Tells which Python runs this program, and whether it is a PGO build.

PGO is profile-guided optimization: the compiler of the interpreter has a profile of how Python programs run. Programs
in Python need about a fifth less processor time with it, so who reads a figure of speed has to know. The answer comes
from what the build of the interpreter has recorded for `sysconfig`; nothing is measured.
"""

import platform
import sysconfig
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

Pgo = Literal["yes", "no", "unknown"]

_USED = ("-fprofile-use", "-fprofile-instr-use", "-prof-use")
"""The flags with which GCC, clang and ICC use a profile, as CPython's own tests look for them."""


def pgo_in(recorded: Mapping[str, Any]) -> Pgo:
    """Tells whether a build of CPython was a PGO build. recorded: the variables of `sysconfig`.

    "unknown" where the build has recorded nothing, as on Windows.
    """
    arguments = recorded.get("CONFIG_ARGS")
    if arguments is None:
        return "unknown"
    if "--enable-optimizations" in arguments:
        return "yes"
    # `make profile-opt` needs no argument of configure. It gives the flag to the compiler of the interpreter alone.
    if any(flag in (recorded.get("PY_CFLAGS_NODIST") or "") for flag in _USED):
        return "yes"
    # Debian and Ubuntu use `make profile-opt` too, and take the flag out of the record: extensions must not be compiled
    # with it. Everywhere else configure has found both flags of a compiler, or none.
    is_cleared = recorded.get("PGO_PROF_USE_FLAG") == "" and bool(recorded.get("PGO_PROF_GEN_FLAG"))
    return "yes" if is_cleared else "no"


@cache
def pgo_build() -> Pgo:
    """Tells whether this interpreter is a PGO build. "unknown" for other implementations than CPython too."""
    return pgo_in(sysconfig.get_config_vars()) if platform.python_implementation() == "CPython" else "unknown"


def interpreter() -> str:
    """Returns the implementation, the version, and whether it is a PGO build: "CPython 3.11.2, PGO build: yes"."""
    return f"{platform.python_implementation()} {platform.python_version()}, PGO build: {pgo_build()}"
