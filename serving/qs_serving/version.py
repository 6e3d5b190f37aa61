"""The version of qs, and what it is built with."""

import platform
import ssl
from functools import cache

from qs_schemas.parse import LIBXML


@cache
def installed_version() -> str:
    """Returns the version of the installed package, "unknown" in a checkout that is not installed. Looking it up takes
    a tenth of what a command takes to start."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("qsbus")
    except PackageNotFoundError:
        return "unknown"


def build() -> dict[str, str]:
    """Returns the labels of the figure `build_info`. compiled: the libraries in C that take what clients send."""
    compiled = f"libxml2 {LIBXML}, {' '.join(ssl.OPENSSL_VERSION.split()[:2])}"
    return {"version": installed_version(), "python": platform.python_version(), "compiled": compiled}
