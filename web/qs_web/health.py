"""Checks whether the queue server can do its work, and says which check failed."""

import time
from typing import NamedTuple

from qs_client import Figure, ServerError, ServerUnavailable

from .upstream import Upstream

_DISK = 1 << 30
"""Bytes that have to be free on the disk of the queues."""
_DAY = 86400
"""Seconds that the server's certificate has to be good for."""


class Check(NamedTuple):
    """A check: what was looked at, whether it is well, and what was found."""

    name: str
    passed: bool
    text: str


async def check_server(server: Upstream) -> list[Check]:
    """Makes all checks. One that could not be made has not passed."""
    try:
        figures = await server.client.server_stats()
    except ServerUnavailable as error:
        return [Check("server", False, str(error))]
    except ServerError as error:
        help_text = "; give the token of the page the right to monitor" if error.code in {401, 403} else ""
        return [Check("server", False, f"{error}{help_text}")]
    found = {figure.name: figure.value for figure in figures if not figure.labels}
    checks = [Check("server", True, "answers"), _journal(found), _disk(found)]
    expiry = _first_expiry(figures)
    return checks if expiry is None else [*checks, _certificate(expiry)]


def _journal(found: dict[str, float]) -> Check:
    if not found.get("journal_failed"):
        return Check("journal", True, "takes messages")
    return Check("journal", False, "the disk has failed: look at the server's log, and start it again")


def _disk(found: dict[str, float]) -> Check:
    free = found.get("disk_free_bytes")
    if free is None:
        return Check("disk", False, "the server does not say how much is free")
    text = f"{free / _DISK:.1f} GiB free"
    return Check("disk", free >= _DISK, text if free >= _DISK else f"{text}, less than 1 GiB")


def _first_expiry(figures: list[Figure]) -> float | None:
    return min((each.value for each in figures if each.name == "tls_certificate_expiry_time_seconds"), default=None)


def _certificate(expiry: float) -> Check:
    ends = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expiry))
    if expiry - time.time() >= _DAY:
        return Check("certificate", True, f"ends {ends}")
    return Check("certificate", False, f"ends {ends}: replace the file and send the server a SIGHUP")
