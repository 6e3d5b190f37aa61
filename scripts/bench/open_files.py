"""Thousands of connections need as many descriptors: in this process, and in those that it starts."""

import contextlib
import resource

_SPARE = 200


def room_for(connections: int) -> int:
    """Raises the limit of open files as far as it goes. So many of the connections fit, with some files beside them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < connections + _SPARE:
        with contextlib.suppress(ValueError, OSError):  # only root may
            resource.setrlimit(resource.RLIMIT_NOFILE, (connections + _SPARE, connections + _SPARE))
            return connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return min(connections, most - _SPARE)
