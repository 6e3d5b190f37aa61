"""The plugin of pytest, in runs of their own: what its fixtures give, and that nothing is left behind."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qs_testing.programs import until

Run = Callable[..., str]
ENDS_WITHIN = 20
USUAL = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "QS_"))}


def start(folder: Path, test: str, *flags: str) -> subprocess.Popen[str]:
    """Starts a run of pytest in a folder, as a user would, with one file of tests."""
    (folder / "test_it.py").write_text(f"import os, pathlib, sys, threading\nimport pytest\n{test}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags, "test_it.py"]
    return subprocess.Popen(command, cwd=folder, env=USUAL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs tests in a folder of their own, and returns what pytest has printed. passes: whether they have to pass."""

    def run(test: str, *flags: str, passes: bool = True) -> str:
        process = start(tmp_path, test, *flags)
        printed, _ = process.communicate(timeout=100)
        assert process.returncode == (0 if passes else 1), printed
        return printed

    return run


def test_each_test_begins_without_queues(run: Run) -> None:
    """A shared server has no queues of the tests before, and each queue has the options of its marker."""
    run(
        """
@pytest.mark.parametrize("number", range(3))
@pytest.mark.qs_queue(visibility=7, dead_letter="failed", max_receives=2)
def test_clean(qs_server, qs_client, qs_queue, number):
    assert sorted(qs_client.queues()) == sorted(["failed", qs_queue])
    options = qs_client.queue_options(qs_queue)
    assert (options.visibility, options.dead_letter, options.max_receives) == (7, "failed", 2)
    qs_client.push(qs_queue, "left over")
    qs_client.new_queue("another")

def test_one_server(qs_server, qs_bus):
    pathlib.Path("pid").write_text(str(qs_server.pid))

def test_the_same_server(qs_server):
    assert pathlib.Path("pid").read_text() == str(qs_server.pid)
"""
    )


def test_a_fault_needs_a_server_of_its_own(run: Run) -> None:
    """Faults of a shared server are refused, with what to write; with the marker there are faults of server and bus."""
    run(
        """
def test_shared(qs_server, qs_bus):
    for fault in (qs_server.full_disk, qs_server.kill, qs_bus.freeze, qs_server.cut):
        with pytest.raises(RuntimeError, match="pytest.mark.qs_faults"):
            fault()

@pytest.mark.qs_faults
def test_own(qs_server, qs_bus, qs_client, qs_queue):
    with qs_bus.client() as bus:
        messages = bus.subscribe(qs_queue, ack=True)
        messages.open()
        qs_bus.kill()
        qs_client.push(qs_queue, "x")
        qs_bus.restart()
        assert next(messages).text == "x"
"""
    )


def test_a_failure_shows_what_happened(run: Run) -> None:
    """A check that fails shows the life of each message that is left, and a test that fails shows the server's log."""
    printed = run(
        """
def test_left(qs_server, qs_client, qs_queue):
    qs_client.push(qs_queue, "two apples")
    qs_client.receive(qs_queue)
    qs_server.expect_empty(qs_queue, within=0.01)

@pytest.mark.qs_faults
def test_logged(qs_server, qs_client, qs_queue):
    with qs_server.failing_disk(), pytest.raises(Exception):
        qs_client.push(qs_queue, "x")
    raise AssertionError("here")
""",
        passes=False,
    )
    assert "still holds 1 messages" in printed
    assert "'two apples'" in printed
    assert re.findall(r"^E +[0-9.]+ +(pushed|received) ", printed, re.MULTILINE) == ["pushed", "received"]
    assert "log of the server" in printed
    assert "Input/output error" in printed


def test_a_test_that_leaves_connections(run: Run) -> None:
    """A client, a waiting receive and a subscription that a test has left open get nothing of the next test, though it
    has a queue of the same name; and what the bus keeps for itself is no message of a test."""
    run(
        """
kept = []

@pytest.mark.parametrize("number", range(2))
def test_leaves(qs_server, qs_bus, number):
    client, bus = qs_server.client(), qs_bus.client()
    client.new_queue("jobs")
    messages = bus.subscribe("jobs", ack=True)
    messages.open()
    waiting = qs_server.client()
    receiving = threading.Thread(target=waiting.receive, args=("jobs",), kwargs={"wait": 60}, daemon=True)
    receiving.start()
    kept.extend([client, bus, messages, waiting])
    client.push("jobs", "first")

def test_next(qs_server, qs_bus, qs_client):
    for queue in ("jobs", "bus::127.0.0.1:9"):  # the bus itself makes such a queue some time after its start
        qs_client.new_queue(queue)
        qs_client.push(queue, "second")
    [left] = qs_server.all_messages()
    assert (left.status, left.receives) == ("ready", 0)
    assert qs_server.history(left).names == ["pushed"]
""",
        "-p", "no:threadexception", "-p", "no:unraisableexception",
    )  # fmt: skip


def test_flags_of_the_settings(run: Run, tmp_path: Path) -> None:
    """`qs_server_flags` are flags of the shared server, and of those with faults."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nqs_server_flags = --max-document 2000\n")
    run(
        """
