"""The line of progress that qs-dir and queue-journal.py renew on a terminal."""

import io
import sys
import time

import pytest

from qs_server.main.tool_process import Meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_meter_restart_counts_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of a second queue begins at 0, with its rate; the line is cleared between both and at the end."""
    terminal, now = Terminal(), 0.0
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with Meter("exported") as meter:
        for _ in range(2):
            now += 2
            meter.add(6)
            meter.restart()
    assert terminal.getvalue() == "\r\x1b[Kexported 6 messages, 3 a second\r\x1b[K" * 2
