"""The version of qs, and what it is built with."""

import platform
import ssl

from qs_schemas.parsing import LIBXML  # imported here also to load the XML library before the first client
from qs_schemas.version import installed_version


def build() -> dict[str, str]:
    """Returns the labels of the figure `build_info`. compiled: the libraries in C that take what clients send."""
    compiled = f"libxml2 {LIBXML}, {' '.join(ssl.OPENSSL_VERSION.split()[:2])}"
    return {"version": installed_version(), "python": platform.python_version(), "compiled": compiled}