from qs_client import TooLarge

def too_large(client, queue):
    client.push(queue, b"x" * 1000)
    with pytest.raises(TooLarge):
        client.push(queue, b"x" * 10000)

def test_shared(qs_client, qs_queue):
    too_large(qs_client, qs_queue)

@pytest.mark.qs_faults
def test_own(qs_client, qs_queue):
    too_large(qs_client, qs_queue)
"""
    )


def test_a_server_that_does_not_start(run: Run, tmp_path: Path) -> None:
    """The error has what the server has logged."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nqs_server_flags = --nonsense\n")
    printed = run(
        """
def test_shared(qs_server):
    pass

@pytest.mark.qs_faults
def test_own(qs_server):
    pass
""",
        passes=False,
    )
    assert printed.count("StartFailedError: the server did not start") >= 2
    assert len(re.findall(r"^E .*unrecognized arguments: --nonsense", printed, re.MULTILINE)) == 2
    assert "RuntimeWarning" not in printed


def test_with_xdist(run: Run) -> None:
    """Each worker of xdist has a server of its own."""
    printed = run(
        """
@pytest.mark.parametrize("number", range(20))
def test_it(qs_server, qs_client, qs_queue, number, worker_id):
    assert qs_client.queues() == [qs_queue]
    pathlib.Path(f"{worker_id}-{qs_server.pid}").touch()
""",
        "-n", "2",
    )  # fmt: skip
    assert "20 passed" in printed


def test_other_kinds_of_tests(run: Run) -> None:
    """Tests with trio, asyncio, anyio and unittest use the same server."""
    run(
        """
import asyncio, unittest
from qs_client import AsyncQueueClient
from qs_testing import serving

async def push_and_receive(server, queue):
    async with AsyncQueueClient(server.host, server.port) as client:
        await client.push(queue, "x")
        [message] = await client.receive(queue)
        await client.delete(message)
    server.expect_empty(queue)

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_anyio(qs_server, qs_queue, anyio_backend):
    await push_and_receive(qs_server, qs_queue)

@pytest.mark.trio
async def test_trio(qs_server, qs_queue):
    await push_and_receive(qs_server, qs_queue)

def test_asyncio(qs_server, qs_queue):
    asyncio.run(push_and_receive(qs_server, qs_queue))

class TestPlain(unittest.TestCase):
    def test_push(self):
        with serving(faults=True) as server, server.client() as client:
            client.new_queue("q")
            client.push("q", "x")
            server.power_loss()
            assert [each.text for each in server.all_messages()] == ["x"]
"""
    )


def test_without_pytest() -> None:
    """The servers need no library for tests, and import none."""
    program = (
        "import sys\nsys.modules['pytest'] = sys.modules['hypothesis'] = None\n"
        "import qs_testing\n"
        "with qs_testing.serving() as server, server.client() as client, qs_testing.bus_serving(server) as bus:\n"
        "    client.new_queue('q')\n"
        "    assert qs_testing.FAULTS\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_the_extra() -> None:
    """Without trio, which the extra brings, the error says what to type."""
    program = "import sys\nsys.modules['trio'] = None\nimport qs_testing\nqs_testing.serving\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("NotInstalledError: trio is not installed: pip install 'qsbus[testing]'\n")


WAITING = """
@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.qs_faults
def test_own(qs_server, qs_bus, name):
    pathlib.Path(name).write_text(f"{qs_server.pid} {qs_bus.pid} {qs_server.folder}")
    os.rename(name, name + ".ready")
    threading.Event().wait()

def test_shared(qs_server, qs_bus):
    pathlib.Path("shared").write_text(f"{qs_server.pid} {qs_bus.pid} {qs_server.folder}")
    os.rename("shared", "shared.ready")
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("flags", "sig"),
    [
        (["-k", "shared"], signal.SIGINT),
        (["-k", "shared"], signal.SIGKILL),
        (["-k", "one"], signal.SIGINT),
        (["-k", "one"], signal.SIGTERM),
        (["-k", "one"], signal.SIGKILL),
        (["-n", "3"], signal.SIGKILL),
    ],
)
def test_nothing_is_left(tmp_path: Path, flags: list[str], sig: signal.Signals) -> None:
    """When pytest is interrupted or killed in the middle of tests, servers, buses and their files are gone."""
    count = 3 if "-n" in flags else 1
    process = start(tmp_path, WAITING, *flags)
    until(lambda: len(list(tmp_path.glob("*.ready"))) == count, tmp_path, within=60)
    found = [file.read_text().split() for file in tmp_path.glob("*.ready")]
    pids = [int(pid) for server, bus, _ in found for pid in (server, bus)]
    ends = [os.pidfd_open(pid) for pid in pids]
    process.send_signal(sig)
    process.communicate(timeout=60)
    for end in ends:
        waiting = select.poll()
        waiting.register(end, select.POLLIN)
        assert waiting.poll(ENDS_WITHIN * 1000)
        os.close(end)
    for *_, folder in found:
        until(lambda folder=folder: not Path(folder).exists(), Path(folder).parent)  # type: ignore[misc]
