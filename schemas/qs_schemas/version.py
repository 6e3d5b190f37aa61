"""The version of the package that is installed."""

from functools import cache


@cache
def installed_version() -> str:
    """Returns the version of the installed package, "unknown" in a checkout that is not installed. Looking it up takes
    a tenth of what a command takes to start."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("qsbus")
    except PackageNotFoundError:
        return "unknown"
