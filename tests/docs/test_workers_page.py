"""docs/workers.md is true: its workers are started, killed and stopped, and print what it shows."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.console import Block
from support.serving import FAST, PROJECT, serving

from qs_client import QueueClient

PAGE = PROJECT / "docs" / "workers.md"


def test_the_workers(run_console_blocks: Callable[..., int]) -> None:
    """The sync one and the async one handle, try again, give up and stop; a repeated message changes nothing."""
    assert run_console_blocks(PAGE) > 10


def test_the_crew_in_trio(fenced_blocks: Callable[..., list[Block]], tmp_path: Path) -> None:
    """The async worker is the same program in trio: it handles messages, and stops at a signal."""
    [crew] = [each for each in fenced_blocks(PAGE.read_text(encoding="utf-8"), "python") if each.title == "crew.py"]
    with serving(tmp_path / "root", *FAST) as server:
        body = crew.body.replace("9876", str(server.port)).replace("anyio.run(main)", "import trio; trio.run(main)")
        with QueueClient("127.0.0.1", server.port) as client:
            client.new_queue("orders")
            client.push("orders", "3 apples")
        command = [sys.executable, "-u", "-c", body]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "packed 3 apples\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.stdout.read() == "stopped\n"
        assert worker.returncode == 0
