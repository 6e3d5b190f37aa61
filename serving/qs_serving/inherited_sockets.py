"""Takes over listening sockets that systemd has opened for the process: sd_listen_fds(3).

systemd keeps them open while the process restarts. Clients that connect meanwhile wait, and are not refused.
"""

import os
import socket
from collections.abc import Mapping

from .errors import StartError

_FIRST = 3
"""The first descriptor that is handed over, after those of standard input, output and error."""


def inherited_sockets(environ: Mapping[str, str], pid: int) -> list[socket.socket]:
    """Returns the sockets that were opened for the process with this id; none if it was started without. environ: its
    environment. StartError if one of them is not what clients connect to by TCP."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(pid) or not (count.isascii() and count.isdigit()):
        return []
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    return [_take_over(_FIRST + number, (names[number : number + 1] or [""])[0]) for number in range(int(count))]


def _take_over(descriptor: int, name: str) -> socket.socket:
    where = f"descriptor {descriptor} from the service manager ({name or 'without a name'})"
    try:
        os.set_inheritable(descriptor, False)
        taken = socket.socket(fileno=descriptor)
        accepts = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartError(f"{where} cannot be used: {error.strerror}") from None
    if not accepts or taken.family not in (socket.AF_INET, socket.AF_INET6) or taken.type != socket.SOCK_STREAM:
        raise StartError(f"{where} is not a TCP socket that listens: in its .socket unit, use ListenStream=HOST:PORT")
    return taken
