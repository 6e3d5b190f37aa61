"""Signals, and how they end a process whatever it is at, or make it read files again. Real processes and signals; the
bounds are shorter here."""

import signal
import subprocess
import sys
import time

import pytest

_PROGRAM = """
import os, signal, sys, time
import trio
from qs_serving import stopping
from qs_serving.command import run_command
from qs_serving.errors import StartError, StopError
from qs_serving.listening import open_listeners

what, grace, closing = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
stopping._CLOSING = closing

class Server:
    stopped = trio.Event()
    def stop(self):
        print("stop", flush=True)
        if what in ("idle", "unfinished", "reloads"):
            self.stopped.set()
    def cut_off(self):
        print("cut off", flush=True)
        if what == "clients":
            self.stopped.set()
    async def serve(self):
        while what == "spins":
            pass
        if what == "sleeps":
            time.sleep(60)
        await self.stopped.wait()

class Last:
    # Goes away when Python has put back what signals did before.
    def __del__(self):
        for number in signal.SIGTERM, signal.SIGINT:
            os.kill(os.getpid(), number)
        os.write(1, b"last\\n")
if what == "idle":
    last = Last()

class Files:
    def __init__(self, name):
        self.name = name
    def reload(self):
        if self.name == "bad":
            raise StartError("the file is bad")
        print("read", flush=True)

async def run(options, announce):
    reloads = [Files("bad"), Files("good")] if what == "reloads" else []
    listeners = await open_listeners("127.0.0.1", 0)
    server = Server()
    await stopping.serve_until_signalled(server, server.serve, listeners, announce, grace, reloads=reloads)
    if what == "unfinished":
        raise StopError("something is left")

sys.exit(run_command("program", 0, run, None))
"""
WITHIN = 20
"""Seconds: only a failure takes that long."""
LONG = 60


class Process:
    """A process that listens, and then does what its server is told to do."""

    def __init__(self, what: str, grace: float, closing: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, what, str(grace), str(closing)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.line().startswith("listening on ")

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, *numbers: int) -> None:
        for number in numbers:
            self._process.send_signal(number)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ended(self) -> tuple[int, str]:
        """Returns the exit code, and the text on standard error."""
        try:
            _, said = self._process.communicate(timeout=WITHIN)
        finally:
            self._process.kill()
        return self._process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal(number: int) -> None:
    """The first signal stops the server, and the process ends with 0, though more signals come while Python ends."""
    process = Process("idle", LONG, LONG)
    process.signal(number)
    assert process.line() == "stop"
    assert process.line() == "last"
    assert process.ended() == (0, "")


def test_what_is_left() -> None:
    """A stop that has left something ends with 1 and one line that says what."""
    process = Process("unfinished", LONG, LONG)
    process.signal(signal.SIGTERM)
    assert process.ended() == (1, "program: something is left\n")


def test_a_second_signal() -> None:
    """The second signal cuts clients off, and the process ends with 0 if nothing else kept it."""
    process = Process("clients", LONG, LONG)
    process.signal(signal.SIGTERM)
    assert process.line() == "stop"
    process.signal(signal.SIGTERM)
    assert process.line() == "cut off"
    assert process.ended() == (0, "")


@pytest.mark.parametrize("what", ["waits", "spins", "sleeps"])
def test_the_time_is_up(what: str) -> None:
    """Some time after a first signal the process ends with 1 and one line, be it waiting, on a full core or asleep in
    the system."""
    process = Process(what, 0.1, 0.1)
    process.signal(signal.SIGTERM)
    code, said = process.ended()
    assert (code, said.count("\n")) == (1, 1)
    assert "could not stop in time, and was cut short" in said


@pytest.mark.parametrize("what", ["waits", "spins", "sleeps"])
def test_the_time_is_up_after_a_second_signal(what: str) -> None:
    """After a second signal, the stop is not given `grace`."""
    process = Process(what, LONG, 0.5)
    process.signal(signal.SIGTERM, signal.SIGINT)
    code, said = process.ended()
    assert code == 1
    assert "after a second signal" in said


@pytest.mark.parametrize("what", ["waits", "spins", "sleeps"])
def test_a_third_signal(what: str) -> None:
    """The third signal ends the process at once."""
    process = Process(what, LONG, LONG)
    began = time.monotonic()
    process.signal(signal.SIGTERM, signal.SIGINT)
    while process.runs:  # signals of one kind that come together count as one
        process.signal(signal.SIGTERM)
        assert time.monotonic() - began < WITHIN
    code, said = process.ended()
    assert code == 1
    assert "times" in said


def test_sighup_reads_all_files_again() -> None:
    """SIGHUP makes the process read all files again, however often; a bad file hinders no other, and is logged."""
    process = Process("reloads", LONG, LONG)
    for _ in range(3):
        process.signal(signal.SIGHUP)
        assert process.line() == "read"
    process.signal(signal.SIGTERM)
    assert process.line() == "stop"
    code, said = process.ended()
    assert code == 0
    assert said.count("\n") == said.count("the file is bad; what was read before stays in use\n") == 3


def test_nothing_to_reload() -> None:
    """Without files, SIGHUP ends the process, as by default."""
    process = Process("idle", LONG, LONG)
    process.signal(signal.SIGHUP)
    assert process.ended()[0] == -signal.SIGHUP
