"""The PostgreSQL of the tests leaves nothing behind, however the tests end."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers.processes import WITH_SUPPORT
from support.storage.postgres import needs_postgres

from qs_testing.programs import until

pytestmark = needs_postgres
_PROGRAM = """
import signal
from support.storage.postgres import Postgres
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without it
with Postgres() as server, server.standby("other"), server.database():
    print(server.data, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left(sig: int) -> None:
    """Neither a kill of the tests nor Ctrl-C leaves a process or a directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=WITH_SUPPORT
    )
    assert process.stdout is not None
    data = Path(process.stdout.readline().strip())
    home = data.parent.parent
    assert home.name.startswith("qs-postgres-")
    process.send_signal(sig)
    process.communicate()
    until(lambda: not home.exists(), home.parent)
    assert [each for each in Path("/proc").glob("[0-9]*") if _works_in(each, home)] == []


def _works_in(process: Path, home: Path) -> bool:
    try:
        return (process / "cwd").readlink().is_relative_to(home)
    except OSError:
        return False
